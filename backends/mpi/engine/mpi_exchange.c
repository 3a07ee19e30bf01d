/* Every rank's record to every rank: what it calls, with the contents where they are short. Nothing of a caller's is written before
 * all records have been compared, and reductions go in rank order. */
#include <string.h>

#include "mpi_group.h"
#include "op.h"
#include "reduce.h"

#define SHORT_ALL 32768 /* contents of all records together */

size_t mpi_record_bytes(const struct acomm_group *g)
{
    size_t contents = SHORT_ALL / (size_t)g->size;
    contents = contents < g->mpi->short_bytes ? contents : g->mpi->short_bytes;
    return sizeof(struct mpi_record) + ((contents + 63) & ~(size_t)63);
}

uint64_t mpi_total(const struct mpi_op *op, const uint64_t *counts)
{
    uint64_t total = counts ? 0 : op->call.count * (uint64_t)op->group->size;
    for (int i = 0; counts && i < op->group->size; i++)
        total += counts[i];
    return total;
}

bool mpi_divides(const struct mpi_op *op)
{
    int kind = op->call.kind;
    return kind == ACOMM_SCATTER || kind == ACOMM_REDUCE_SCATTER || kind == ACOMM_ALL_TO_ALL;
}

uint64_t mpi_given(const struct mpi_op *op)
{
    if (op->call.kind == ACOMM_BARRIER)
        return 0;
    return mpi_divides(op) && !mpi_is_direct(op->group) ? mpi_total(op, NULL) : op->call.count;
}

bool mpi_is_short(const struct mpi_op *op)
{
    if (op->call.counts || op->on_device)
        return false;
    uint64_t bytes = mpi_given(op) * op->width;
    uint64_t most = mpi_reduces(op) ? op->group->mpi->short_bytes : op->group->mpi->short_moved;
    return bytes <= most && bytes * (uint64_t)op->group->size <= SHORT_ALL;
}

/* All agree, but on the broadcast before? */
static int compare_before(struct mpi_op *op, const struct mpi_record **records)
{
    struct acomm_group *g = op->group;
    for (int rank = 0; rank < g->size; rank++)
        if (records[rank]->before != g->before)
            return ahead_clash(op, records[rank], rank);
    return 0;
}

static int compare(struct mpi_op *op, const struct mpi_record **records)
{
    struct acomm_group *g = op->group;
    int odd = -1;
    for (int rank = 1; rank < g->size && odd < 0; rank++) /* every rank finds the same two */
        if (!op_agrees(&records[0]->header, &records[rank]->header))
            odd = rank;
    if (odd < 0)
        return compare_before(op, records);
    return mpi_fail(g, &(acomm_failure){.code = ACOMM_MISMATCH, .origin = 0, .culprit = odd, .sequence = op->sequence,
                                        .mine = records[0]->header, .theirs = records[odd]->header});
}

int mpi_differ(struct acomm_group *g, const acomm_header *mine, const acomm_header *theirs, int peer)
{
    return mpi_fail(g, &(acomm_failure){.code = ACOMM_MISMATCH, .origin = g->rank, .culprit = peer, .sequence = mine->sequence,
                                        .mine = *mine, .theirs = *theirs});
}

static void join(const struct mpi_op *op, const void **contents, uint64_t offset, uint64_t bytes)
{
    for (int rank = 0; rank < op->group->size; rank++) {
        char *to = (char *)op->call.out + (uint64_t)rank * bytes;
        const char *from = (const char *)contents[rank] + offset;
        if (to != from)
            memcpy(to, from, bytes);
    }
}

static void finish(const struct mpi_op *op, const struct mpi_record **records)
{
    const acomm_call *c = &op->call;
    int size = op->group->size;
    uint64_t bytes = c->count * op->width;
    uint64_t offset = mpi_divides(op) && !mpi_is_direct(op->group) ? (uint64_t)op->group->rank * bytes : 0;
    struct reduction reduction = {c->dtype, c->redop, c->factor, size};
    const void *contents[size];
    if (!c->out || !bytes)
        return;
    for (int rank = 0; rank < size; rank++)
        contents[rank] = mpi_contents(op, records[rank], rank);
    if (mpi_reduces(op)) {
        for (int rank = 0; rank < size; rank++)
            contents[rank] = (const char *)contents[rank] + offset;
        reduce_all(&reduction, (void *)c->out, contents, size, c->count);
    } else if (c->kind != ACOMM_BROADCAST && c->kind != ACOMM_SCATTER) {
        join(op, contents, offset, bytes);
    } else if ((const char *)contents[c->root] + offset != (const char *)c->out) {
        memcpy((void *)c->out, (const char *)contents[c->root] + offset, bytes);
    }
}

int mpi_exchange(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const struct mpi_record *records[g->size];
    int rc = mpi_records(op, records);
    if (!rc && g->check)
        rc = compare(op, records);
    op->tells = false;
    ahead_met(g);
    if (rc) {
        mpi_take_back(g);
        return rc;
    }
    if (!op->is_short)
        return 0; /* what has been sent along ends with the rest */
    rc = mpi_rest(op, records);
    int waited = mpi_wait(op);
    if (!rc && !waited && op->call.kind != ACOMM_BARRIER)
        finish(op, records);
    return rc ? rc : waited;
}
