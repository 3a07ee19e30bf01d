/* Long arrays among ranks of one host that may read each other's memory: each has told where others read (mpi_ways.c), reads its
 * blocks there, and leaves when all have read: a copy less than through memory that they share.
 *
 * Who gives up while others may still read its array marks its seat before its caller can write there again. A block read from a
 * rank that bears the mark, or that could not be read, is not believed: its reader says so when ranks meet, and all move their
 * blocks by messages then. */
#include <string.h>

#include "mpi_seats.h"
#include "peer_memory.h"
#include "stream.h"

#define CHUNK ((uint64_t)4 << 20) /* between two, deadline, signals and news are looked at */

/* 0 or a code; *lost: what has been read is not to be believed. */
static int read_block(struct mpi_op *op, int rank, uint64_t from, char *to, bool *lost)
{
    struct acomm_group *g = op->group;
    uint64_t bytes = op->call.count * op->width;
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc && !*lost; at += CHUNK) {
        *lost = peer_memory_read(g->seats->processes[rank], from + at, to + at, bytes - at < CHUNK ? bytes - at : CHUNK,
                                 false) != 0;
        rc = mpi_look(op, rank);
    }
    *lost = *lost || seats_left(g, rank);
    return rc;
}

/* Whether an all_gather's blocks are read where it puts them together: the longer array more often lies on huge pages (NumPy asks for
 * them from 4 MiB on), which the kernel reads in half the time. Longer blocks lie on such pages themselves, and are copied past the
 * caches. */
static bool joined_first(const struct mpi_op *op)
{
    return op->call.kind == ACOMM_ALL_GATHER && op->call.count * op->width < STREAM_LONG;
}

uint64_t reads_array(const struct mpi_op *op)
{
    const acomm_call *c = &op->call;
    return (uint64_t)(uintptr_t)(joined_first(op) ? (char *)c->out + (uint64_t)op->group->rank * c->count * op->width : c->in);
}

/* All have their own blocks where others read them. */
static int meet_copied(struct mpi_op *op)
{
    int rc;
    seats_next(op, 0, false, &rc);
    return rc ? rc : seats_meet(op);
}

/* Whether this rank gets a block of that one. */
static bool gets(const struct mpi_op *op, int rank)
{
    int kind = op->call.kind;
    bool of_root = kind == ACOMM_BROADCAST || kind == ACOMM_SCATTER;
    return of_root ? rank == op->call.root : kind != ACOMM_GATHER || op->group->rank == op->call.root;
}

static int read_blocks(struct mpi_op *op, const uint64_t *arrays, bool *lost)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    bool joins = c->kind == ACOMM_ALL_GATHER || c->kind == ACOMM_GATHER || c->kind == ACOMM_ALL_TO_ALL;
    uint64_t bytes = c->count * op->width, offset = mpi_divides(op) ? (uint64_t)g->rank * bytes : 0;
    int rc = 0;
    bool first = joined_first(op);
    for (int step = 0; step < g->size && !rc; step++) {
        int rank = mpi_neighbour(g, first ? step : step + 1);
        char *to = (char *)c->out + (joins ? (uint64_t)rank * bytes : 0);
        if (!gets(op, rank))
            continue;
        if (rank != g->rank)
            rc = read_block(op, rank, arrays[rank] + offset, to, lost);
        else if (to != (char *)c->in + offset)
            stream_long(to, (char *)c->in + offset, bytes, bytes);
        if (rank == g->rank && first)
            rc = meet_copied(op);
    }
    return rc;
}

/* All have read what they need, or say that they could not: *lost then. */
static int leave_together(struct mpi_op *op, bool *lost)
{
    struct acomm_group *g = op->group;
    int rc = 0;
    char *mine = seats_next(op, 1, true, &rc);
    if (rc)
        return rc;
    *mine = *lost;
    rc = seats_meet(op);
    for (int rank = 0; rank < g->size && !rc; rank++)
        *lost = *lost || *seats_contents(g, rank, 0);
    return rc;
}

int reads_blocks(struct mpi_op *op, const uint64_t *arrays, bool *lost)
{
    int rc = read_blocks(op, arrays, lost);
    rc = rc ? rc : leave_together(op, lost);
    if (!rc)
        seats_done(op->group, 0);
    return rc;
}
