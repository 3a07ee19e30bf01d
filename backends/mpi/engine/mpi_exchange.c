/* Every rank's record to every rank: what it calls, with the contents where they are short. Bruck's concatenation (Bruck
 * and others, 1997): in round k everybody passes on the 2^k records that it has. Nothing of a caller's is written before all
 * records have been compared, and reductions go in rank order. */
#include <string.h>

#include "mpi_group.h"
#include "op.h"
#include "reduce.h"

#define SHORT_ALL 32768 /* contents of all records together */

#define FULL(bytes) (((bytes) + 7) & ~(uint64_t)7)

size_t mpi_record_bytes(const struct acomm_group *g)
{
    size_t contents = SHORT_ALL / (size_t)g->size;
    return sizeof(struct mpi_record) + FULL(contents < g->mpi->short_bytes ? contents : g->mpi->short_bytes);
}

uint64_t mpi_total(const struct mpi_op *op, const uint64_t *counts)
{
    uint64_t total = counts ? 0 : op->call.count * (uint64_t)op->group->size;
    for (int i = 0; counts && i < op->group->size; i++)
        total += counts[i];
    return total;
}

/* Elements that a giving rank has. */
static uint64_t given(const struct mpi_op *op)
{
    int kind = op->call.kind;
    bool divided = kind == ACOMM_SCATTER || kind == ACOMM_REDUCE_SCATTER || kind == ACOMM_ALL_TO_ALL;
    return kind == ACOMM_BARRIER ? 0 : divided ? mpi_total(op, op->counts) : op->call.count;
}

bool mpi_is_short(const struct mpi_op *op)
{
    uint64_t bytes = given(op) * op->width;
    uint64_t most = mpi_reduces(op) ? op->group->mpi->short_bytes : op->group->mpi->short_moved;
    return !op->counts && !op->on_device && bytes <= most && bytes * (uint64_t)op->group->size <= SHORT_ALL;
}

static bool gives(const struct mpi_op *op)
{
    bool rooted = op->call.kind == ACOMM_BROADCAST || op->call.kind == ACOMM_SCATTER;
    return !rooted || op->call.root == op->group->rank;
}

uint64_t mpi_write_record(const struct mpi_op *op, char *to, bool ahead)
{
    struct mpi_record *mine = (struct mpi_record *)to;
    mine->bytes = op->is_short && gives(op) ? (uint32_t)(given(op) * op->width) : 0;
    mine->before = op->group->before;
    mine->ahead = ahead;
    mpi_header(op, &mine->header);
    if (mine->bytes)
        memcpy(mine + 1, (const void *)op->call.in, mine->bytes);
    return sizeof *mine + FULL((uint64_t)mine->bytes);
}

bool mpi_room_for_records(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    if (mpi_grow(&g->records, &g->records_room, (size_t)g->size * g->record_bytes))
        return true;
    mpi_fail_op(op, ACOMM_RESOURCE, -1, "no memory for records");
    return false;
}

static uint64_t length(const char *records, int number)
{
    uint64_t bytes = 0;
    while (number--)
        bytes += sizeof(struct mpi_record) + FULL((uint64_t)((const struct mpi_record *)(records + bytes))->bytes);
    return bytes;
}

/* All records, from this rank's own on. */
static int concatenate(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    char *all = g->records;
    uint64_t have = mpi_write_record(op, all, false);
    int rc = ahead_note(op, (const struct mpi_record *)all);
    for (int distance = 1; distance < g->size && !rc; distance *= 2) {
        int number = distance < g->size - distance ? distance : g->size - distance, peer = mpi_neighbour(g, distance);
        const struct mpi_record *theirs = (const struct mpi_record *)(all + have);
        rc = mpi_take(op, all + have, (uint64_t)number * g->record_bytes, peer);
        if (!rc)
            rc = mpi_give(op, all, length(all, number), mpi_neighbour(g, -distance));
        int waited = mpi_wait(op);
        rc = rc ? rc : waited;
        if (!rc && g->check && (theirs->ahead || theirs->header.sequence != op->sequence))
            rc = ahead_clash(op, theirs, peer);
        if (!rc)
            have += length(all + have, number);
    }
    return rc;
}

/* All agree, but on the broadcast before? */
static int compare_before(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const char *at = g->records;
    for (int i = 0; i < g->size; i++, at += length(at, 1)) {
        const struct mpi_record *theirs = (const struct mpi_record *)at;
        if (theirs->before != g->before)
            return ahead_clash(op, theirs, mpi_neighbour(g, i));
    }
    return 0;
}

/* The record of each rank, in rank order, as contents. */
static int compare(struct mpi_op *op, const void **contents)
{
    struct acomm_group *g = op->group;
    const char *at = g->records;
    const acomm_header *mine = &((const struct mpi_record *)at)->header, *first = NULL, *other = NULL;
    int odd = -1, reference = -1;
    const acomm_header *headers[g->size];
    for (int i = 0; i < g->size; i++) {
        int rank = mpi_neighbour(g, i);
        headers[rank] = &((const struct mpi_record *)at)->header;
        contents[rank] = at + sizeof(struct mpi_record);
        at += length(at, 1);
    }
    for (int rank = 0; rank < g->size && g->check; rank++) { /* every rank finds the same two */
        if (!first)
            first = headers[rank], reference = rank;
        else if (!other && !op_agrees(first, headers[rank]))
            other = headers[rank], odd = rank;
    }
    if (!other)
        return g->check ? compare_before(op) : 0;
    return mpi_fail(g, &(acomm_failure){.code = ACOMM_MISMATCH, .origin = reference, .culprit = odd, .sequence = mine->sequence,
                                        .mine = *first, .theirs = *other});
}

int mpi_differ(struct acomm_group *g, const acomm_header *mine, const acomm_header *theirs, int peer)
{
    return mpi_fail(g, &(acomm_failure){.code = ACOMM_MISMATCH, .origin = g->rank, .culprit = peer, .sequence = mine->sequence,
                                        .mine = *mine, .theirs = *theirs});
}

static void join(const struct mpi_op *op, const void **contents, uint64_t offset, uint64_t bytes)
{
    for (int rank = 0; rank < op->group->size; rank++)
        memcpy((char *)op->call.out + (uint64_t)rank * bytes, (const char *)contents[rank] + offset, bytes);
}

static void finish(const struct mpi_op *op, const void **contents)
{
    const acomm_call *c = &op->call;
    int size = op->group->size, me = op->group->rank;
    uint64_t bytes = c->count * op->width;
    struct reduction reduction = {c->dtype, c->redop, c->factor, size};
    if (!c->out || !bytes)
        return;
    if (c->kind == ACOMM_REDUCE_SCATTER)
        for (int rank = 0; rank < size; rank++)
            contents[rank] = (const char *)contents[rank] + (uint64_t)me * bytes;
    if (mpi_reduces(op))
        reduce_all(&reduction, (void *)c->out, contents, size, c->count);
    else if (c->kind == ACOMM_BROADCAST)
        memcpy((void *)c->out, contents[c->root], bytes);
    else if (c->kind == ACOMM_SCATTER)
        memcpy((void *)c->out, (const char *)contents[c->root] + (uint64_t)me * bytes, bytes);
    else
        join(op, contents, c->kind == ACOMM_ALL_TO_ALL ? (uint64_t)me * bytes : 0, bytes);
}

int mpi_exchange(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const void *contents[g->size];
    int rc = mpi_room_for_records(op) ? concatenate(op) : ACOMM_RESOURCE;
    if (!rc)
        rc = compare(op, contents);
    op->tells = false;
    ahead_met(g);
    if (!rc && op->is_short && op->call.kind != ACOMM_BARRIER)
        finish(op, contents);
    return rc;
}
