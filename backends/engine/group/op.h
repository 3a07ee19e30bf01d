/* One operation: what was asked, and how it ended. Plain data; group.c runs it, collectives read it. */
#ifndef ACOMM_OP_H
#define ACOMM_OP_H
#include <stdatomic.h>
#include <stdbool.h>
#include "acomm.h"

struct algorithm;
struct team;

struct acomm_op {
    struct acomm_group *group;
    const struct team *team;     /* the ranks that take part; given when it starts, as the algorithm */
    const struct algorithm *algorithm;
    const struct acomm_op *whole; /* what it is a part of (select.h), or NULL */
    const char *in;              /* NULL where this rank sends nothing */
    char *out;                   /* NULL where this rank receives nothing */
    uint64_t count;              /* as acomm.h counts for this kind; for uneven forms 0 */
    const uint64_t *send_counts; /* per rank, or NULL when even; borrowed from the caller until the end */
    const uint64_t *recv_counts;
    const uint64_t *places;      /* parts only: where the blocks that those count begin, in elements; NULL: packed */
    uint64_t sequence;           /* number in the group, given when it starts */
    int64_t timeout;             /* ns */
    int64_t started, deadline;   /* clock_now(); 0 until it has to wait: reading the clock is expensive for a small operation */
    struct op_waits {            /* however many waits it and its parts consist of: */
        int64_t next_look;       /* when to ask for signals again; 0 not yet known */
        int64_t since, tell_at;  /* since when it waits without progress, and when to say so (wait.c); 0 not yet known */
        uint32_t moves;          /* turns with progress */
        bool asked;              /* the members how far they are, before it says that it waits */
        size_t unseen;           /* bytes that moved since clock and signals were looked at */
    } waits;
    double factor;               /* premul_sum */
    uint32_t layout;
    int kind, dtype, redop, root;
    size_t width;                /* bytes of one element */
    int gpu;                     /* 0, or 1 + the device that the arrays are on: for the fabric's own collective; messages: ACOMM_ON_GPU */
    /* point to point */
    int peer;                    /* -1 any source; after the end the source */
    int64_t tag;
    uint64_t bytes;              /* received */
    /* the end */
    _Atomic int done;            /* enum op_state; futex */
    int status;                  /* code, valid once done */
    struct acomm_op *next;       /* queue, free list or posted list */
    bool shares;                 /* part of acomm_group_share(): from its end on there are symmetric arrays */
    bool synchronous;            /* runs in its caller's thread, which answers Ctrl-C */
    bool apart;                  /* a message that the fabric moves on both sides: the peer may leave the group */
    void (*then)(struct acomm_op *op); /* not NULL: called at the end, instead of a wake-up. Messages only: with their lock */
    /* The first round over shared memory, in which every rank publishes its call signature. Until all have arrived, a helping
     * waiter may leave the operation; any thread then runs it again from the beginning. */
    bool entered;                /* this rank's part of that round has been published */
    bool compared;               /* all ranks have arrived, and their call signatures match */
    bool guest;                  /* run by a thread of the caller, which leaves at `leave_at` and for Ctrl-C */
    bool interrupted;            /* it left for Ctrl-C */
    bool ahead;                  /* over links: no rank waits for the comparison, see signature_ahead(); */
    bool owes;                   /* and the signature has still to be sent to the rank before this one */
    int64_t leave_at;            /* clock_now(); 0: when it would have to wait */
    void (*release_lock)(void *lock);  /* NULL, or the caller holds its lock (acomm_call) */
    void *lock;
    acomm_failure failure;       /* valid when status < 0. The last member: it is not cleared when an operation is described */
};

/* Called before the operation waits, takes a lock that is held for long, or calls code that may do so: to release and acquire the
 * GIL costs as much as the rest of a short operation whose peers have arrived. */
static inline void op_release_lock(struct acomm_op *op)
{
    if (op->release_lock)
        op->release_lock(op->lock);
    op->release_lock = NULL;
}

/* An abandoned operation was freed by its owner before the end: the engine recycles it then. An awaited one has a thread asleep
 * on its futex: a wake without a sleeper would cost a system call. */
enum op_state { OP_UNDER_WAY, OP_AWAITED, OP_ENDED, OP_ABANDONED };

/* Ends the operation: status and results are set, waiters wake. The op may be gone when this returns. */
void op_complete(struct acomm_op *op);
/* Blocks until ended, at most `timeout` ns: the status, or 1 when not ended; ACOMM_INTERRUPTED leaves it under way. */
int op_wait(struct acomm_op *op, int64_t timeout);
static inline bool op_ended(struct acomm_op *op)
{
    return atomic_load_explicit(&op->done, memory_order_acquire) == OP_ENDED;
}

/* Starts its clock, once. */
void op_begin(struct acomm_op *op);
/* ns since then. */
int64_t op_elapsed(const struct acomm_op *op);

/* Elements and bytes of one rank's block, and where it lies in the packed whole. */
struct span { uint64_t offset, bytes; };
/* Block of `rank` when every block has `count` elements, or counts[rank] where counts is given. O(rank) for uneven. */
struct span op_block(const uint64_t *counts, uint64_t count, int rank, size_t width);
/* What comes from `rank` of the team, in the output, as its contribution to an all_gather; what it gets, in the input, as its
 * result of a reduce_scatter. */
struct span op_gathered(const struct acomm_op *op, int rank);
struct span op_scattered(const struct acomm_op *op, int rank);
/* Bytes of all blocks together. */
uint64_t op_total(const uint64_t *counts, uint64_t count, int ranks, size_t width);
/* Elements of the largest block. */
uint64_t op_largest(const uint64_t *counts, uint64_t count, int ranks);
void op_header(const struct acomm_op *op, acomm_header *out);
/* An earlier operation of this rank, for a wait on its behalf. */
struct acomm_op op_of_header(struct acomm_group *g, const acomm_header *mine);
/* A dtype as call signatures have it. */
static inline uint8_t op_header_dtype(int dtype)
{
    return dtype >= ACOMM_OPAQUE ? ACOMM_OPAQUE_HEADER : (uint8_t)dtype;
}
/* 0, or the group's failure when the header of rank `peer` (any alignment) differs from the operation's own. */
int op_compare(struct acomm_op *op, int peer, const void *theirs);
/* The same for an earlier operation, whose header was `mine`. */
int op_compare_earlier(struct acomm_op *op, int peer, const acomm_header *mine, const acomm_header *theirs);
#define OP_ON_GPU 4 /* header flag: the fabric gets arrays on GPUs themselves, so all ranks' are on GPUs */
#define OP_SHARES 2 /* header flag: not a reduction of the caller's */
#define OP_UNEVEN 1 /* header flag: all_to_all with counts of each rank's own; `count` is its largest block then */
static inline bool op_is_message(int kind) { return acomm_operations[kind].array == ACOMM_MESSAGE; }
static inline bool op_is_rooted(int kind)
{
    return acomm_operations[kind].gives == ACOMM_ROOT || acomm_operations[kind].gets == ACOMM_ROOT;
}
static inline bool op_reduces(const struct acomm_op *op) { return acomm_operations[op->kind].reduces; }
/* How many ranks' arrays are reduced for `rank` of `ranks`: the first so many. */
static inline int op_inputs(const struct acomm_op *op, int rank, int ranks)
{
    int reduces = acomm_operations[op->kind].reduces;
    return reduces <= ACOMM_OF_ALL ? ranks : rank + (reduces == ACOMM_INCLUSIVE);
}
/* How its array is divided: enum of operations.def. */
static inline int op_array(const struct acomm_op *op) { return acomm_operations[op->kind].array; }
#endif
