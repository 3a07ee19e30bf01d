/* Runs a collective over the shared segment as rounds of commit and consume (see shared.h).
 *
 * The first round carries every rank's call signature: ranks compare them before anything is consumed, so a mismatch is an
 * error and no buffer has been written. All ranks compare all of them, unless only the root sends: then the root continues,
 * and the receivers compare with the root. Signatures that the root has not compared stay open (shared.h) until the next
 * operation that waits for all, until slots run out, or until the group is closed. An algorithm is two short functions and a
 * number of rounds. */
#ifndef ACOMM_SHARED_ROUNDS_H
#define ACOMM_SHARED_ROUNDS_H
#include "collectives/collectives.h"

struct rounds {
    struct acomm_op *op;
    struct shared *shared;
    uint64_t index;              /* of the round in the operation, from 0 */
    uint64_t round;              /* its number in the group's life */
    uint64_t piece;              /* bytes of one block that fit into a round; multiple of the element's width */
    uint64_t kept;               /* bytes of the result that stay in the caches; the rest is written by non-temporal stores */
    uint64_t largest;            /* all_to_all with uneven counts: the largest block of any rank, known after round 0 */
    const void **inputs;         /* capacity for the addresses of many ranks' contributions */
    bool pairs;                  /* contents for one rank go to the pair's exchange buffer, not to the slot */
    bool cells;                  /* contents go to cells, where they are free */
    int rank, ranks;
};

struct rounds_plan {
    uint64_t block;              /* bytes to move per block; rounds follow from it */
    int blocks;                  /* blocks that share a slot: 1, or one for each rank */
    uint64_t extra;              /* rounds after the last piece; with one, slots are read in the next round too */
    uint64_t result;             /* bytes that a rank receives in all, where non-temporal stores may write them */
    bool mutual;                 /* every rank sends and receives: two use exchange buffers (shared.h); */
    bool pairwise;               /* and so do more, as every rank sends different data to each other one */
    bool one_way;                /* the root only writes, others only read: short pieces let them work at the same time, and
                                  * the root need not wait */
    void (*fill)(const struct rounds *r);   /* writes this rank's slot of r->round */
    int (*drain)(const struct rounds *r);   /* awaits and reads the slots of others */
};

int rounds_run(struct acomm_op *op, const struct rounds_plan *plan);
/* Waits until all ranks have arrived at the open rounds, and compares; with the turn. 0 or the group's failure. */
int rounds_settle(struct acomm_group *g);

/* For algorithms that are not pieces through slots: the operation's beginning, and one round in which every rank publishes
 * `bytes` bytes; then all ranks have arrived, their slots can be read until the next round, and call signatures match. */
struct rounds rounds_start(struct acomm_op *op);
int rounds_meet(struct rounds *r, const void *say, size_t bytes);

/* Copies to memory that rank `reader` reads next: this rank's slot, or that rank's own array. `reader` may be this rank: then
 * all others read. Stores are chosen for each reader: one on the same core finds the data in its caches, a cross-die one
 * fetches it. */
void rounds_fill(const struct rounds *r, int reader, char *slot, const void *from, size_t bytes);
/* Copies out of a slot, or of this rank's own part, into the caller's result. */
static inline void rounds_take(const struct rounds *r, char *to, const char *from, size_t bytes)
{
    if ((uint64_t)(to - r->op->out) >= r->kept)
        stream_copy(to, from, bytes);
    else
        stream_keep(to, from, bytes);
}

/* Bytes of the piece number `index` of a block of `block` bytes: 0 past its end. */
static inline size_t rounds_piece(const struct rounds *r, uint64_t block, uint64_t index)
{
    uint64_t offset = index * r->piece;
    uint64_t left = offset < block ? block - offset : 0;
    return (size_t)(left < r->piece ? left : r->piece);
}
/* The contents of `rank` in this round at `offset` of its slot, when slots hold `bytes` in all. */
static inline char *rounds_slot(const struct rounds *r, int rank, size_t bytes)
{
    return shared_data(r->shared, rank, r->round, bytes);
}
static inline int rounds_await(const struct rounds *r, int rank)
{
    return shared_await(r->shared, r->op, rank, rank, r->round);
}
int rounds_await_all(const struct rounds *r);
/* The contents from `from` to `to` in this round: in the pair's exchange buffer, or at `offset` of its slot of `bytes`. */
static inline char *rounds_given(const struct rounds *r, int from, int to, size_t offset, size_t bytes)
{
    return r->pairs ? shared_pair(r->shared, from, to) : rounds_slot(r, from, bytes) + offset;
}
/* out[0..bytes) = every rank's contribution (op_inputs) to this one, or to all (rounds_given), reduced in rank order. This rank's
 * own contribution is read from `own`, which lies in its caches; out may be own, or NULL where only `copy` is wanted: a place in
 * this rank's slot that gets the same, or NULL. */
void rounds_reduce(const struct rounds *r, char *out, const char *own, size_t offset, size_t bytes, size_t slot,
                   char *copy);
#endif
