/* Which ranks exchange which blocks: the index arithmetic of the algorithms, without any communication.
 *
 * Ranks are 0..n-1, steps count from 0. A block is one of n parts of an array; block i is the one that belongs to
 * rank i.
 * Virtual ranks number the members of a rooted tree from its root: virtual = (rank - root) mod n. */
#ifndef ACOMM_PATTERN_H
#define ACOMM_PATTERN_H
#include <stdint.h>

/* (rank + distance) mod n for any distance in -n..n. */
static inline int pattern_rank(int rank, int distance, int n) { return (rank + distance + n) % n; }
static inline int pattern_next(int rank, int n) { return pattern_rank(rank, 1, n); }
static inline int pattern_prev(int rank, int n) { return pattern_rank(rank, -1, n); }

/* ceil(log2 n): steps of dissemination, Bruck and binomial trees. 0 for n = 1. */
static inline int pattern_steps(int n)
{
    int steps = 0;
    while (((int64_t)1 << steps) < n)
        steps++;
    return steps;
}

/* `count` elements in n nearly equal blocks: the first count % n have one more. */
struct pattern_range { uint64_t first, count; };
static inline struct pattern_range pattern_block(uint64_t count, int n, int i)
{
    uint64_t each = count / (uint64_t)n, longer = count % (uint64_t)n, at = (uint64_t)i;
    struct pattern_range range = {at * each + (at < longer ? at : longer), each + (at < longer)};
    return range;
}

/* ---- ring: n-1 steps, always sending to next and receiving from prev ---- */
/* Reduce-scatter: received data is combined with the own part; after the last step a rank holds the complete block `rank`. */
static inline int pattern_ring_reduce_sends(int rank, int n, int step) { return pattern_rank(rank, -1 - step, n); }
static inline int pattern_ring_reduce_receives(int rank, int n, int step)
{
    return pattern_rank(pattern_prev(rank, n), -1 - step, n);
}
/* All-gather: rank starts with block `rank` and passes on what it received in the step before. */
static inline int pattern_ring_gather_sends(int rank, int n, int step) { return pattern_rank(rank, -step, n); }
static inline int pattern_ring_gather_receives(int rank, int n, int step)
{
    return pattern_rank(pattern_prev(rank, n), -step, n);
}

/* ---- pairwise exchange: n-1 steps, the own block is a copy ---- */
static inline int pattern_pairwise_to(int rank, int n, int step) { return pattern_rank(rank, step + 1, n); }
static inline int pattern_pairwise_from(int rank, int n, int step) { return pattern_rank(rank, -1 - step, n); }

/* ---- binomial tree: a subtree is a run of consecutive virtual ranks, so partial results stay in that order ---- */
static inline int pattern_virtual(int rank, int root, int n) { return pattern_rank(rank, -root, n); }
static inline int pattern_actual(int virtual_rank, int root, int n) { return pattern_rank(virtual_rank, root, n); }

/* Number of virtual ranks in the subtree of a virtual rank: itself and the ones that follow it. */
static inline int pattern_tree_span(int virtual_rank, int n)
{
    int reach = virtual_rank & -virtual_rank; /* the lowest set bit bounds the subtree */
    return virtual_rank == 0 || reach > n - virtual_rank ? n - virtual_rank : reach;
}
/* Rank of the parent, -1 at the root. */
static inline int pattern_tree_parent(int rank, int root, int n)
{
    int v = pattern_virtual(rank, root, n);
    return v == 0 ? -1 : pattern_actual(v & (v - 1), root, n);
}
static inline int pattern_tree_children(int rank, int root, int n)
{
    return pattern_steps(pattern_tree_span(pattern_virtual(rank, root, n), n));
}
/* Rank of child i, smallest subtree first (the order of a reduction: child i's virtual ranks are 2^i further on).
 * A broadcast goes through them from the last to the first, so that the deepest subtree starts earliest. */
static inline int pattern_tree_child(int rank, int root, int n, int i)
{
    return pattern_actual(pattern_virtual(rank, root, n) + (1 << i), root, n);
}

/* ---- recursive doubling among the largest power of two of ranks ----
 * With n = 2^k + extra, the odd ones of the first 2*extra ranks send their part to the even rank before them, skip the k steps,
 * and receive the result from that rank. The ranks that take part are numbered 0..2^k-1 in rank order, so that the left operand
 * of every combination is the part with the lower ranks: all ranks calculate the same tree. */
static inline int pattern_doubling_steps(int n)
{
    int steps = pattern_steps(n);
    return ((int64_t)1 << steps) > n ? steps - 1 : steps;
}
static inline int pattern_doubling_extra(int n) { return n - (1 << pattern_doubling_steps(n)); }
/* The rank with which `rank` folds before and after the steps: even ranks receive, odd ranks send. -1 for none. */
static inline int pattern_doubling_fold(int rank, int n)
{
    return rank < 2 * pattern_doubling_extra(n) ? rank ^ 1 : -1;
}
/* Number among those that take part, -1 for a rank that sent its part to its fold partner. */
static inline int pattern_doubling_number(int rank, int n)
{
    int extra = pattern_doubling_extra(n);
    if (rank >= 2 * extra)
        return rank - extra;
    return rank % 2 ? -1 : rank / 2;
}
static inline int pattern_doubling_rank(int number, int n)
{
    int extra = pattern_doubling_extra(n);
    return number < extra ? 2 * number : number + extra;
}
/* Partner of a rank that takes part, distance 1 first. A partner of lower rank holds the left operand. */
static inline int pattern_doubling_partner(int rank, int n, int step)
{
    return pattern_doubling_rank(pattern_doubling_number(rank, n) ^ (1 << step), n);
}

/* ---- Bruck all-gather: pattern_steps(n) steps (Bruck et al. 1997) ----
 * Place i of the working buffer is block (rank + i) mod n. A step sends the first `blocks` places to `to` and
 * receives as many from `from` into the places that start at `at`. Afterwards the buffer is rotated by rank. */
struct pattern_bruck { int to, from, at, blocks; };
static inline struct pattern_bruck pattern_bruck(int rank, int n, int step)
{
    int held = 1 << step, missing = n - held;
    struct pattern_bruck plan = {pattern_rank(rank, -held, n), pattern_rank(rank, held, n), held,
                                 held < missing ? held : missing};
    return plan;
}
#endif
