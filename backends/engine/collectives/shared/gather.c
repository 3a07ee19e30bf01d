/* all_gather, gather and broadcast over the shared segment: who gives puts its pieces down, who gets copies them out. */
#include "collectives/collectives.h"
#include "collectives/shared/rounds.h"

/* Bytes of a result, or of one that this is a chunk of, from which two ranks do not hand contents over: their own and what lies in a slot
 * are copied on to memory, past the caches, and the slot may as well be filled so (32 to 256 MiB in 0.87 to 0.91 of the time). */
#define LONG ((uint64_t)32 << 20)

static struct span block_of(const struct rounds *r, int rank)
{
    return op_gathered(r->op, rank);
}

static void shared_gather_fill(const struct rounds *r)
{
    size_t bytes = rounds_piece(r, block_of(r, r->rank).bytes, r->index);
    if (bytes)
        rounds_fill(r, r->rank, rounds_slot(r, r->rank, bytes), r->op->in + r->index * r->piece, bytes);
}

static int shared_gather_drain(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    for (int i = 0; op->out && i < r->ranks; i++) {
        int rank = (r->rank + i) % r->ranks; /* not everybody reads the same slot at once */
        struct span block = block_of(r, rank);
        size_t bytes = rounds_piece(r, block.bytes, r->index);
        int rc = bytes ? rounds_await(r, rank) : 0;
        if (rc)
            return rc;
        char *to = op->out + block.offset + r->index * r->piece;
        const char *from = rank == r->rank ? op->in + r->index * r->piece : rounds_slot(r, rank, bytes);
        if (to != from)
            rounds_take(r, to, from, bytes);
    }
    return 0;
}

int shared_all_gather(struct acomm_op *op)
{
    uint64_t largest = op_largest(op->recv_counts, op->count, op->team->size);
    uint64_t whole = op_total(op->recv_counts, op->count, op->team->size, op->width);
    bool mutual = op->kind == ACOMM_ALL_GATHER && whole < LONG && !op->stride;
    struct rounds_plan plan = {.block = largest * op->width, .blocks = 1, .fill = shared_gather_fill, .drain = shared_gather_drain,
                               .result = whole, .mutual = mutual};
    return rounds_run(op, &plan);
}

static void fill_root(const struct rounds *r)
{
    size_t bytes = rounds_piece(r, r->op->count * r->op->width, r->index);
    if (bytes && r->rank == r->op->root)
        rounds_fill(r, r->rank, rounds_slot(r, r->rank, bytes), r->op->in + r->index * r->piece, bytes);
}

static int shared_gather_drain_root(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    size_t bytes = rounds_piece(r, op->count * op->width, r->index);
    bool root = r->rank == op->root;
    int rc = root || !bytes ? 0 : rounds_await(r, op->root);
    if (rc || !op->out || !bytes)
        return rc;
    const char *from = root ? op->in + r->index * r->piece : rounds_slot(r, op->root, bytes);
    if (op->out + r->index * r->piece != from)
        rounds_take(r, op->out + r->index * r->piece, from, bytes);
    return rc;
}

int shared_broadcast(struct acomm_op *op)
{
    struct rounds_plan plan = {.block = op->count * op->width, .blocks = 1, .one_way = true, .fill = fill_root,
                               .drain = shared_gather_drain_root, .result = op->count * op->width};
    return rounds_run(op, &plan);
}
