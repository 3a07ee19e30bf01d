/* Reads the arguments, results and attributes of a call of XLA's FFI. */
#include "xla_frame.h"

#include <stdlib.h>

static xla_error *error(const struct xla_frame *frame, int code, const char *message)
{
    struct xla_error_arguments arguments = {.struct_size = sizeof arguments, .message = message, .code = code};
    return frame->api->new_error(&arguments);
}

static bool tells_version(const struct xla_frame *frame)
{
    for (struct xla_extension *e = frame->extensions; e; e = e->next) {
        if (e->type != XLA_EXTENSION_METADATA)
            continue;
        struct xla_metadata *metadata = ((struct xla_metadata_extension *)e)->metadata;
        metadata->version.major = XLA_VERSION_MAJOR;
        metadata->version.minor = XLA_VERSION_MINOR;
        return true;
    }
    return false;
}

bool xla_frame_executes(const struct xla_frame *frame)
{
    return !tells_version(frame) && frame->stage == XLA_STAGE_EXECUTE;
}

const int64_t *xla_frame_fields(const struct xla_frame *frame)
{
    const struct xla_attributes *attributes = &frame->attributes;
    if (attributes->size != 1 || attributes->kinds[0] != XLA_ATTRIBUTE_ARRAY)
        return NULL;
    const struct xla_array *array = attributes->values[0];
    return array->type == XLA_TYPE_S64 && array->size == ACOMM_XLA_FIELDS ? array->data : NULL;
}

const struct xla_buffer *xla_frame_array(const struct xla_values *values)
{
    for (int64_t i = 0; i < values->size; i++) {
        const struct xla_buffer *buffer = values->values[i];
        if (buffer->type != XLA_TYPE_TOKEN)
            return buffer;
    }
    return NULL;
}

xla_error *xla_frame_refused(const struct xla_frame *frame)
{
    return error(frame, XLA_CODE_INVALID_ARGUMENT,
                 xla_frame_fields(frame) ? "arraycomm: the program's group is none of this process: it was compiled in another one"
                                         : "arraycomm: this program was compiled for another version of it");
}

xla_error *xla_frame_failed(const struct xla_frame *frame, char *text)
{
    xla_error *made = error(frame, XLA_CODE_ABORTED, text ? text : "arraycomm: an operation failed, and so did saying how");
    free(text);
    return made;
}
