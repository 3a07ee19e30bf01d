/* Memory that the ranks of a group share where all are on one host: records of what they call, with short contents, lie there
 * instead of in messages, which would copy them once for each who takes them.
 *
 * Each rank has a seat, in which it alone writes: SEATS_SLOTS slots for records, and a ring for contents. An operation takes one
 * round or several, counted alike by all. A rank publishes a round by a stamp, and says up to which one it needs nothing any more
 * of the others' seats; that is when they write there again. The root of a broadcast, which has nothing to wait for, may so be
 * SEATS_SLOTS rounds ahead; it compares what the others called when it meets their rounds.
 * Failures, farewells, the deadline and signals are seen as in every other wait (mpi_turn), and told by MPI. */
#ifndef MPI_SEATS_H
#define MPI_SEATS_H
#include "mpi_group.h"
#include "peer_memory.h"

#define SEATS_SLOTS 32
#define SEATS_MOST ((uint64_t)64 << 10)  /* bytes of a rank's contents in one round */
#define SEATS_RANKS MPI_AHEAD_RANKS        /* among more, differences between roots that are ahead are not told (mpi_ahead.c) */

struct mpi_seats {
    char *base;
    size_t bytes;
    uint64_t round, first, done;  /* this rank's last; the running operation's first; up to which it needs nothing any more */
    uint64_t everyone;            /* up to which nobody does, as last seen */
    uint64_t at;                  /* where the next contents begin, in a ring that never ends: alike on all */
    uint64_t starts[SEATS_SLOTS]; /* of the contents of each round */
    uint64_t lengths[SEATS_SLOTS];
    bool reads;                   /* ranks may read each other's memory, too (mpi_reads.c) */
    struct peer_process processes[SEATS_RANKS];
};

/* Of contents, what nobody else reads: it is not copied. */
struct seats_own { uint64_t at, bytes; };
/* An operation's first round: this rank's header and contents; all others', which stay until seats_done(), and its own where they
 * lie. `bytes`: of contents, on whoever has any. 0 or a code. */
int seats_exchange(struct mpi_op *op, const void *data, uint64_t bytes, struct seats_own own, const acomm_header **headers,
                   const void **contents);
/* The same, and all called the same: else the code of a mismatch. */
int seats_compared(struct mpi_op *op, const void *data, uint64_t bytes, struct seats_own own, const void **contents);
/* One more: where this rank writes that many bytes; then, when all have, where a rank's lie. NULL, *rc: it failed. */
char *seats_begin(struct mpi_op *op, uint64_t bytes, int *rc);
int seats_meet(struct mpi_op *op);
const char *seats_contents(const struct acomm_group *g, int rank);
/* Nothing of the operation is needed any more. */
void seats_done(struct acomm_group *g);
/* It has failed, and its arrays are the caller's again: nobody is to believe what it reads there from now on. */
void seats_leave(struct acomm_group *g);
/* Whether a rank has, after what was read of its arrays. */
bool seats_left(const struct acomm_group *g, int rank);
/* A broadcast: its root waits for nobody. */
int seats_broadcast(struct mpi_op *op);
/* Whether an operation goes here; every rank decides alike. And it. */
bool seats_fit(const struct mpi_op *op);
int seats_collective(struct mpi_op *op);
/* The same for long ones, read where they lie (mpi_reads.c). */
bool reads_fit(const struct mpi_op *op);
int reads_blocks(struct mpi_op *op);
void seats_free(struct acomm_group *g);
#endif
