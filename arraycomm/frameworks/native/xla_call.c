/* A collective inside a compiled XLA program: the handler of XLA's FFI. It runs in whatever thread XLA executes the program
 * in, without the GIL, on the program's own memory. Tokens among operands and results carry the order only. */
#include <stdlib.h>
#include <string.h>

#include "acomm_xla.h"
#include "door.h"
#include "xla_ffi.h"

/* One call on its way. */
struct visit {
    const struct xla_frame *frame;
    const int64_t *fields;
    const struct xla_buffer *in, *out; /* NULL where there is none */
    const acomm_entries *entries;
    acomm_group *group;
    int size;
    acomm_failure failure;
};

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

static const int64_t *find_fields(const struct xla_attributes *attributes)
{
    if (attributes->size != 1 || attributes->kinds[0] != XLA_ATTRIBUTE_ARRAY)
        return NULL;
    const struct xla_array *array = attributes->values[0];
    return array->type == XLA_TYPE_S64 && array->size == ACOMM_XLA_FIELDS ? array->data : NULL;
}

static const struct xla_buffer *first_array(const struct xla_values *values)
{
    for (int64_t i = 0; i < values->size; i++) {
        const struct xla_buffer *buffer = values->values[i];
        if (buffer->type != XLA_TYPE_TOKEN)
            return buffer;
    }
    return NULL;
}

static void clear(const struct visit *v)
{
    uint64_t bytes = acomm_dtype_bytes((int)v->fields[ACOMM_XLA_DTYPE]);
    for (int64_t i = 0; i < v->out->rank; i++)
        bytes *= (uint64_t)v->out->dims[i];
    if (bytes)
        memset(v->out->data, 0, bytes);
}

static acomm_call describe(struct visit *v, int kind)
{
    const int64_t *f = v->fields;
    acomm_call call = {
        .count = (uint64_t)f[ACOMM_XLA_COUNT], .timeout = -1, .tag = f[ACOMM_XLA_TAG], .layout = (uint32_t)f[ACOMM_XLA_LAYOUT],
        .kind = kind, .dtype = (int32_t)f[ACOMM_XLA_DTYPE], .redop = (int32_t)f[ACOMM_XLA_REDOP],
        .root = (int32_t)f[ACOMM_XLA_ROOT], .failure = &v->failure,
    };
    memcpy(&call.factor, &f[ACOMM_XLA_FACTOR], sizeof call.factor);
    return call;
}

static uintptr_t given(const struct visit *v)
{
    return v->in && v->fields[ACOMM_XLA_GIVES] ? (uintptr_t)v->in->data : 0;
}

static int run_one(struct visit *v)
{
    acomm_call call = describe(v, (int)v->fields[ACOMM_XLA_KIND]);
    call.in = given(v);
    if (v->out && v->fields[ACOMM_XLA_GETS])
        call.out = (uintptr_t)v->out->data;
    else if (v->out)
        clear(v);
    return v->entries->run(v->group, &call);
}

static int receive(struct visit *v)
{
    if (!v->fields[ACOMM_XLA_GETS]) {
        clear(v);
        return 0;
    }
    acomm_call call = describe(v, ACOMM_RECV);
    call.out = (uintptr_t)v->out->data;
    call.root = (int32_t)v->fields[ACOMM_XLA_SOURCE];
    return v->entries->run(v->group, &call);
}

/* The message reads the program's memory: it has ended, well or not, before this returns. A signal's exception waits. */
static int finish(struct visit *v, acomm_op *op)
{
    int code, interrupted = 0, rank;
    int64_t tag;
    uint64_t bytes;
    while (code = v->entries->wait(op, INT64_MAX / 4), v->entries->source(op, &rank, &tag, &bytes))
        interrupted = code == ACOMM_INTERRUPTED ? code : interrupted;
    if (code)
        v->entries->failure(op, &v->failure);
    v->entries->free(op);
    return code ? code : interrupted;
}

static int permute(struct visit *v)
{
    acomm_op *sending = NULL;
    int code = 0;
    if (v->fields[ACOMM_XLA_GIVES]) {
        acomm_call call = describe(v, ACOMM_SEND);
        call.in = given(v);
        code = v->entries->start(v->group, &call, &sending);
    }
    if (!code)
        code = receive(v);
    int sent = sending ? finish(v, sending) : 0;
    return code ? code : sent;
}

static int reduce_parts(struct visit *v)
{
    acomm_call call = describe(v, 0);
    uintptr_t *parts = malloc((size_t)v->size * sizeof *parts);
    if (!parts)
        return ACOMM_RESOURCE;
    for (int i = 0; i < v->size; i++)
        parts[i] = (uintptr_t)v->in->data + (uint64_t)i * call.count * acomm_dtype_bytes(call.dtype);
    int code = acomm_reduce_local((uintptr_t)v->out->data, parts, v->size, call.count, call.dtype, call.redop, call.factor);
    free(parts);
    return code;
}

static int run(struct visit *v)
{
    switch (v->fields[ACOMM_XLA_KIND]) {
    case ACOMM_XLA_PERMUTE:
        return permute(v);
    case ACOMM_XLA_REDUCE_PARTS:
        return reduce_parts(v);
    }
    return run_one(v);
}

static xla_error *explained(struct door *door, const struct visit *v, int code)
{
    char *text = door_explain(door, v->fields[ACOMM_XLA_GROUP], code, &v->failure, !v->group);
    xla_error *made = error(v->frame, XLA_CODE_ABORTED, text ? text : "arraycomm: an operation failed, and so did saying how");
    free(text);
    return made;
}

void *acomm_xla_call(void *opaque)
{
    const struct xla_frame *frame = opaque;
    if (tells_version(frame) || frame->stage != XLA_STAGE_EXECUTE)
        return NULL;
    struct visit v = {.frame = frame, .fields = find_fields(&frame->attributes), .in = first_array(&frame->operands),
                      .out = first_array(&frame->results)};
    if (!v.fields)
        return error(frame, XLA_CODE_INVALID_ARGUMENT, "arraycomm: this program was compiled for another version of it");
    struct door *door = door_enter(v.fields[ACOMM_XLA_GROUP], &v.group);
    if (!door)
        return error(frame, XLA_CODE_INVALID_ARGUMENT,
                     "arraycomm: the program's group is none of this process: it was compiled in another one");
    v.entries = door->entries;
    v.size = door->size;
    int code = v.group ? run(&v) : ACOMM_CLOSED;
    xla_error *failed = code ? explained(door, &v, code) : NULL;
    door_leave(door);
    return failed;
}
