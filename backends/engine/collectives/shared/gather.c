/* all_gather, gather and broadcast over the shared segment: senders put their pieces into slots, receivers copy them out. */
#include "collectives/shared/rounds.h"

/* Bytes of a result from which two ranks use no exchange buffers: own data and slot contents are copied on to memory, by
 * non-temporal stores, and the slot may be filled the same way (32 to 256 MiB in 0.87 to 0.91 of the time). */
#define LONG ((uint64_t)32 << 20)

/* A rank's contribution: in a broadcast, the root's is everything. */
static struct span block_of(const struct rounds *r, int rank)
{
    const struct acomm_op *op = r->op;
    if (op->kind != ACOMM_BROADCAST)
        return op_gathered(op, rank);
    return (struct span){0, rank == op->root ? op->count * op->width : 0};
}

static void shared_gather_fill(const struct rounds *r)
{
    size_t bytes = rounds_piece(r, block_of(r, r->rank).bytes, r->index);
    if (bytes)
        rounds_fill(r, r->rank, rounds_slot(r, r->rank, bytes), r->op->in + r->index * r->piece, bytes);
}

static int shared_gather_take(const struct rounds *r, int rank)
{
    const struct acomm_op *op = r->op;
    struct span block = block_of(r, rank);
    size_t bytes = rounds_piece(r, block.bytes, r->index);
    int rc = bytes ? rounds_await(r, rank) : 0;
    if (rc || !bytes)
        return rc;
    char *to = op->out + block.offset + r->index * r->piece;
    const char *from = rank == r->rank ? op->in + r->index * r->piece : rounds_slot(r, rank, bytes);
    if (to != from)
        rounds_take(r, to, from, bytes);
    return 0;
}

static int shared_gather_drain(const struct rounds *r)
{
    int rc = 0;
    for (int i = 0; r->op->out && i < r->ranks && !rc; i++)
        rc = shared_gather_take(r, (r->rank + i) % r->ranks); /* so that ranks do not all read the same slot at once */
    return rc;
}

static int shared_gather_drain_root(const struct rounds *r)
{
    return r->op->out ? shared_gather_take(r, r->op->root) : 0;
}

int shared_all_gather(struct acomm_op *op)
{
    uint64_t largest = op_largest(op->recv_counts, op->count, op->team->size);
    uint64_t whole = op_total(op->recv_counts, op->count, op->team->size, op->width);
    bool mutual = op->kind == ACOMM_ALL_GATHER && whole < LONG;
    struct rounds_plan plan = {.block = largest * op->width, .blocks = 1, .fill = shared_gather_fill, .drain = shared_gather_drain,
                               .result = whole, .mutual = mutual};
    return rounds_run(op, &plan);
}

int shared_broadcast(struct acomm_op *op)
{
    struct rounds_plan plan = {.block = op->count * op->width, .blocks = 1, .one_way = true, .fill = shared_gather_fill,
                               .drain = shared_gather_drain_root, .result = op->count * op->width};
    return rounds_run(op, &plan);
}
