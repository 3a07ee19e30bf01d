/* Collectives over memory that the ranks of one host share (mpi_seats.h). Nothing of a caller's is written before all records have
 * been compared, and reductions go in rank order. */
#include <string.h>

#include "mpi_seats.h"
#include "op.h"
#include "reduce.h"
#include "stream.h"

#define WHOLE 8192 /* bytes; beyond that each rank reduces a slice, and ranks meet once more */

/* Elements that a giving rank has. */
static uint64_t given(const struct mpi_op *op)
{
    return op->call.kind == ACOMM_BARRIER ? 0 : mpi_divides(op) ? mpi_total(op, NULL) : op->call.count;
}

bool seats_fit(const struct mpi_op *op)
{
    return op->group->seats && !op->counts && !op->on_device && given(op) * op->width <= SEATS_MOST;
}

static int compare(struct mpi_op *op, const acomm_header **headers)
{
    struct acomm_group *g = op->group;
    for (int odd = 1; odd < g->size && g->check; odd++) /* every rank finds the same two */
        if (!op_agrees(headers[0], headers[odd]))
            return mpi_fail(g, &(acomm_failure){.code = ACOMM_MISMATCH, .origin = 0, .culprit = odd, .sequence = op->sequence,
                                                .mine = *headers[0], .theirs = *headers[odd]});
    return 0;
}

static int finish(struct mpi_op *op, const void **contents)
{
    const acomm_call *c = &op->call;
    int size = op->group->size;
    uint64_t bytes = c->count * op->width, offset = mpi_divides(op) ? (uint64_t)op->group->rank * bytes : 0;
    struct reduction reduction = {c->dtype, c->redop, c->factor, size};
    char *out = (char *)c->out;
    if (bytes > WHOLE && (c->kind == ACOMM_ALL_REDUCE || c->kind == ACOMM_REDUCE))
        return mpi_reduce_shared(op, contents);
    if (!out || !bytes || c->kind == ACOMM_BARRIER)
        return 0;
    for (int rank = 0; rank < size; rank++)
        contents[rank] = (const char *)contents[rank] + offset;
    if (mpi_reduces(op))
        reduce_all(&reduction, out, contents, size, c->count);
    else if (c->kind == ACOMM_SCATTER)
        stream_keep(out, contents[c->root], bytes);
    else
        for (int rank = 0; rank < size; rank++)
            stream_keep(out + (uint64_t)rank * bytes, contents[rank], bytes);
    return 0;
}

int seats_collective(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const void *contents[g->size];
    const acomm_header *headers[g->size];
    bool gives = op->call.kind != ACOMM_SCATTER || op->call.root == g->rank;
    if (op->call.kind == ACOMM_BROADCAST)
        return seats_broadcast(op);
    int rc = seats_exchange(op, gives ? (const void *)op->call.in : NULL, given(op) * op->width, headers, contents);
    rc = rc ? rc : compare(op, headers);
    ahead_met(g);
    rc = rc ? rc : finish(op, contents);
    if (!rc)
        seats_done(g);
    return rc;
}
