/* A long operation of two ranks whose way trials choose (trial.h), in chunks: the same elements of all blocks by themselves, one
 * after another.
 *
 * A try as long as the operation would be dear, many programs make a dozen of them at all, and how far apart the cores are changes
 * within one, and with it what each way costs. So tries are chunks. More than two ranks take turns on
 * their cores: what one of 16 MiB costs them differs by more than the ways do, and nothing was gained. */
#ifndef ACOMM_CHUNKS_H
#define ACOMM_CHUNKS_H
#include "group/op.h"

/* Elements of a block in a chunk of an operation on `bytes` bytes; 0: it is run whole. The same on all ranks. */
uint64_t chunks_of(const struct acomm_op *op, uint64_t bytes);
/* Runs `op` by its algorithm, which is called again for each chunk. 0 or the group's failure. */
int chunks_run(struct acomm_op *op, uint64_t bytes);
#endif
