/* Every algorithm, and what algorithms are made of: blocks, index patterns, transfers. Runs the operation to its end, blocking.
 * 0, or the code of the group's failure. Their list is the table.
 *
 * Terms. Block: the part of an array that belongs to one rank (pattern.h, op_block). Segment: a run of elements that
 * is finished before the next one starts, so that scratch stays bounded however long the array is. Partial: the
 * reduction of some ranks' contributions, in reduce_partial_dtype(). Root, binomial tree and virtual rank: see
 * pattern.h.
 *
 * in == out works everywhere but in all_to_all, where it is refused (acomm.h); an all_gather's input may lie at its own block of
 * the output. A pointer is NULL where the rank sends or receives nothing. Rows with CHECKS compare call signatures while they
 * run; all others run after signature_check(). */
#ifndef ACOMM_COLLECTIVES_H
#define ACOMM_COLLECTIVES_H
#include "base/pattern.h"
#include "collectives/blocks.h"
#include "group/group.h"
#include "group/transfer.h"

#define ROW(kind, name, function, ...) int function(struct acomm_op *op);
#include "collectives/table.h"
#undef ROW

/* Their rows; the last has no name. */
extern const struct algorithm collectives_table[];

#endif
