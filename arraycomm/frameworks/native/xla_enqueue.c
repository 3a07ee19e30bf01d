/* A collective inside a program on a GPU: the handler of XLA's FFI. XLA calls it when it enqueues the program, and the group's
 * communicator enqueues the operation on XLA's stream, from Python: NCCL's calls are polled and watched there. */
#include <string.h>

#include "call/call.h"
#include "xla_ffi.h"

static PyObject *enqueue; /* enqueue(fields, source, target, stream) -> None, or text of the error */

void acomm_xla_enqueuer(uintptr_t function)
{
    enqueue = (PyObject *)function;
}

static unsigned long long address(const struct xla_buffer *buffer)
{
    return buffer ? (unsigned long long)(uintptr_t)buffer->data : 0;
}

/* false: it failed; *text: why, to be freed; NULL: no memory. */
static bool enqueued(const struct xla_frame *frame, const int64_t *fields, const void *stream, char **text)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *tuple = buffer_shape(ACOMM_XLA_FIELDS, fields);
    PyObject *said = tuple ? PyObject_CallFunction(enqueue, "OKKK", tuple, address(xla_frame_array(&frame->operands)),
                                                   address(xla_frame_array(&frame->results)),
                                                   (unsigned long long)(uintptr_t)stream) : NULL;
    bool well = said == Py_None;
    const char *words = said && !well ? PyUnicode_AsUTF8AndSize(said, NULL) : NULL;
    *text = words ? strdup(words) : NULL;
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(enqueue);
    Py_XDECREF(said);
    Py_XDECREF(tuple);
    PyGILState_Release(state);
    return well;
}

void *acomm_xla_enqueue(void *opaque)
{
    const struct xla_frame *frame = opaque;
    xla_error *none;
    const int64_t *fields = xla_frame_fields(frame, &none);
    if (!fields)
        return none;
    struct xla_stream_arguments stream = {.struct_size = sizeof stream, .context = frame->context};
    none = frame->api->get_stream(&stream);
    if (none)
        return none;
    char *text;
    return enqueued(frame, fields, stream.stream, &text) ? NULL : xla_frame_failed(frame, text);
}
