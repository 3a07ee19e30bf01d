/* Which way a collective goes. Every rank decides alike: by the group, and by what headers compare. */
#include <string.h>

#include "mpi_group.h"
#include "reduce.h"

/* A group of one rank. */
static int alone(struct mpi_op *op)
{
    const acomm_call *c = &op->call;
    uint64_t count = c->kind == ACOMM_BARRIER ? 0 : mpi_total(op, op->counts);
    const void *input = (const void *)c->in;
    struct reduction reduction = {c->dtype, c->redop, c->factor, 1};
    if (count && mpi_reduces(op))
        reduce_all(&reduction, (void *)c->out, &input, 1, count);
    else if (count && c->in != c->out)
        memmove((void *)c->out, input, count * op->width);
    return 0;
}

/* Piece by piece, as MPI's counts are ints. */
static int broadcast(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    uint64_t bytes = c->count * op->width;
    if (g->rank == c->root && c->in != c->out)
        memcpy((void *)c->out, (const void *)c->in, bytes);
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        int part = (int)(bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
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

int mpi_collective(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    if (g->size == 1)
        return alone(op);
    op->is_short = mpi_is_short(op);
    int rc = op->is_short || g->check ? mpi_exchange(op) : 0;
    if (rc || op->is_short)
        return rc;
    if (mpi_reduces(op))
        return mpi_reduction(op);
    return op->call.kind == ACOMM_BROADCAST ? broadcast(op) : mpi_blocks(op);
}
