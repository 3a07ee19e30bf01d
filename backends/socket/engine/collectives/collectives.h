/* Every algorithm: runs the operation to its end, blocking. 0, or the code of the group's failure. One file each.
 *
 * Terms. Block: the part of an array that belongs to one rank (pattern.h, op_block). Segment: a run of elements that
 * is finished before the next one starts, so that scratch stays bounded however long the array is. Partial: the
 * reduction of some ranks' contributions, in reduce_partial_dtype(). Root, binomial tree and virtual rank: see
 * pattern.h.
 *
 * in == out works everywhere but in all_to_all, where it is refused (acomm.h); an all_gather's input may lie at its own
 * block of the output. A pointer is NULL where the rank gives or gets nothing. "Checked" algorithms compare headers while
 * they run, all others after agree(). */
#ifndef ACOMM_COLLECTIVES_H
#define ACOMM_COLLECTIVES_H
#include "../op.h"

/* Over links. */
int all_reduce_bruck(struct acomm_op *op); /* checked, as all of bruck.c */
int all_reduce_doubling(struct acomm_op *op);
int all_reduce_halving(struct acomm_op *op);
int all_reduce_pairwise(struct acomm_op *op);
int all_reduce_ring(struct acomm_op *op);
int reduce_bruck(struct acomm_op *op);
int reduce_binomial(struct acomm_op *op);
int reduce_pairwise(struct acomm_op *op);
int broadcast_bruck(struct acomm_op *op);
int broadcast_binomial(struct acomm_op *op);
int broadcast_chain(struct acomm_op *op);
int all_gather_bruck(struct acomm_op *op);
int all_gather_ring(struct acomm_op *op);
int gather_bruck(struct acomm_op *op);
int gather_binomial(struct acomm_op *op);
int gather_linear(struct acomm_op *op);
int scatter_bruck(struct acomm_op *op);
int scatter_binomial(struct acomm_op *op);
int scatter_linear(struct acomm_op *op);
int reduce_scatter_bruck(struct acomm_op *op);
int reduce_scatter_pairwise(struct acomm_op *op);
int reduce_scatter_ring(struct acomm_op *op);
int all_to_all_bruck(struct acomm_op *op);
int all_to_all_pairwise(struct acomm_op *op);
int barrier_dissemination(struct acomm_op *op); /* checked */

/* Over several hosts, made of parts (part.h). Bruck's do it too. */
int hosts_reduce_leader(struct acomm_op *op); /* reduce and all_reduce; checked */
int hosts_reduce_leaders(struct acomm_op *op);
int hosts_broadcast(struct acomm_op *op);
int hosts_all_gather(struct acomm_op *op);
int hosts_reduce_scatter(struct acomm_op *op); /* checked */

/* Over the segment that all ranks of one host share; all checked. */
int shared_all_reduce_whole(struct acomm_op *op); /* reduce too */
int shared_all_reduce_sliced(struct acomm_op *op); /* reduce too */
int shared_broadcast(struct acomm_op *op);
int shared_all_gather(struct acomm_op *op); /* gather too */
int shared_scatter(struct acomm_op *op);
int shared_reduce_scatter(struct acomm_op *op);
int shared_all_to_all(struct acomm_op *op);
int shared_barrier(struct acomm_op *op);

/* The same between the arrays where they lie, where that is possible and cheaper (direct.h); all checked. */
int direct_all_reduce(struct acomm_op *op);
int direct_broadcast(struct acomm_op *op);
int direct_all_gather(struct acomm_op *op);
int direct_gather(struct acomm_op *op);
int direct_scatter(struct acomm_op *op);
int direct_reduce_scatter(struct acomm_op *op);
int direct_all_to_all(struct acomm_op *op);

#endif
