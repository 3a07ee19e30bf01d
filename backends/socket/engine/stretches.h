/* A long operation whose way trials choose (trial.h), in stretches: the same elements of all blocks by themselves, one after another.
 *
 * A try as long as the operation would be dear, many programs make a dozen of them at all, and what the cores are like changes within
 * one. So tries are stretches; with more than two ranks, which take turns on their cores to meet, only until all ways are known. */
#ifndef ACOMM_STRETCHES_H
#define ACOMM_STRETCHES_H
#include "op.h"

/* Elements of a block in a stretch of an operation on `bytes` bytes; 0: it is run whole. The same on all ranks. */
uint64_t stretches_next(const struct acomm_op *op, uint64_t bytes);
/* Runs `op` by its algorithm, which is called again for each stretch. 0 or the group's failure. */
int stretches_run(struct acomm_op *op, uint64_t bytes);
#endif
