/* A long operation of two ranks whose way trials choose (trial.h), in stretches: the same elements of all blocks by themselves, one
 * after another.
 *
 * A try as long as the operation would be dear, many programs make a dozen of them at all, and how far apart the cores are changes
 * within one, and with it what each way costs. So tries are stretches. More than two ranks take turns on
 * their cores: what one of 16 MiB costs them differs by more than the ways do, and nothing was gained. */
#ifndef ACOMM_STRETCHES_H
#define ACOMM_STRETCHES_H
#include "group/op.h"

/* Elements of a block in a stretch of an operation on `bytes` bytes; 0: it is run whole. The same on all ranks. */
uint64_t stretches_of(const struct acomm_op *op, uint64_t bytes);
/* Runs `op` by its algorithm, which is called again for each stretch. 0 or the group's failure. */
int stretches_run(struct acomm_op *op, uint64_t bytes);
#endif
