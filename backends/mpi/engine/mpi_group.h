/* A group over MPI, its operations, and what the files of this folder share.
 *
 * One communicator a group. Tag 0: messages and news (mpi_messages.h). Tag 1: records of collectives, one after the other. Tag 2:
 * what is sent along with them or later, so that it is never taken for a record. From tag 3 on: the contents of long messages.
 * Memory moves as bytes: what MPI knows of types serves its own reductions only. */
#ifndef MPI_GROUP_H
#define MPI_GROUP_H
#include <pthread.h>
#include <stdatomic.h>
#include "mpi_library.h"

enum { TAG_NEWS, TAG_RECORDS, TAG_BLOCKS, TAG_CONTENTS, TAG_LAST = 32767 }; /* every MPI has tags up to that */

enum { MPI_UNDER_WAY, MPI_ENDED, MPI_ABANDONED };

struct mpi_op {
    struct acomm_group *group;
    acomm_call call;
    size_t width;                /* bytes of one element */
    uint64_t sequence;           /* of a collective: number in the group */
    int64_t started, deadline, next_look; /* clock_now(); 0 until it has to wait */
    uint64_t bytes;              /* received */
    bool synchronous;            /* its caller waits, and answers Ctrl-C */
    bool owned;                  /* by a handle, not on its caller's stack */
    bool is_short;               /* its contents travel with the headers */
    bool tells;                  /* its peers, once it has waited for a while, what it calls */
    bool follows;                /* its long blocks have been sent along with the record */
    bool on_device;              /* its arrays are: the library moves them, nobody here touches them */
    _Atomic int state;           /* abandoned by its owner before the end: freed then */
    int status;                  /* valid once ended */
    struct mpi_op *next;         /* queue, or posted receives */
    struct mpi_flight *flight;   /* of a message that is under way; valid until its end */
    uint64_t offer, from, moved; /* of one in a lane (mpi_lanes.h): its offer's number, where its contents lie, how many have moved */
    unsigned cell;               /* in which they lie */
    int64_t met, copying;        /* when they met their receive; ns of copying since */
    char *staged;                /* there, if they are for a device */
    acomm_failure failure;       /* valid once ended with an error */
};

/* What a rank tells of its call; the contents follow, filled up to 8 bytes. */
struct mpi_record {
    uint32_t bytes;              /* of contents: as many as fit come in the record's message, the rest in more of them */
    uint16_t before;             /* 1 + root of the operation before, where that was a broadcast at which ranks did not meet */
    uint16_t ahead;              /* this one is such, or is MPI_SEATED */
    acomm_header header;
};
#define MPI_SEATED 2             /* ranks meet there in shared memory (mpi_seats.h) */
#define MPI_AHEAD 64             /* broadcasts that a root may be ahead */
#define MPI_AHEAD_RANKS 16       /* at most: it sends to each */
#define MPI_CALLED (2 * MPI_AHEAD)

/* Requests of the collective that runs. */
struct mpi_requests {
    char *handles;               /* as wide as the library's */
    struct request_facts { int peer; bool takes; } *facts;
    int number, room;
};

struct acomm_group {
    acomm_mpi *mpi;
    mpi_handle comm;
    uint64_t id;
    int rank, size;
    int64_t timeout;
    bool check, crowded;
    bool met;                    /* its ranks have, in a call that no user has made */
    size_t record_bytes;         /* that a rank's record has at most (mpi_exchange.c) */
    unsigned forks;
    /* collectives */
    pthread_mutex_t turn;        /* who runs a collective */
    pthread_mutex_t lock;        /* queue, failure; the condition goes with it */
    pthread_cond_t changed;
    struct mpi_op *first, *last; /* queue */
    _Atomic int pending;         /* queued or run from there */
    _Atomic int inside;          /* threads in an operation */
    bool works, stops;           /* there is a worker; it is to end */
    pthread_t worker;
    uint64_t sequence;
    _Atomic uint64_t finished;   /* the last one that has ended well */
    struct mpi_requests requests;
    char *records, *scratch;     /* grown when needed, under `turn` */
    size_t records_room, scratch_room;
    /* broadcasts whose root does not wait (mpi_ahead.c) */
    int ahead;                   /* since ranks have last exchanged records; alike on all */
    uint16_t before;             /* of the next record */
    _Atomic uint64_t unmet;      /* the last of them, 0: ranks have met since */
    struct mpi_record called[MPI_CALLED]; /* by this rank, by sequence; this and the next two with `lock` */
    struct mpi_record told[MPI_AHEAD_RANKS]; /* the last call that each rank has told of */
    uint64_t heard;              /* the last sequence in it */
    /* the end */
    _Atomic int poisoned;        /* code of the failure, or 0 */
    _Atomic bool stuck;          /* requests that could not be taken back may still use callers' memory */
    acomm_failure failure;
    bool failed;                 /* by more than being closed */
    struct mpi_messages *messages;
    struct mpi_seats *lent, *seats; /* mapped, until it is closed; and used, once all have it (mpi_seats.h). NULL: there is none */
    struct mpi_drain { uint64_t request; bool listens, over; } drain;
    int (*_Atomic enter)(int device); /* for threads of ours, once there were arrays on a device */
    _Atomic int device;
    struct acomm_group *next;    /* all of the process (mpi_pace.c) */
    bool closed;                 /* by its user; it waits for its peers' goodbye */
};

/* ---- mpi_group.c ---- */
bool group_was_forked(const struct acomm_group *g);
/* Before a thread of ours calls MPI, which may touch arrays on a device then: the library's CUDA wants it to be current. */
void group_enter(struct acomm_group *g);
/* Records the first failure and tells the peers; returns the code that the operation ends with. */
int mpi_fail(struct acomm_group *g, const acomm_failure *failure);
/* The same for an operation: what it is and how long it took are added. */
int mpi_fail_op(struct mpi_op *op, int code, int culprit, const char *text);
/* The group's failure, wherever it was noticed, ends this operation of ours. A collective is named where none is yet. */
void mpi_name(const struct mpi_op *op, acomm_failure *failure);
/* The same for an error code of the library; peer: whom the request was for. */
int mpi_fail_library(struct mpi_op *op, int code, int peer);
/* What an error of the library means, without recording it. */
void mpi_explain(struct acomm_group *g, int code, int peer, acomm_failure *out);
/* Records what a peer told of, or what messages ran into; tells nobody. */
int mpi_poison(struct acomm_group *g, const acomm_failure *failure);
void mpi_header(const struct mpi_op *op, acomm_header *out);
/* The operation ends; `op` may be gone then. */
void mpi_end_op(struct mpi_op *op, int status);
/* Gives everything back, the communicator too. */
void group_free(struct acomm_group *g);

/* ---- mpi_drain.c ---- */
/* Once the group has failed, or is closed: what peers have sent along, and nobody wants any more, comes to nothing, so that their sends end. By the one
 * thread of mpi_pace.c. */
void drain(struct acomm_group *g);
void drain_end(struct acomm_group *g);

/* ---- mpi_pace.c ---- */
int pace_add(struct acomm_group *g);
/* It is freed when all peers have left it, unless it has failed. */
void pace_close(struct acomm_group *g);
/* From now on MPI_Finalize, whoever calls it, finds nothing of ours under way. An error of the library, or 0. */
int pace_watch_end(acomm_mpi *mpi);
/* A thread that gets no signals. */
int pace_thread(pthread_t *thread, void *(*function)(void *), void *argument);

/* ---- mpi_wait.c ---- */
#define MPI_SPINS 400 /* turns of about 50 ns, with a core for every rank */
/* A turn of waiting: spins, yields or sleeps, and looks at deadline, signals, poison and news. 0 or a code. */
int mpi_turn(struct mpi_op *op, unsigned *turns, int culprit);
/* Looks at those alone. */
int mpi_look(struct mpi_op *op, int culprit);
/* Between turns, after so many nanoseconds: a while after the beginning it sleeps. */
void mpi_nap(int64_t waited);
/* Begin moving bytes between here and a rank; 0 or the code that the operation fails with. Both ends know how many: the library may
 * want them in small messages. */
int mpi_give(struct mpi_op *op, const void *data, uint64_t bytes, int peer);
int mpi_take(struct mpi_op *op, void *data, uint64_t bytes, int peer);
/* One message, of at most so many bytes. */
int mpi_give_record(struct mpi_op *op, const void *record, uint64_t bytes, int peer);
int mpi_take_record(struct mpi_op *op, void *record, uint64_t most, int peer);
/* A place for a request of a collective of the library's own. NULL: no memory. */
void *mpi_request(struct mpi_op *op);
/* All of them have ended. After a failure they have been taken back, or the group is stuck. */
int mpi_wait(struct mpi_op *op);
/* The first ones have. After a failure none has been taken back. */
int mpi_wait_for(struct mpi_op *op, int number);
/* After a failure: as much as can be. */
void mpi_take_back(struct acomm_group *g);
/* At least that much of *place; false without memory. */
bool mpi_grow(char **place, size_t *room, size_t bytes);

/* ---- mpi_collectives.c ---- */
int mpi_collective(struct mpi_op *op);
/* mpi_exchange.c: headers, and short contents with them, to everybody. Bytes that a rank's record may have; whether an
 * operation's contents travel with the headers. */
size_t mpi_record_bytes(const struct acomm_group *g);
bool mpi_is_short(const struct mpi_op *op);
int mpi_exchange(struct mpi_op *op);
/* mpi_records.c: how records travel. This rank's for another one, written there: its bytes. */
uint64_t mpi_write_record(const struct mpi_op *op, char *to, int peer, bool ahead);
/* Memory for records; false without. */
bool mpi_room_for_records(struct mpi_op *op);
/* All ranks' records, in rank order; with short contents. */
int mpi_records(struct mpi_op *op, const struct mpi_record **all);
/* The rest of those contents, after the comparison. */
int mpi_rest(struct mpi_op *op, const struct mpi_record **all);
/* Contents of rank's record. */
const void *mpi_contents(const struct mpi_op *op, const struct mpi_record *record, int rank);
bool mpi_is_direct(const struct acomm_group *g);
/* Elements that a giving rank has for another one. */
uint64_t mpi_given(const struct mpi_op *op);
bool mpi_divides(const struct mpi_op *op);
/* Two ranks called different things. `mine` is this rank's. Returns the code that the operation ends with. */
int mpi_differ(struct acomm_group *g, const acomm_header *mine, const acomm_header *theirs, int peer);
/* mpi_ahead.c: short broadcasts whose root does not wait. */
bool ahead_fits(const struct mpi_op *op);
int ahead_broadcast(struct mpi_op *op);
/* An operation begins: what this rank calls is kept, and compared with what others have told of. 0 or the code of a mismatch. */
int ahead_note(struct mpi_op *op, const struct mpi_record *mine);
/* It has waited for a while: all are told what it is. */
void ahead_tell(struct mpi_op *op);
/* A peer tells what it calls. False: this rank has called something else there, *mine. */
bool ahead_heard(struct acomm_group *g, int peer, const struct mpi_record *theirs, struct mpi_record *mine);
/* A record came that cannot be, where this rank called number `sequence`. The code of the mismatch that it tells of; 0: all are told what
 * this rank called, and who has called something else says so. */
int ahead_ask(struct acomm_group *g, uint64_t sequence, const struct mpi_record *theirs, int peer);
/* The same, and waits for that. */
int ahead_clash(struct mpi_op *op, const struct mpi_record *theirs, int peer);
/* All ranks have exchanged their records. */
void ahead_met(struct acomm_group *g);
/* Before the end: waits until all have come as far as this rank. 0, or the code of what comes of it. */
int ahead_settle(struct acomm_group *g);
/* mpi_collectives.c: by messages, what all have called alike; a broadcast's contents from rank to rank. */
int mpi_move_long(struct mpi_op *op);
int mpi_tree(struct mpi_op *op);
/* mpi_blocks.c: a block for each rank and from each. */
int mpi_blocks(struct mpi_op *op);
/* Whether they are sent with the record; begins to send them all. */
bool mpi_blocks_follow(const struct mpi_op *op);
int mpi_give_blocks(struct mpi_op *op);
/* mpi_reduce.c: reductions in pieces. */
int mpi_reduction(struct mpi_op *op);

/* The rank that many places on, less than a whole round. No division: that costs a short operation a part of its time. */
static inline int mpi_neighbour(const struct acomm_group *g, int places)
{
    int rank = g->rank + places;
    return rank >= g->size ? rank - g->size : rank < 0 ? rank + g->size : rank;
}
static inline bool mpi_reduces(const struct mpi_op *op)
{
    return acomm_operations[op->call.kind].reduces;
}
/* Elements of a rank's block. */
static inline uint64_t mpi_count(const struct mpi_op *op, const uint64_t *counts, int rank)
{
    return counts ? counts[rank] : op->call.count;
}
static inline bool mpi_ended(const struct mpi_op *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire) == MPI_ENDED;
}
uint64_t mpi_total(const struct mpi_op *op, const uint64_t *counts);
#endif
