/* Which way a collective over shared memory goes, chosen by trials (choice.h) of what whole operations cost: through slots, or by
 * reading each other's arrays (direct.h). All ranks of a group go the same way in the same runs: in the first run of a try they tell
 * each other what each way has cost them, and all choose alike, by the slowest. */
#ifndef ACOMM_TRIAL_H
#define ACOMM_TRIAL_H
#include "base/choice.h"

struct rounds;

enum trial_way { TRIAL_SLOTS, TRIAL_DIRECT, TRIAL_WAYS };
_Static_assert((int)TRIAL_WAYS <= CHOICE_WAYS, "as many as a choice has");

struct trial {
    struct choice *choice;
    uint64_t bytes;
    int64_t before, faults;
    enum trial_way way;
};

/* Begins a run on `bytes` bytes, the same on all ranks, with a meeting of all now and then. 0, or what the meeting returned. */
int trial_begin(struct trial *t, struct rounds *r, uint64_t bytes);
/* The run was done. */
void trial_end(const struct trial *t, const struct rounds *r);

/* A long operation of two ranks whose way trials choose (trial.h), in chunks: the same elements of all blocks by themselves, one
 * after another.
 *
 * A try as long as the operation would be dear, many programs make a dozen of them at all, and how far apart the cores are changes
 * within one, and with it what each way costs. So tries are chunks. More than two ranks take turns on
 * their cores: what one of 16 MiB costs them differs by more than the ways do, and nothing was gained. */
/* Elements of a block in a chunk of an operation on `bytes` bytes; 0: it is run whole. The same on all ranks. */
uint64_t chunks_of(const struct acomm_op *op, uint64_t bytes);
/* Runs `op` by its algorithm, which is called again for each chunk. 0 or the group's failure. */
int chunks_run(struct acomm_op *op, uint64_t bytes);
#endif
