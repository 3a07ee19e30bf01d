/* A collective inside a compiled XLA program: the handler of XLA's FFI. It runs in whatever thread XLA executes the program
 * in, without the GIL, on the program's own memory. Tokens among operands and results carry the order only. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "acomm_xla.h"
#include "door.h"
#include "xla_frame.h"

/* One call on its way. */
struct visit {
    const struct xla_frame *frame;
    const int64_t *fields;
    const struct xla_buffer *in, *out; /* NULL where there is none; a result that nobody writes is no part of the call */
    const acomm_entries *entries;
    acomm_group *group;
    uintptr_t from, to; /* the memory that the operation reads and writes, 0 where it does not */
    int size;
    acomm_failure failure;
};

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

static int run_one(struct visit *v)
{
    acomm_call call = describe(v, (int)v->fields[ACOMM_XLA_KIND]);
    call.in = v->from;
    call.out = v->to;
    return v->entries->run(v->group, &call);
}

static int receive(struct visit *v)
{
    acomm_call call = describe(v, ACOMM_RECV);
    call.out = v->to;
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
        call.in = v->from;
        code = v->entries->start(v->group, &call, &sending);
    }
    if (!code && v->out)
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
        parts[i] = v->from + (uint64_t)i * call.count * acomm_dtype_bytes(call.dtype);
    int code = acomm_reduce_local(v->to, parts, v->size, call.count, call.dtype, call.redop, call.factor);
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

static size_t bytes_of(const struct visit *v, const struct xla_buffer *buffer)
{
    size_t bytes = acomm_dtype_bytes((int)v->fields[ACOMM_XLA_DTYPE]);
    for (int64_t i = 0; buffer && i < buffer->rank; i++)
        bytes *= (size_t)buffer->dims[i];
    return buffer ? bytes : 0;
}

/* For a backend that may use the memory of a failed operation for good (MPI), which a program's memory is not for: on copies,
 * that are left to it then. A group that was in that state before takes no memory any more. */
static int run_on_copies(struct visit *v)
{
    size_t in = v->from ? bytes_of(v, v->in) : 0, out = v->to ? bytes_of(v, v->out) : 0;
    size_t start = (in + 63) / 64 * 64; /* of the result */
    bool before = v->entries->stuck(v->group, NULL);
    char *copy = malloc(start + out + 1);
    if (!copy)
        return ACOMM_RESOURCE;
    if (in)
        memcpy(copy, (void *)v->from, in);
    uintptr_t result = v->to;
    v->from = v->from ? (uintptr_t)copy : 0;
    v->to = v->to ? (uintptr_t)(copy + start) : 0;
    int code = run(v);
    if (!code && out)
        memcpy((void *)result, copy + start, out);
    if (!code || before || !v->entries->stuck(v->group, NULL))
        free(copy);
    return code;
}

static int enter(struct visit *v)
{
    v->from = v->in && v->fields[ACOMM_XLA_GIVES] ? (uintptr_t)v->in->data : 0;
    v->to = v->out ? (uintptr_t)v->out->data : 0;
    return v->entries->stuck && v->fields[ACOMM_XLA_KIND] != ACOMM_XLA_REDUCE_PARTS ? run_on_copies(v) : run(v);
}

static xla_error *explained(struct door *door, const struct visit *v, int code)
{
    char *text = door_explain(door, v->fields[ACOMM_XLA_GROUP], v->fields[ACOMM_XLA_DERIVED], code, &v->failure, !v->group);
    return xla_frame_failed(v->frame, text);
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
    acomm_group *group;
    struct door *door = door_enter(number, &group);
    if (!door)
        return 0;
    int inside = atomic_load(&door->inside) - 1; /* without this one */
    door_leave(door);
    return inside;
}

void *acomm_xla_call(void *opaque)
{
    const struct xla_frame *frame = opaque;
    if (!xla_frame_executes(frame))
        return NULL;
    struct visit v = {.frame = frame, .fields = xla_frame_fields(frame), .in = xla_frame_array(&frame->operands),
                      .out = xla_frame_array(&frame->results)};
    struct door *door = v.fields ? door_enter(v.fields[ACOMM_XLA_GROUP], &v.group) : NULL;
    if (!door)
        return xla_frame_refused(frame);
    v.entries = door->entries;
    v.size = door->size;
    bool keeps = !PyGILState_GetThisThreadState(); /* Python's own threads are none of XLA's */
    atomic_fetch_add(&waiting, keeps);
    if (!atomic_load_explicit(&threads, memory_order_relaxed))
        ask_threads(frame);
    int code = !v.group ? ACOMM_CLOSED : interrupt_between() ? ACOMM_INTERRUPTED : enter(&v);
    xla_error *failed = code ? explained(door, &v, code) : NULL;
    atomic_fetch_sub(&waiting, keeps);
    door_leave(door);
    return failed;
}
