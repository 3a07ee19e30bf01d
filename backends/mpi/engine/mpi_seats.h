/* Memory that the ranks of a group share where all are on one host: records of what they call, and contents, lie there instead of
 * in messages, which would copy them once for each who takes them.
 *
 * Each rank has a seat, in which it alone writes: SEATS_SLOTS slots for records, and rings for contents. An operation takes one
 * round or several, counted alike by all. A rank publishes a round by a stamp, and says up to which one it needs nothing any more
 * of the others' seats; that is when they write there again. The root of a broadcast, which has nothing to wait for, may so be
 * SEATS_SLOTS rounds ahead; it compares what the others called when it meets their rounds.
 * Between two ranks of whom each gives and takes, contents change hands (shared.h): lines that this core has just read from
 * the other one are the cheapest to write. There is a cell in each seat, in which both write in turn: first each in its own, then in
 * the one that it has read last, which nobody else needs any more, so that nobody waits for it.
 * Failures, farewells, the deadline and signals are seen as in every other wait (mpi_turn), and told by MPI. */
#ifndef MPI_SEATS_H
#define MPI_SEATS_H
#include "choice.h"
#include "mpi_group.h"
#include "peer_memory.h"
#include "stream.h"

#define SEATS_SLOTS 32
#define SEATS_MOST ((uint64_t)512 << 10) /* bytes of a rank's contents in one round */
#define SEATS_RANKS MPI_AHEAD_RANKS        /* among more, differences between roots that are ahead are not told (mpi_ahead.c) */

/* Trials of the ways of long arrays (mpi_ways.c), alike on all ranks, and the last call, of which they have not been told yet. */
struct mpi_ways {
    struct choice choices[ACOMM_KINDS][CHOICE_CLASSES];
    struct choice *last;
    uint64_t bytes, begin, end; /* begin, end: ns, this rank's */
};

struct mpi_seats {
    char *base;
    size_t bytes;
    uint64_t round, first, done;  /* this rank's last; the running operation's first; up to which it needs nothing any more */
    uint64_t everyone;            /* up to which nobody does, as last seen */
    uint64_t at[2];               /* where the next contents begin, short and long, in rings that never end: alike on all */
    uint64_t starts[SEATS_SLOTS]; /* of the contents of each round */
    uint64_t lengths[SEATS_SLOTS];
    uint64_t celled;              /* rounds whose contents lay in cells, alike on both ranks, */
    uint64_t cells[SEATS_SLOTS];  /* and of each round the number of it among these, or 0 */
    struct stream_way stores[SEATS_RANKS]; /* by which contents are written, by who reads them (seats_fill) */
    bool reads;                   /* ranks may read each other's memory, too (mpi_reads.c) */
    int32_t processes[SEATS_RANKS];
    struct mpi_ways ways;         /* of long arrays */
    struct mpi_lanes *lanes;      /* of messages, behind the seats (mpi_lanes.h) */
};

/* An operation's first round: where this rank writes that many bytes, alike on all ranks. `gives`: it does, and waits for room.
 * NULL, *rc: it failed. */
char *seats_first(struct mpi_op *op, uint64_t bytes, bool gives, int *rc);
/* It is published; all have come, and have called the same. 0 or a code. */
int seats_compare(struct mpi_op *op);
/* The next round, in the same way. */
char *seats_next(struct mpi_op *op, uint64_t bytes, bool gives, int *rc);
void seats_publish(struct acomm_group *g);
/* A rank has published it too; all have, and this rank. */
int seats_await(struct mpi_op *op, int rank);
int seats_meet(struct mpi_op *op);
/* Where a rank's contents lie, of this round or so many before. */
char *seats_contents(const struct acomm_group *g, int rank, uint64_t before);
/* Copies to this rank's, by stores that suit rank `reader`, or this rank: all others. One that shares the core finds in its caches
 * what one on a far core has to fetch. */
void seats_fill(struct acomm_group *g, int reader, char *to, const void *from, uint64_t bytes);
/* Nothing of this round, or so many before, is needed any more, nor of earlier ones. */
void seats_done(struct acomm_group *g, uint64_t before);
/* It has failed, and its arrays are the caller's again: nobody is to believe what it reads there from now on. */
void seats_leave(struct acomm_group *g);
/* Whether a rank has, after what was read of its arrays. */
bool seats_left(const struct acomm_group *g, int rank);
/* A short broadcast: its root waits for nobody. */
int seats_broadcast(struct mpi_op *op);
/* Whether an operation goes here, piece by piece (mpi_seats_pieces.c); every rank decides alike. And it. */
bool pieces_fit(const struct mpi_op *op);
int pieces_collective(struct mpi_op *op);
/* The same after a meeting of all. */
int pieces_follow(struct mpi_op *op);
/* Longer ones, in the best of several ways (mpi_ways.c). */
bool ways_fit(const struct mpi_op *op);
int ways_collective(struct mpi_op *op);
/* One of them, after a meeting: read where all have told that their arrays lie (mpi_reads.c). *lost: what was read is not to be believed. */
uint64_t reads_array(const struct mpi_op *op); /* what a rank tells */
int reads_blocks(struct mpi_op *op, const uint64_t *arrays, bool *lost);
void seats_free(struct acomm_group *g);
#endif
