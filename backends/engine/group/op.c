/* An operation: its blocks, its call signature and the difference from another rank's, its end, and the wait for that. */
#include <limits.h>

#include "base/clock.h"
#include "group/group.h"

const acomm_operation acomm_operations[ACOMM_KINDS] = {
#define OPERATION(kind, name, gives, gets, array, reduces) {name, gives, gets, array, reduces},
#include "operations.def"
#undef OPERATION
};

void op_begin(struct acomm_op *op)
{
    if (op->started)
        return;
    op->started = clock_now();
    op->deadline = op->timeout > INT64_MAX - op->started ? INT64_MAX : op->started + op->timeout;
}

int64_t op_elapsed(const struct acomm_op *op)
{
    return op->started ? clock_now() - op->started : 0;
}

struct span op_block(const uint64_t *counts, uint64_t count, int rank, size_t width)
{
    if (!counts)
        return (struct span){count * width * (uint64_t)rank, count * width};
    return (struct span){op_total(counts, 0, rank, width), counts[rank] * width};
}

static struct span placed(const struct acomm_op *op, const uint64_t *counts, int rank)
{
    if (op->places)
        return (struct span){op->places[rank] * op->width, counts[rank] * op->width};
    return op_block(counts, op->count, rank, op->width);
}

struct span op_gathered(const struct acomm_op *op, int rank)
{
    return placed(op, op->recv_counts, rank);
}

struct span op_scattered(const struct acomm_op *op, int rank)
{
    return placed(op, op->send_counts, rank);
}

uint64_t op_total(const uint64_t *counts, uint64_t count, int ranks, size_t width)
{
    if (!counts)
        return count * width * (uint64_t)ranks;
    uint64_t total = 0;
    for (int i = 0; i < ranks; i++)
        total += counts[i];
    return total * width;
}

uint64_t op_largest(const uint64_t *counts, uint64_t count, int ranks)
{
    for (int i = 0; counts && i < ranks; i++)
        if (counts[i] > count)
            count = counts[i];
    return count;
}

/* ---- headers ---- */

_Static_assert(sizeof(acomm_header) == 32, "headers travel as they lie in memory");

/* FNV-1a: any difference between two factors must show in 32 bits; nothing here is adversarial. */
static uint32_t hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint32_t h = 2166136261u;
    while (bytes--)
        h = (h ^ *p++) * 16777619u;
    return h;
}

void op_header(const struct acomm_op *op, acomm_header *out)
{
    while (op->whole)
        op = op->whole;
    out->sequence = op->sequence;
    out->count = op->count;
    out->layout = op->layout;
    bool opaque = op->dtype >= ACOMM_OPAQUE;
    out->factor = opaque ? (uint32_t)op->dtype : op->redop == ACOMM_PREMUL_SUM ? hash(&op->factor, sizeof op->factor) : 0;
    out->kind = (uint8_t)op->kind;
    out->dtype = op_header_dtype(op->dtype);
    out->redop = (uint8_t)op->redop;
    out->flags = op->gpu ? OP_ON_GPU : op_array(op) == ACOMM_EXCHANGES && op->send_counts ? OP_UNEVEN : op->shares ? OP_SHARES : 0;
    out->root = op->root;
}

struct acomm_op op_of_header(struct acomm_group *g, const acomm_header *mine)
{
    return (struct acomm_op){.group = g, .team = &g->hosts.all, .kind = mine->kind, .dtype = mine->dtype, .redop = mine->redop,
                             .count = mine->count, .layout = mine->layout, .root = mine->root, .sequence = mine->sequence,
                             .timeout = g->timeout, .synchronous = true, .peer = -1};
}

/* Whether two ranks' call signatures name the same operation. */
static bool op_agrees(const acomm_header *a, const acomm_header *b)
{
    if (!memcmp(a, b, sizeof *a))
        return true;
    bool uneven = (a->flags & b->flags & OP_UNEVEN) != 0; /* each rank's own counts: they differ rightly */
    bool layouts = a->layout == b->layout || !a->layout || !b->layout;
    return a->sequence == b->sequence && (uneven || a->count == b->count) && layouts && a->factor == b->factor
        && a->kind == b->kind && a->dtype == b->dtype && a->redop == b->redop && a->flags == b->flags
        && a->root == b->root;
}

static int op_differ(struct acomm_op *op, int peer, const acomm_header *mine, const acomm_header *theirs)
{
    acomm_failure failure = {.code = ACOMM_MISMATCH, .culprit = peer, .origin = op->group->rank, .mine = *mine,
                             .theirs = *theirs, .sequence = mine->sequence, .peer_sequence = theirs->sequence,
                             .elapsed = op_elapsed(op)};
    return group_fail(op->group, &failure, true);
}

int op_compare_earlier(struct acomm_op *op, int peer, const acomm_header *mine, const acomm_header *theirs)
{
    return !op->group->check || op_agrees(mine, theirs) ? 0 : op_differ(op, peer, mine, theirs);
}

int op_compare(struct acomm_op *op, int peer, const void *header)
{
    acomm_header mine, theirs;
    op_header(op, &mine);
    memcpy(&theirs, header, sizeof theirs);
    return op_compare_earlier(op, peer, &mine, &theirs);
}

/* ---- the end ---- */

void op_complete(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    if (op->then) {
        op->then(op);
        return;
    }
    int before = atomic_exchange(&op->done, OP_ENDED);
    if (before == OP_ABANDONED)
        group_recycle(g, op);
    else if (before == OP_AWAITED)
        futex_wake(&op->done, INT_MAX, false);
}

int op_wait(struct acomm_op *op, int64_t timeout)
{
    int64_t end = timeout < 0 ? INT64_MAX : clock_now() + timeout;
    for (int turn = 0; !op_ended(op); turn++) {
        if (turn < 200 && timeout) {
            relax();
            continue;
        }
        int64_t left = end - clock_now();
        if (left <= 0)
            return 1;
        int under_way = OP_UNDER_WAY;
        if (atomic_compare_exchange_strong(&op->done, &under_way, OP_AWAITED) || under_way == OP_AWAITED)
            futex_sleep(&op->done, OP_AWAITED, left < WAIT_LOOK_NS ? left : WAIT_LOOK_NS, false);
        if (interrupt_pending())
            return ACOMM_INTERRUPTED;
    }
    return op->status;
}

void acomm_op_free(struct acomm_op *op)
{
    int state = atomic_load(&op->done);
    while (state != OP_ENDED)
        if (atomic_compare_exchange_weak(&op->done, &state, OP_ABANDONED))
            return;
    group_recycle(op->group, op);
}
