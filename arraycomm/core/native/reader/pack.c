/* Copies a strided array into packed memory. Neighbouring dimensions that are one run of memory are merged first, so
 * that most inputs end as a few long copies. */
#include "native.h"
#include <string.h>

#define MANY_BYTES (64 << 10) /* from here on other Python threads may run meanwhile */

struct plan {
    int ndim;
    int64_t shape[NATIVE_MAX_DIMS], strides[NATIVE_MAX_DIMS]; /* bytes */
    size_t width;
};

static void make_plan(struct plan *plan, const struct view *view)
{
    plan->ndim = 0;
    plan->width = (size_t)dtype_rows[view->dtype].width;
    for (int i = 0; i < view->ndim; i++) {
        int64_t stride = view->strides[i] * view->unit;
        int last = plan->ndim - 1;
        if (view->shape[i] == 1)
            continue;
        if (last >= 0 && plan->strides[last] == stride * view->shape[i]) {
            plan->shape[last] *= view->shape[i];
            plan->strides[last] = stride;
            continue;
        }
        plan->shape[plan->ndim] = view->shape[i];
        plan->strides[plan->ndim++] = stride;
    }
}

/* Constant sizes let the compiler make a load and a store of each copy. */
static void copy_row(char *out, const char *in, int64_t count, int64_t stride, size_t width)
{
#define COPY(n) for (int64_t i = 0; i < count; i++) memcpy(out + i * (n), in + i * stride, n)
    if (stride == (int64_t)width)
        memcpy(out, in, (size_t)count * width);
    else if (width == 1)
        COPY(1);
    else if (width == 2)
        COPY(2);
    else if (width == 4)
        COPY(4);
    else if (width == 8)
        COPY(8);
    else
        COPY(16);
#undef COPY
}

static char *copy_level(const struct plan *plan, int level, const char *in, char *out)
{
    int64_t count = plan->shape[level], stride = plan->strides[level];
    if (level == plan->ndim - 1) {
        copy_row(out, in, count, stride, plan->width);
        return out + (size_t)count * plan->width;
    }
    for (int64_t i = 0; i < count; i++)
        out = copy_level(plan, level + 1, in + i * stride, out);
    return out;
}

static void copy_all(const struct view *view, size_t bytes, char *out)
{
    struct plan plan;
    if (view_packed(view)) {
        memcpy(out, view->data, bytes);
        return;
    }
    make_plan(&plan, view);
    copy_level(&plan, 0, view->data, out);
}

void pack_copy(const struct view *view, int64_t count, char *out)
{
    size_t bytes = (size_t)count * (size_t)dtype_rows[view->dtype].width;
    if (bytes < MANY_BYTES) {
        if (bytes)
            copy_all(view, bytes, out);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    copy_all(view, bytes, out);
    Py_END_ALLOW_THREADS
}
