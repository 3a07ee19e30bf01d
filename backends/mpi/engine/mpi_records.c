/* How every rank's record gets to every rank: what it calls, with the contents where they are short.
 *
 * Few ranks send theirs to each other, which takes one wait; of an array of blocks only the one that is the other's. Long blocks are
 * sent along: they are received after the comparison. More ranks: Bruck's concatenation (Bruck and others, 1997): in round k
 * everybody passes on the 2^k records that it has. */
#include <string.h>

#include "mpi_group.h"

#define DIRECT_RANKS 8

#define FULL(bytes) (((bytes) + 7) & ~(uint64_t)7)

bool mpi_is_direct(const struct acomm_group *g)
{
    return g->size <= DIRECT_RANKS;
}

static bool gives(const struct mpi_op *op)
{
    bool rooted = op->call.kind == ACOMM_BROADCAST || op->call.kind == ACOMM_SCATTER;
    return !rooted || op->call.root == op->group->rank;
}

/* Where the contents for a rank lie. */
static const char *source(const struct mpi_op *op, int peer)
{
    bool divided = mpi_divides(op) && mpi_is_direct(op->group);
    return (const char *)op->call.in + (divided ? (uint64_t)peer * op->call.count * op->width : 0);
}

uint64_t mpi_write_record(const struct mpi_op *op, char *to, int peer, bool ahead)
{
    struct mpi_record *mine = (struct mpi_record *)to;
    uint64_t bytes = op->is_short && gives(op) ? mpi_given(op) * op->width : 0, first = bytes;
    if (mpi_is_direct(op->group) && first > op->group->mpi->first)
        first = op->group->mpi->first;
    mine->bytes = (uint32_t)bytes;
    mine->before = op->group->before;
    mine->ahead = ahead;
    mpi_header(op, &mine->header);
    if (first)
        memcpy(mine + 1, source(op, peer), first);
    return sizeof *mine + FULL(first);
}

bool mpi_room_for_records(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    if (mpi_grow(&g->records, &g->records_room, 2 * (size_t)g->size * g->record_bytes))
        return true;
    mpi_fail_op(op, ACOMM_RESOURCE, -1, "no memory for records");
    return false;
}

/* ---- Bruck's ---- */

static uint64_t length(const char *records, int number)
{
    uint64_t bytes = 0;
    while (number--)
        bytes += sizeof(struct mpi_record) + FULL((uint64_t)((const struct mpi_record *)(records + bytes))->bytes);
    return bytes;
}

/* From this rank's own on. */
static int concatenate(struct mpi_op *op, const struct mpi_record **records)
{
    struct acomm_group *g = op->group;
    char *all = g->records;
    uint64_t have = mpi_write_record(op, all, 0, false);
    int rc = ahead_note(op, (const struct mpi_record *)all);
    for (int distance = 1; distance < g->size && !rc; distance *= 2) {
        int number = distance < g->size - distance ? distance : g->size - distance, peer = mpi_neighbour(g, distance);
        const struct mpi_record *theirs = (const struct mpi_record *)(all + have);
        rc = mpi_take_record(op, all + have, (uint64_t)number * g->record_bytes, peer);
        if (!rc)
            rc = mpi_give_record(op, all, length(all, number), mpi_neighbour(g, -distance));
        int waited = mpi_wait(op);
        rc = rc ? rc : waited;
        if (!rc && g->check && (theirs->ahead || theirs->header.sequence != op->sequence))
            rc = ahead_clash(op, theirs, peer);
        if (!rc)
            have += length(all + have, number);
    }
    for (int i = 0; i < g->size && !rc; i++, all += length(all, 1))
        records[mpi_neighbour(g, i)] = (const struct mpi_record *)all;
    return rc;
}

/* ---- to each ---- */

/* The records, short contents or long blocks to the others. */
static int give_all(struct mpi_op *op, char *mine, uint64_t bytes)
{
    struct acomm_group *g = op->group;
    uint64_t first = bytes - sizeof(struct mpi_record), whole = ((struct mpi_record *)mine)->bytes;
    bool each = mpi_divides(op) && whole;
    int rc = 0;
    for (int step = 1; step < g->size && !rc; step++) {
        int to = mpi_neighbour(g, -step);
        char *record = each ? mine + (size_t)(step - 1) * g->record_bytes : mine;
        if (each)
            mpi_write_record(op, record, to, false);
        rc = mpi_give_record(op, record, bytes, to);
        if (!rc && whole > first)
            rc = mpi_give(op, source(op, to) + first, whole - first, to);
    }
    op->follows = !rc && g->check && mpi_blocks_follow(op);
    return op->follows ? mpi_give_blocks(op) : rc;
}

static int exchange(struct mpi_op *op, const struct mpi_record **records)
{
    struct acomm_group *g = op->group;
    char *mine = g->records + (size_t)g->size * g->record_bytes;
    uint64_t bytes = mpi_write_record(op, mine, g->rank, false);
    int rc = ahead_note(op, (const struct mpi_record *)mine);
    for (int rank = 0; rank < g->size; rank++)
        records[rank] = (const struct mpi_record *)(rank == g->rank ? mine : g->records + (size_t)rank * g->record_bytes);
    for (int step = 1; step < g->size && !rc; step++) {
        int from = mpi_neighbour(g, step);
        rc = mpi_take_record(op, (char *)records[from], g->record_bytes, from);
    }
    if (!rc)
        rc = give_all(op, mine, bytes);
    int waited = mpi_wait_for(op, rc ? 0 : g->size - 1);
    rc = rc ? rc : waited;
    for (int rank = 0; rank < g->size && !rc && g->check; rank++)
        if (records[rank]->ahead || records[rank]->header.sequence != op->sequence)
            rc = ahead_clash(op, records[rank], rank);
    return rc;
}

int mpi_records(struct mpi_op *op, const struct mpi_record **all)
{
    if (!mpi_room_for_records(op))
        return ACOMM_RESOURCE;
    return mpi_is_direct(op->group) ? exchange(op, all) : concatenate(op, all);
}

int mpi_rest(struct mpi_op *op, const struct mpi_record **all)
{
    struct acomm_group *g = op->group;
    uint64_t first = g->mpi->first, given = mpi_given(op) * op->width;
    bool rooted = op->call.kind == ACOMM_BROADCAST || op->call.kind == ACOMM_SCATTER;
    int rc = 0;
    for (int step = 1; step < g->size && !rc && op->is_short && mpi_is_direct(g) && given > first; step++) {
        int from = mpi_neighbour(g, step);
        if (!rooted || from == op->call.root)
            rc = mpi_take(op, (char *)(all[from] + 1) + first, given - first, from);
    }
    return rc;
}

const void *mpi_contents(const struct mpi_op *op, const struct mpi_record *record, int rank)
{
    return rank == op->group->rank && gives(op) ? source(op, rank) : (const void *)(record + 1);
}
