/* all_gather, gather, scatter and all_to_all of long arrays: a block for each rank and from each, straight between the
 * callers' arrays. In waves, so that a large group does not have all its messages under way at once. */
#include "mpi_group.h"
#include "stream.h"

#define WAVE 16 /* ranks whose blocks are under way */

struct span { char *data; uint64_t bytes; };

/* A rank's block in an array of blocks. */
static struct span block(const struct mpi_op *op, const void *array, const uint64_t *counts, int rank)
{
    uint64_t before = 0;
    if (!array)
        return (struct span){NULL, 0};
    for (int i = 0; counts && i < rank; i++)
        before += counts[i];
    if (!counts)
        before = (uint64_t)rank * op->call.count;
    return (struct span){(char *)array + before * op->width, mpi_count(op, counts, rank) * op->width};
}

static struct span outgoing(const struct mpi_op *op, int rank)
{
    const acomm_call *c = &op->call;
    bool here = c->kind == ACOMM_ALL_GATHER || (c->kind == ACOMM_GATHER && rank == c->root);
    if (here)
        return (struct span){(char *)c->in, mpi_count(op, op->call.counts, op->group->rank) * op->width};
    if (c->kind == ACOMM_ALL_TO_ALL || (c->kind == ACOMM_SCATTER && op->group->rank == c->root))
        return block(op, c->in, op->call.counts, rank);
    return (struct span){NULL, 0};
}

static struct span incoming(const struct mpi_op *op, int rank)
{
    const acomm_call *c = &op->call;
    if (c->kind == ACOMM_SCATTER)
        return (struct span){(char *)c->out, rank == c->root ? c->count * op->width : 0};
    if (c->kind == ACOMM_GATHER && op->group->rank != c->root)
        return (struct span){NULL, 0};
    return block(op, c->out, c->kind == ACOMM_ALL_TO_ALL ? op->call.receives : op->call.counts, rank);
}

static void keep_own(const struct mpi_op *op)
{
    if (op->on_device)
        return; /* it is a message of this rank to itself */
    struct span from = outgoing(op, op->group->rank), to = incoming(op, op->group->rank);
    if (from.bytes && to.bytes && from.data != to.data) /* the facade has refused arrays that overlap otherwise */
        stream_long(to.data, from.data, from.bytes, from.bytes);
}

bool mpi_blocks_follow(const struct mpi_op *op)
{
    bool moves = op->call.kind == ACOMM_ALL_GATHER || op->call.kind == ACOMM_GATHER || op->call.kind == ACOMM_SCATTER
        || op->call.kind == ACOMM_ALL_TO_ALL;
    return moves && !op->is_short && !op->on_device && mpi_is_direct(op->group);
}

int mpi_give_blocks(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    int rc = 0;
    for (int step = 1; step < g->size && !rc; step++) {
        int to = mpi_neighbour(g, -step);
        struct span out = outgoing(op, to);
        rc = out.bytes ? mpi_give(op, out.data, out.bytes, to) : 0;
    }
    return rc;
}

int mpi_blocks(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    int begin = op->on_device ? 0 : 1;
    for (int first = begin; first < g->size; first += WAVE) {
        int rc = 0, end = first + WAVE < g->size ? first + WAVE : g->size;
        for (int step = first; step < end && !rc; step++) {
            int from = mpi_neighbour(g, step), to = mpi_neighbour(g, -step);
            struct span in = incoming(op, from), out = outgoing(op, to);
            if (!step && in.data == out.data)
                continue; /* it lies there already */
            rc = in.bytes ? mpi_take(op, in.data, in.bytes, from) : 0;
            if (!rc && out.bytes && !op->follows)
                rc = mpi_give(op, out.data, out.bytes, to);
        }
        if (first == begin && !rc)
            keep_own(op);
        int waited = mpi_wait(op);
        if (rc || waited)
            return rc ? rc : waited;
    }
    return 0;
}
