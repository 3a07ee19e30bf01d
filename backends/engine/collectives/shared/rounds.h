/* Runs a collective over the shared segment as rounds of fill and drain (see shared.h).
 *
 * The first round carries every rank's header: ranks compare them before anything is drained, so a mismatch is an error
 * and no buffer has been written. All ranks compare all of them, unless the operation goes one way: then the root goes on,
 * and those who take compare with the root. What the root has not looked at stays open (shared.h) until the next operation
 * that waits for all, until slots run out, or until the group is closed. An algorithm is two short functions and a number
 * of rounds. */
#ifndef ACOMM_SHARED_ROUNDS_H
#define ACOMM_SHARED_ROUNDS_H
#include "collectives/collectives.h"

struct rounds {
    struct acomm_op *op;
    struct shared *shared;
    uint64_t index;              /* of the round in the operation, from 0 */
    uint64_t round;              /* its number in the group's life */
    uint64_t piece;              /* bytes of one block that fit into a round; multiple of the element's width */
    uint64_t kept;               /* bytes of the result that stay in the caches; what follows is written past them */
    uint64_t largest;            /* all_to_all with uneven counts: the largest block of any rank, known after round 0 */
    const void **inputs;         /* room for the addresses of many ranks' contributions */
    bool pairs;                  /* what a rank gives to another goes to a place of the two, not to its slot */
    bool cells;                  /* contents go to cells, where they are free */
    int rank, ranks;
};

struct rounds_plan {
    uint64_t block;              /* bytes to move per block; rounds follow from it */
    int blocks;                  /* blocks that share a slot: 1, or one for each rank */
    uint64_t extra;              /* rounds after the last piece; with one, slots are read in the next round too */
    uint64_t result;             /* bytes that a rank gets altogether, where they may be written past the caches */
    bool mutual;                 /* every rank gives and takes: between two, contents change hands (shared.h); */
    bool pairwise;               /* and between more, as every rank gives something else to each other one */
    bool one_way;                /* the root only writes, others only read: short pieces let them work at the same time, and
                                  * the root need not wait */
    void (*fill)(const struct rounds *r);   /* writes this rank's slot of r->round */
    int (*drain)(const struct rounds *r);   /* awaits and reads the slots of others */
};

int rounds_run(struct acomm_op *op, const struct rounds_plan *plan);
/* Waits until all ranks have come to the rounds that are open, and compares; with the turn. 0 or the group's failure. */
int rounds_settle(struct acomm_group *g);

/* For algorithms that are not pieces through slots: the operation's beginning, and one round in which every rank says
 * `bytes` bytes; then all ranks have come, their slots can be read until the next round, and headers agree. */
struct rounds rounds_start(struct acomm_op *op);
int rounds_meet(struct rounds *r, const void *say, size_t bytes);

/* Copies to where rank `reader` reads next: this rank's slot, or that rank's own array. `reader` may be this rank: all others do.
 * Stores are chosen for each reader: one that shares the core finds in its caches what one on a far core has to fetch. */
void rounds_fill(const struct rounds *r, int reader, char *slot, const void *from, size_t bytes);
/* Copies out of a slot, or of this rank's own part, to where the caller looks for it after the operation. */
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
/* What `rank` put into this round at `offset` of its slot, when slots hold `bytes` altogether. */
static inline char *rounds_slot(const struct rounds *r, int rank, size_t bytes)
{
    return shared_data(r->shared, rank, r->round, bytes);
}
static inline int rounds_await(const struct rounds *r, int rank)
{
    return shared_await(r->shared, r->op, rank, rank, r->round);
}
int rounds_await_all(const struct rounds *r);
/* What `from` gives to `to` in this round: in a place of the two, or at `offset` of its slot, when that holds `bytes` altogether. */
static inline char *rounds_given(const struct rounds *r, int from, int to, size_t offset, size_t bytes)
{
    return r->pairs ? shared_pair(r->shared, from, to) : rounds_slot(r, from, bytes) + offset;
}
/* out[0..bytes) = what every rank (op_inputs) gives to this one, or all (rounds_given), reduced in rank order.
 * This rank's own contribution is read from `own`, which lies in its caches; out may be own, or NULL where only `copy` is
 * wanted: a place in this rank's slot that gets the same, or NULL. */
void rounds_reduce(const struct rounds *r, char *out, const char *own, size_t offset, size_t bytes, size_t slot,
                   char *copy);
#endif
