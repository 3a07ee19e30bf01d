/* all_to_all of long arrays among ranks of one host that may read each other's memory: each tells where its array lies, reads its
 * blocks there, and leaves when all have read: a copy less than by messages, of which no library copies blocks only once.
 *
 * Who gives up while others may still read its array marks its seat before its caller can write there again. A block read from a
 * rank that bears the mark, or that could not be read, is not believed: its reader says so when ranks meet, and all move their
 * blocks by messages then. */
#include <string.h>

#include "mpi_seats.h"
#include "peer_memory.h"
#include "stream.h"

#define LEAST ((uint64_t)8 << 20) /* bytes of a rank's array; at 1 MiB, in the caches, Intel MPI's messages take less time */
#define CHUNK ((uint64_t)4 << 20) /* between two, deadline, signals and news are looked at */

bool reads_fit(const struct mpi_op *op)
{
    const acomm_call *c = &op->call;
    const struct acomm_group *g = op->group;
    return g->seats && g->seats->reads && c->kind == ACOMM_ALL_TO_ALL && !op->counts && !op->on_device
        && c->count * op->width * (uint64_t)g->size >= LEAST;
}

/* 0 or a code; *lost: what has been read is not to be believed. */
static int read_block(struct mpi_op *op, int rank, uint64_t from, char *to, bool *lost)
{
    struct acomm_group *g = op->group;
    uint64_t bytes = op->call.count * op->width;
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc && !*lost; at += CHUNK) {
        *lost = peer_memory_read(g->seats->processes[rank].pid, from + at, to + at, bytes - at < CHUNK ? bytes - at : CHUNK) != 0;
        rc = mpi_look(op, rank);
    }
    *lost = *lost || seats_left(g, rank);
    return rc;
}

static int read_blocks(struct mpi_op *op, const uint64_t *arrays, bool *lost)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    uint64_t bytes = c->count * op->width, offset = (uint64_t)g->rank * bytes;
    int rc = 0;
    for (int step = 1; step < g->size && !rc; step++) {
        int rank = mpi_neighbour(g, step);
        rc = read_block(op, rank, arrays[rank] + offset, (char *)c->out + (uint64_t)rank * bytes, lost);
    }
    if (!rc)
        stream_long((char *)c->out + offset, (const char *)c->in + offset, bytes, bytes);
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

/* *lost: blocks have to go by messages. */
static int move(struct mpi_op *op, bool *lost)
{
    struct acomm_group *g = op->group;
    uint64_t arrays[g->size];
    int rc;
    char *mine = seats_first(op, sizeof op->call.in, true, &rc);
    if (rc)
        return rc;
    memcpy(mine, &op->call.in, sizeof op->call.in);
    rc = seats_compare(op);
    for (int rank = 0; rank < g->size && !rc; rank++)
        memcpy(&arrays[rank], seats_contents(g, rank, 0), sizeof arrays[rank]);
    rc = rc ? rc : read_blocks(op, arrays, lost);
    return rc ? rc : leave_together(op, lost);
}

int reads_blocks(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    bool lost = false;
    int rc = move(op, &lost);
    if (rc)
        seats_leave(g);
    else
        seats_done(g, 0);
    return !rc && lost ? mpi_blocks(op) : rc;
}
