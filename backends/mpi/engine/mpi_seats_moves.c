/* Collectives over memory that the ranks of one host share (mpi_seats.h). Nothing of a caller's is written before all records have
 * been compared, and reductions go in rank order. */
#include <string.h>

#include "mpi_seats.h"
#include "op.h"
#include "reduce.h"
#include "stream.h"

#define WHOLE 8192 /* bytes; beyond that each of more than two ranks reduces a slice, and ranks meet once more */

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

int seats_compared(struct mpi_op *op, const void *data, uint64_t bytes, struct seats_own own, const void **contents)
{
    const acomm_header *headers[op->group->size];
    int rc = seats_exchange(op, data, bytes, own, headers, contents);
    rc = rc ? rc : compare(op, headers);
    ahead_met(op->group);
    return rc;
}

/* Two ranks read as much of each other either way. */
static bool in_slices(const struct mpi_op *op)
{
    bool all = op->call.kind == ACOMM_ALL_REDUCE || op->call.kind == ACOMM_REDUCE;
    return all && op->group->size > 2 && op->call.count * op->width > WHOLE;
}

static struct seats_own own_part(const struct mpi_op *op)
{
    uint64_t bytes = op->call.count * op->width;
    bool taken = op->call.kind == ACOMM_GATHER || (op->call.kind == ACOMM_REDUCE && !in_slices(op));
    if (mpi_divides(op))
        return (struct seats_own){(uint64_t)op->group->rank * bytes, bytes};
    return (struct seats_own){0, taken && op->call.root == op->group->rank ? bytes : 0};
}

/* What an operation in place leaves where it is. */
static void keep(char *to, const char *from, uint64_t bytes)
{
    if (to != from)
        stream_keep(to, from, bytes);
}

static int finish(struct mpi_op *op, const void **contents)
{
    const acomm_call *c = &op->call;
    int size = op->group->size;
    uint64_t bytes = c->count * op->width, offset = mpi_divides(op) ? (uint64_t)op->group->rank * bytes : 0;
    struct reduction reduction = {c->dtype, c->redop, c->factor, size};
    char *out = (char *)c->out;
    if (in_slices(op))
        return mpi_reduce_shared(op, contents);
    if (!out || !bytes || c->kind == ACOMM_BARRIER)
        return 0;
    for (int rank = 0; rank < size; rank++)
        contents[rank] = (const char *)contents[rank] + offset;
    if (mpi_reduces(op))
        reduce_all(&reduction, out, contents, size, c->count);
    else if (c->kind == ACOMM_SCATTER)
        keep(out, contents[c->root], bytes);
    else
        for (int rank = 0; rank < size; rank++)
            keep(out + (uint64_t)rank * bytes, contents[rank], bytes);
    return 0;
}

int seats_collective(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const void *contents[g->size];
    bool gives = op->call.kind != ACOMM_SCATTER || op->call.root == g->rank;
    if (op->call.kind == ACOMM_BROADCAST)
        return seats_broadcast(op);
    int rc = seats_compared(op, gives ? (const void *)op->call.in : NULL, given(op) * op->width, own_part(op), contents);
    rc = rc ? rc : finish(op, contents);
    if (!rc)
        seats_done(g);
    return rc;
}
