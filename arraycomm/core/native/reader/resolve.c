/* Any array to a Buffer: for reading (packed if it must be), for writing (refused if that is impossible), as a copy. */
#include "native.h"
#include <string.h>

/* ---- a strided array into packed memory. Neighbouring dimensions that are one run of memory are merged first, so that most inputs
 * end as a few long copies. ---- */

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

/* Copies the view, in C order, to `out`. Releases the GIL when there is much. */
static void pack_copy(const struct view *view, int64_t count, char *out)
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

/* ---- Buffers ---- */

/* Takes no reference of the view; the caller closes it. */
static struct buffer *plain(const struct view *view, int64_t count)
{
    PyObject *shape = buffer_shape(view->ndim, view->shape);
    struct buffer *b = shape ? buffer_new(view->data, count, view->dtype, shape, view->owner, NULL) : NULL;
    return buffer_place(b, view->device_type, view->device_index, view->stream, view->readonly || view->derived, view->fleeting);
}

static struct buffer *packed(const struct view *view, int64_t count)
{
    PyObject *shape = buffer_shape(view->ndim, view->shape);
    struct buffer *b = shape ? buffer_allocate(view->dtype, count, shape) : NULL;
    Py_XDECREF(shape);
    if (b)
        pack_copy(view, count, (char *)(uintptr_t)b->address);
    return b;
}

/* Elements, having made sure that there is memory behind them; -1 with an exception. */
static int64_t usable(const struct view *view, PyObject *object)
{
    int64_t count = view_count(view);
    if (count > 0 && !view->data)
        return refuse("no_memory", object, NULL);
    return count;
}

static struct buffer *readable(const struct view *view, PyObject *object);

/* Its own library packs an array that does not lie on the host. */
static struct buffer *packed_elsewhere(PyObject *object)
{
    struct view view;
    PyObject *contiguous = refuse_call("contiguous", object, NULL);
    if (!contiguous || view_open(&view, contiguous, VIEW_READ)) {
        Py_XDECREF(contiguous);
        return NULL;
    }
    struct buffer *b = NULL;
    if (view_packed(&view))
        b = readable(&view, contiguous);
    else
        refuse("device_strided", object, NULL);
    view_close(&view);
    Py_DECREF(contiguous); /* the Buffer's owner keeps it */
    return b;
}

static struct buffer *readable(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count < 0)
        return NULL;
    if (!count || view_packed(view))
        return plain(view, count);
    struct buffer *b = view->device_type == DL_CPU ? packed(view, count) : packed_elsewhere(object);
    if (b)
        b->readonly = 1; /* a caller that passes the input as output must not write into the copy */
    return b;
}

static struct buffer *copied(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count >= 0 && view->device_type == DL_CPU)
        return packed(view, count);
    if (count >= 0)
        refuse("device_copy", object, NULL);
    return NULL;
}

static struct buffer *writable(const struct view *view, PyObject *object)
{
    int64_t count = usable(view, object);
    if (count < 0)
        return NULL;
    if (view->readonly)
        refuse(view->unversioned ? "unversioned_out" : "readonly_out", object, NULL);
    else if (view->derived)
        refuse("derived_out", object, NULL);
    else if (count && !view_packed(view))
        refuse("strided_out", object, NULL);
    else
        return plain(view, count);
    return NULL;
}

static PyObject *resolved(PyObject *object, enum view_mode mode, struct buffer *(*make)(const struct view *, PyObject *))
{
    struct view view;
    if (view_open(&view, object, mode))
        return NULL;
    struct buffer *b = make(&view, object);
    view_close(&view);
    return (PyObject *)b;
}

PyObject *resolve_in(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, VIEW_READ, readable);
}

PyObject *resolve_pack(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, VIEW_READ, copied);
}

PyObject *resolve_out(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, VIEW_READ, writable);
}

PyObject *resolve_writable(PyObject *Py_UNUSED(module), PyObject *object)
{
    return resolved(object, VIEW_WRITABLE, writable);
}
