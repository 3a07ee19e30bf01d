/* A collective inside a program on a GPU: the handler of XLA's FFI. XLA calls it when it enqueues the program, and the group's
 * communicator enqueues the operation on XLA's stream, from Python: NCCL's calls are polled and watched there. */
#include "door.h"
#include "xla_frame.h"

static uintptr_t address(const struct xla_buffer *buffer)
{
    return buffer ? (uintptr_t)buffer->data : 0;
}

void *acomm_xla_enqueue(void *opaque)
{
    const struct xla_frame *frame = opaque;
    if (!xla_frame_executes(frame))
        return NULL;
    acomm_group *group;
    const int64_t *fields = xla_frame_fields(frame);
    struct door *door = fields ? door_enter(fields[ACOMM_XLA_GROUP], &group) : NULL;
    if (!door)
        return xla_frame_refused(frame);
    door_leave(door); /* the communicator itself sees to it that nobody closes it meanwhile */
    struct xla_stream_arguments stream = {.struct_size = sizeof stream, .context = frame->context};
    xla_error *none = frame->api->get_stream(&stream);
    if (none)
        return none;
    uintptr_t places[] = {address(xla_frame_array(&frame->operands)), address(xla_frame_array(&frame->results)),
                          (uintptr_t)stream.stream};
    char *text = NULL;
    return door_enqueue(door, fields, ACOMM_XLA_FIELDS, places, &text) ? NULL : xla_frame_failed(frame, text);
}
