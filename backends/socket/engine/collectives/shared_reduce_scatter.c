/* reduce_scatter over the shared segment: in every round each rank puts down a piece of every other rank's block,
 * and reduces the pieces of its own block out of all slots, in rank order. */
#include <string.h>

#include "../reduce.h"
#include "collectives.h"
#include "shared_rounds.h"

#define STACK_RANKS 64

static size_t slot_bytes(const struct rounds *r)
{
    return (size_t)r->piece * (size_t)r->ranks;
}

static void fill(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    char *slot = rounds_slot(r, r->rank, slot_bytes(r));
    for (int rank = 0; rank < r->ranks; rank++) {
        struct span block = op_block(op->send_counts, op->count, rank, op->width);
        size_t bytes = rounds_piece(r, block.bytes, r->index);
        if (bytes && rank != r->rank)
            memcpy(slot + (size_t)rank * r->piece, op->in + block.offset + r->index * r->piece, bytes);
    }
}

static int drain(const struct rounds *r)
{
    const struct acomm_op *op = r->op;
    struct span block = op_block(op->send_counts, op->count, r->rank, op->width);
    size_t bytes = rounds_piece(r, block.bytes, r->index);
    int rc = rounds_await_all(r);
    if (rc || !bytes)
        return rc;
    const void *few[STACK_RANKS];
    const void **in = r->ranks <= STACK_RANKS ? few : group_scratch(op->group, (size_t)r->ranks * sizeof *in);
    for (int rank = 0; rank < r->ranks; rank++)
        in[rank] = rank == r->rank ? op->in + block.offset + r->index * r->piece
                                   : rounds_slot(r, rank, slot_bytes(r)) + (size_t)r->rank * r->piece;
    struct reduction reduction = {.dtype = op->dtype, .redop = op->redop, .factor = op->factor, .ranks = r->ranks};
    reduce_all(&reduction, op->out + r->index * r->piece, in, r->ranks, bytes / op->width);
    return 0;
}

static uint64_t largest_block(const struct acomm_op *op)
{
    uint64_t largest = op->count;
    for (int rank = 0; op->send_counts && rank < op->group->size; rank++)
        if (op->send_counts[rank] > largest)
            largest = op->send_counts[rank];
    return largest * op->width;
}

int shared_reduce_scatter(struct acomm_op *op)
{
    struct rounds_plan plan = {.block = largest_block(op), .blocks = op->group->size, .fill = fill, .drain = drain};
    return rounds_run(op, &plan);
}
