/* The operations of the stand-in for NCCL: held back until the group ends, then one task on their stream. */
#include "nccl.h"
#include <stdlib.h>
#include <string.h>

static __thread int depth, group_code;
static __thread struct call *held, **held_last;

/* ---- reduction operators ---- */

static double number(const void *scalar, int dtype)
{
    switch (dtype) {
    case 0: return *(const int8_t *)scalar;
    case 1: return *(const uint8_t *)scalar;
    case 2: return *(const int32_t *)scalar;
    case 3: return *(const uint32_t *)scalar;
    case 4: return (double)*(const int64_t *)scalar;
    case 5: return (double)*(const int64_t *)scalar; /* wraps alike, and the engine takes factors below 2^53 */
    case 6: return (double)*(const _Float16 *)scalar;
    case 7: return *(const float *)scalar;
    case 8: return *(const double *)scalar;
    }
    uint32_t bits = (uint32_t)*(const uint16_t *)scalar << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

PUBLIC int ncclRedOpCreatePreMulSum(int *op, void *scalar, int dtype, int residence, struct comm *comm)
{
    BEGIN;
    if (residence != 1 || dtype > 9 || !width_of(dtype))
        return wrong(BAD_ARGUMENT, "scalar");
    comm->scalar[comm->scalars % MAX_SCALARS] = number(scalar, dtype);
    *op = FIRST_SCALAR + comm->scalars++ % MAX_SCALARS;
    atomic_fetch_add(&operators, 1);
    return SUCCESS;
}

PUBLIC int ncclRedOpDestroy(int op, struct comm *comm)
{
    BEGIN;
    (void)comm;
    if (op < FIRST_SCALAR)
        return wrong(BAD_ARGUMENT, "op");
    atomic_fetch_sub(&operators, 1);
    return SUCCESS;
}

/* ---- operations ---- */

struct task { struct comm *comm; struct call *calls; };

static void run(void *argument)
{
    struct task *task = argument;
    struct comm *comm = task->comm;
    for (long slept = 0; slept < slow_ns && !atomic_load(&comm->aborted); slept += 1000000)
        nap(1000000);
    int code = move(comm, task->calls);
    int told = later();
    if (code || told)
        atomic_store(&comm->state, told ? told : code);
    while (task->calls) {
        struct call *call = task->calls;
        task->calls = call->next;
        free(call);
    }
    free(task);
    atomic_fetch_sub(&comm->tasks, 1);
}

/* Those of the first call's communicator, in their order, as one task. */
static int enqueue_one(struct call **calls)
{
    struct task *task = calloc(1, sizeof *task);
    struct call *first = *calls, **last = &task->calls, **left = calls;
    *task = (struct task){.comm = first->comm};
    while (*left) {
        struct call *call = *left;
        if (call->comm == first->comm) {
            if (call->stream != first->stream)
                return wrong(BAD_USAGE, "the stand-in takes one stream a group");
            *left = call->next;
            *last = call;
            last = &call->next;
        } else
            left = &call->next;
    }
    *last = NULL;
    atomic_fetch_add(&task->comm->tasks, 1);
    return standin_enqueue(first->stream, run, task) ? CUDA_ERROR : SUCCESS;
}

PUBLIC int ncclGroupStart(void)
{
    BEGIN;
    if (!depth++) {
        held = NULL;
        held_last = &held;
        group_code = SUCCESS;
    }
    return SUCCESS;
}

PUBLIC int ncclGroupEnd(void)
{
    if (!depth)
        return wrong(BAD_USAGE, "no group");
    int code = answer(__func__);
    if (--depth)
        return code;
    code = code ? code : group_code;
    bool blocking = !held || held->comm->blocking;
    while (held && !code)
        code = enqueue_one(&held);
    held = NULL;
    return code || blocking ? code : IN_PROGRESS; /* which has ended when asked for */
}

/* As where the first operation of a kind connects ranks of which one does not come. */
static int block(struct comm *comm)
{
    atomic_fetch_add(&comm->threads, 1);
    while (!atomic_load(&comm->aborted))
        nap(1000000);
    atomic_fetch_sub(&comm->threads, 1);
    return REMOTE_ERROR;
}

static int take(const char *function, struct call call)
{
    int code = answer(function);
    if (!code && atomic_load(&call.comm->state)) {
        code = atomic_load(&call.comm->state); /* of what has failed, as NCCL gives it */
        code = wrong(code == IN_PROGRESS ? BAD_ARGUMENT : code, "the communicator is not ready, or has failed");
    }
    if (!code && (!width_of(call.dtype) || (call.root < 0 || call.root >= call.comm->size)))
        code = wrong(BAD_ARGUMENT, "dtype or rank");
    if (!code && atomic_load(&block_count) && atomic_fetch_sub(&block_count, 1) == 1)
        code = block(call.comm);
    if (code) {
        group_code = code;
        return code;
    }
    bool alone = !depth;
    if (alone)
        ncclGroupStart();
    if (call.op >= FIRST_SCALAR)
        call.factor = call.comm->scalar[call.op - FIRST_SCALAR];
    struct call *kept = malloc(sizeof *kept);
    *kept = call;
    kept->next = NULL;
    *held_last = kept;
    held_last = &kept->next;
    return alone ? ncclGroupEnd() : SUCCESS;
}

#define OPERATION(name, kind_, op_, root_, ...) \
    PUBLIC int name(uintptr_t src, uintptr_t dst, size_t count, int dtype, ##__VA_ARGS__, struct comm *comm, uintptr_t stream) \
    { \
        return take(#name, (struct call){.kind = kind_, .src = src, .dst = dst, .count = count, .dtype = dtype, .op = op_, \
                                         .root = root_, .comm = comm, .stream = stream}); \
    }

OPERATION(ncclAllReduce, ALL_REDUCE, op, 0, int op)
OPERATION(ncclReduce, REDUCE, op, root, int op, int root)
OPERATION(ncclReduceScatter, REDUCE_SCATTER, op, 0, int op)
OPERATION(ncclBroadcast, BROADCAST, 0, root, int root)
OPERATION(ncclAllGather, ALL_GATHER, 0, 0)
#if STANDIN_VERSION >= 22803
OPERATION(ncclAlltoAll, ALL_TO_ALL, 0, 0)
OPERATION(ncclGather, GATHER, 0, root, int root)
OPERATION(ncclScatter, SCATTER, 0, root, int root)
#endif

PUBLIC int ncclSend(uintptr_t src, size_t count, int dtype, int peer, struct comm *comm, uintptr_t stream)
{
    return take("ncclSend", (struct call){.kind = SEND, .src = src, .count = count, .dtype = dtype, .root = peer, .comm = comm,
                                          .stream = stream});
}

PUBLIC int ncclRecv(uintptr_t dst, size_t count, int dtype, int peer, struct comm *comm, uintptr_t stream)
{
    return take("ncclRecv", (struct call){.kind = RECV, .dst = dst, .count = count, .dtype = dtype, .root = peer, .comm = comm,
                                          .stream = stream});
}
