/* Which way a collective goes. Every rank decides alike: by the group, and by what headers compare. */
#include <string.h>

#include "mpi_group.h"
#include "mpi_seats.h"
#include "reduce.h"

/* A group of one rank. */
static int alone(struct mpi_op *op)
{
    const acomm_call *c = &op->call;
    uint64_t count = c->kind == ACOMM_BARRIER ? 0 : mpi_total(op, op->call.counts);
    const void *input = (const void *)c->in;
    struct reduction reduction = {c->dtype, c->redop, c->factor, 1};
    if (count && mpi_reduces(op))
        reduce_all(&reduction, (void *)c->out, &input, acomm_operations[c->kind].reduces != ACOMM_EXCLUSIVE, count);
    else if (count && c->in != c->out)
        memmove((void *)c->out, input, count * op->width);
    return 0;
}

/* By the library, piece by piece, as MPI's counts are ints. */
static int broadcast(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    uint64_t bytes = c->count * op->width, piece = mpi_piece(g->mpi, UINT64_MAX);
    if (g->rank == c->root && c->in != c->out)
        memcpy((void *)c->out, (const void *)c->in, bytes);
    for (uint64_t at = 0; at < bytes; at += piece) {
        int part = (int)(bytes - at < piece ? bytes - at : piece);
        void *request = mpi_request(op);
        int rc = request ? g->mpi->Ibcast((char *)c->out + at, part, g->mpi->byte, c->root, g->comm, request) : 0;
        if (!request || rc)
            return request ? mpi_fail_library(op, rc, -1) : mpi_fail_op(op, ACOMM_RESOURCE, -1, "no memory for requests");
        rc = mpi_wait(op);
        if (rc)
            return rc;
    }
    return 0;
}

/* The same by messages along a binomial tree. Between devices: libraries take a device's memory in messages everywhere, in
 * collectives that do not block not (Open MPI). And in small groups, where MPI_Ibcast costs more. */
int mpi_tree(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    uint64_t bytes = c->count * op->width;
    int place = g->rank - c->root + (g->rank < c->root ? g->size : 0), distance = 1, rc = 0, waited = 0;
    while (distance < g->size && !(place & distance))
        distance *= 2;
    if (place) {
        rc = mpi_take(op, (void *)c->out, bytes, mpi_neighbour(g, -distance));
        waited = mpi_wait(op);
    } else if (c->in != c->out && !op->on_device) {
        memcpy((void *)c->out, (const void *)c->in, bytes);
    } else if (c->in != c->out) { /* of the root to itself */
        rc = mpi_take(op, (void *)c->out, bytes, g->rank);
        rc = rc ? rc : mpi_give(op, (const void *)c->in, bytes, g->rank);
    }
    while (!rc && !waited && (distance /= 2))
        if (place + distance < g->size)
            rc = mpi_give(op, (const void *)(place ? c->out : c->in), bytes, mpi_neighbour(g, distance));
    if (!waited)
        waited = mpi_wait(op);
    return rc ? rc : waited;
}

static int move_on_device(struct mpi_op *op)
{
    int rc = op->group->size > 1 && op->group->check ? mpi_exchange(op) : 0;
    if (rc)
        return rc;
    return op->call.kind == ACOMM_BROADCAST ? mpi_tree(op) : mpi_blocks(op);
}

int mpi_move_long(struct mpi_op *op)
{
    if (mpi_reduces(op))
        return mpi_reduction(op);
    if (op->call.kind == ACOMM_BROADCAST)
        return op->group->size <= MPI_AHEAD_RANKS ? mpi_tree(op) : broadcast(op);
    return mpi_blocks(op);
}

int mpi_collective(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    if (op->on_device)
        return move_on_device(op);
    if (g->size == 1)
        return alone(op);
    bool scans = acomm_operations[op->call.kind].reduces > ACOMM_OF_ALL; /* in a chain, whatever the bytes */
    if (!scans && pieces_fit(op))
        return pieces_collective(op);
    if (!scans && ways_fit(op))
        return ways_collective(op);
    op->is_short = !scans && mpi_is_short(op);
    if (!scans && ahead_fits(op))
        return ahead_broadcast(op);
    int rc = op->is_short || g->check ? mpi_exchange(op) : 0;
    if (rc || op->is_short)
        return rc;
    rc = mpi_move_long(op);
    int waited = mpi_wait(op); /* for this rank's record to be sent, where nothing else had to be */
    return rc ? rc : waited;
}
