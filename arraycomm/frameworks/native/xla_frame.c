/* Reads the arguments, results and attributes of a call of XLA's FFI. */
#include <stdlib.h>
#include <sys/mman.h>

#include "call/call.h"
#include "xla_ffi.h"

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

/* The attribute "call", NULL where it is another version's. */
static const int64_t *frame_call(const struct xla_attributes *attributes)
{
    if (attributes->size != 1 || attributes->kinds[0] != XLA_ATTRIBUTE_ARRAY)
        return NULL;
    const struct xla_array *array = attributes->values[0];
    return array->type == XLA_TYPE_S64 && array->size == ACOMM_XLA_FIELDS ? array->data : NULL;
}

const int64_t *xla_frame_fields(const struct xla_frame *frame, xla_error **answer)
{
    *answer = NULL;
    if (tells_version(frame) || frame->stage != XLA_STAGE_EXECUTE)
        return NULL;
    const int64_t *fields = frame_call(&frame->attributes);
    if (fields && handle_find(fields[ACOMM_XLA_GROUP]))
        return fields;
    *answer = error(frame, XLA_CODE_INVALID_ARGUMENT,
                    fields ? "arraycomm: the program's group is none of this process: it was compiled in another one"
                           : "arraycomm: this program was compiled for another version of it");
    return NULL;
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

xla_error *xla_frame_failed(const struct xla_frame *frame, char *text)
{
    xla_error *made = error(frame, XLA_CODE_ABORTED, text ? text : "arraycomm: an operation failed, and its error text could not be made");
    free(text);
    return made;
}

void xla_prepare(void *result, uint64_t bytes)
{
    enum { HUGE_PAGE = 2 << 20 }; /* on x86-64 and AArch64 with 4 KiB pages */
    uintptr_t from = ((uintptr_t)result + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, to = ((uintptr_t)result + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (result && from < to)
        madvise((void *)from, to - from, MADV_HUGEPAGE); /* best effort */
}
