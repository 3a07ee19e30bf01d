/* reduce_scatter over the shared segment: in every round each rank publishes a piece of every other rank's block, and reduces the
 * pieces of its own block out of all slots, in rank order. */
#include "collectives/shared/rounds.h"

/* Blocks of a slot. Of two ranks each publishes only the other's, in the same place, an exchange buffer (shared.h). */
static int shared_reduce_scatter_blocks(int ranks)
{
    return ranks == 2 ? 1 : ranks;
}

static size_t shared_reduce_scatter_slot_bytes(const struct rounds *r)
{
    return (size_t)r->piece * (size_t)shared_reduce_scatter_blocks(r->ranks);
}

static size_t shared_reduce_scatter_place_of(const struct rounds *r, int rank)
{
    return r->ranks == 2 ? 0 : (size_t)rank * r->piece;
}

static void shared_reduce_scatter_fill(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    for (int rank = 0; rank < r->ranks; rank++) {
        struct span block = op_scattered(op, rank);
        size_t bytes = rounds_piece(r, block.bytes, r->index);
        if (bytes && rank != r->rank)
            rounds_fill(r, rank, rounds_given(r, r->rank, rank, shared_reduce_scatter_place_of(r, rank), shared_reduce_scatter_slot_bytes(r)),
                        op->in + block.offset + r->index * r->piece, bytes);
    }
}

static int shared_reduce_scatter_drain(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    struct span block = op_scattered(op, r->rank);
    size_t bytes = rounds_piece(r, block.bytes, r->index);
    int rc = rounds_await_all(r);
    if (rc || !bytes)
        return rc;
    size_t slot = shared_reduce_scatter_slot_bytes(r);
    rounds_reduce(r, op->out + r->index * r->piece, op->in + block.offset + r->index * r->piece,
                  shared_reduce_scatter_place_of(r, r->rank), bytes, slot, NULL);
    return 0;
}

int shared_reduce_scatter(struct acomm_op *op)
{
    uint64_t largest = op_largest(op->send_counts, op->count, op->team->size);
    struct rounds_plan plan = {.block = largest * op->width, .blocks = shared_reduce_scatter_blocks(op->team->size), .result = largest * op->width,
                               .mutual = true, .pairwise = true, .fill = shared_reduce_scatter_fill, .drain = shared_reduce_scatter_drain};
    return rounds_run(op, &plan);
}
