/* A collective inside a compiled XLA program: the handler of XLA's FFI, over the C API. It runs in whatever thread XLA executes the
 * program in, without the GIL, on the program's own memory. Tokens among operands and results carry the order only. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "call/call.h"
#include "xla_ffi.h"

static acomm_call xla_call_describe(const int64_t *f, int kind)
{
    acomm_call call = {
        .count = (uint64_t)f[ACOMM_XLA_COUNT], .tag = f[ACOMM_XLA_TAG], .layout = (uint32_t)f[ACOMM_XLA_LAYOUT], .kind = kind,
        .dtype = (int32_t)f[ACOMM_XLA_DTYPE], .redop = (int32_t)f[ACOMM_XLA_REDOP], .root = (int32_t)f[ACOMM_XLA_ROOT],
    };
    memcpy(&call.factor, &f[ACOMM_XLA_FACTOR], sizeof call.factor);
    return call;
}

static int permute(const int64_t *f, const void *in, void *out)
{
    acomm_call send = xla_call_describe(f, ACOMM_SEND), receive = xla_call_describe(f, ACOMM_RECV);
    send.in = in;
    receive.out = out;
    receive.root = (int32_t)f[ACOMM_XLA_SOURCE];
    return c_api.exchange(f[ACOMM_XLA_GROUP], in ? &send : NULL, out ? &receive : NULL);
}

static int reduce_parts(const int64_t *f, const char *in, void *out)
{
    acomm_call call = xla_call_describe(f, 0);
    int size = handle_find(f[ACOMM_XLA_GROUP])->size;
    uintptr_t *parts = malloc((size_t)size * sizeof *parts);
    if (!parts)
        return c_api_fail(f[ACOMM_XLA_GROUP], ACOMM_RESOURCE, &(acomm_failure){0});
    for (int i = 0; i < size; i++)
        parts[i] = (uintptr_t)in + (uint64_t)i * call.count * acomm_dtype_bytes(call.dtype);
    int code = acomm_reduce_local((uintptr_t)out, parts, size, call.count, call.dtype, call.redop, call.factor);
    free(parts);
    return code ? c_api_fail(f[ACOMM_XLA_GROUP], code, &(acomm_failure){0}) : 0;
}

/* A result that no rank writes is no part of the call. */
static int xla_call_run(const struct xla_frame *frame, const int64_t *f)
{
    const struct xla_buffer *x = xla_frame_array(&frame->operands), *y = xla_frame_array(&frame->results);
    const void *in = x && f[ACOMM_XLA_GIVES] ? x->data : NULL;
    void *out = y ? y->data : NULL;
    uint64_t count = out != NULL;
    for (int64_t i = 0; i < (y ? y->rank : 0); i++)
        count *= (uint64_t)y->dims[i];
    xla_prepare(out, count * acomm_dtype_bytes((int)f[ACOMM_XLA_DTYPE]));
    switch (f[ACOMM_XLA_KIND]) {
    case ACOMM_XLA_PERMUTE:
        return permute(f, in, out);
    case ACOMM_XLA_REDUCE_PARTS:
        return reduce_parts(f, in, out);
    }
    acomm_call call = xla_call_describe(f, (int)f[ACOMM_XLA_KIND]);
    call.in = in;
    call.out = out;
    return c_api.run(f[ACOMM_XLA_GROUP], &call);
}

/* ---- errors ---- */

static PyObject *report; /* report(number, exception or None where the group is closed, about) -> text of the error */

void acomm_xla_report(uintptr_t function)
{
    report = (PyObject *)function;
}

char *xla_explain(int64_t group, int64_t derived)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *error = c_api_exception();
    PyObject *text = error ? PyObject_CallFunction(report, "LOL", (long long)group, error, (long long)derived) : NULL;
    const char *words = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    char *copy = words ? strdup(words) : NULL;
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(report);
    Py_XDECREF(text);
    Py_XDECREF(error);
    PyGILState_Release(state);
    return copy;
}

/* ---- the threads ---- */

static _Atomic int64_t threads, waiting;

static void ask_threads(const struct xla_frame *frame)
{
    int64_t number = 0;
    struct xla_threads_arguments asked = {.struct_size = sizeof asked, .context = frame->context, .number = &number};
    xla_error *none = frame->api->get_threads(&asked);
    if (none)
        frame->api->destroy_error(&(struct xla_error_destroy_arguments){.struct_size = sizeof(struct xla_error_destroy_arguments),
                                                                        .error = none});
    atomic_store(&threads, number);
}

int64_t acomm_xla_threads(void) { return atomic_load(&threads); }
int64_t acomm_xla_waiting(void) { return atomic_load(&waiting); }

int acomm_xla_inside(int64_t number)
{
    const struct handle *handle = handle_find(number);
    return handle ? atomic_load(&handle->inside) : 0;
}

void *acomm_xla_call(void *opaque)
{
    const struct xla_frame *frame = opaque;
    xla_error *failed;
    const int64_t *fields = xla_frame_fields(frame, &failed);
    if (!fields)
        return failed;
    bool keeps = !PyGILState_GetThisThreadState(); /* Python's own threads are not XLA's */
    atomic_fetch_add(&waiting, keeps);
    if (!atomic_load_explicit(&threads, memory_order_relaxed))
        ask_threads(frame);
    if (xla_call_run(frame, fields))
        failed = xla_frame_failed(frame, xla_explain(fields[ACOMM_XLA_GROUP], fields[ACOMM_XLA_DERIVED]));
    atomic_fetch_sub(&waiting, keeps);
    return failed;
}
