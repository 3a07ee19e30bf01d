/* Which way a collective over shared memory goes, chosen by trials (choice.h) of what whole operations cost.
 *
 * Slots can be filled by ordinary stores or past the caches (stream.h); and instead of going through slots, ranks can read each
 * other's arrays (direct.h). What one rank saves another may lose: who fills past the caches leaves lines in memory to who reads.
 * So all ranks of a group go the same way in the same runs. In the first run of a try they tell each other what each way
 * has cost them and all choose alike, by the slowest. */
#ifndef ACOMM_TRIAL_H
#define ACOMM_TRIAL_H
#include "choice.h"
#include "stream.h"

struct rounds;

/* Of two ranks. With more there are two ways, as each of them chooses its own stores for each reader (rounds_fill): that costs them
 * 0.94 to 1.02 of what the best stores for all do, and tries of a third way cost more. */
enum trial_way { TRIAL_KEPT, TRIAL_PAST, TRIAL_DIRECT, TRIAL_WAYS };
#define TRIAL_SLOTS TRIAL_DIRECT /* ways by slots alone */
_Static_assert((int)TRIAL_WAYS == CHOICE_WAYS, "as many as a choice has");

struct trial {
    struct choice *choice;
    uint64_t bytes;
    int64_t before;
    int way;                     /* by its number among those of the group */
    bool direct;                 /* which is to read each other's arrays, or to fill slots so: */
    enum stream_stores stores;
};

/* Begins a run on `bytes` bytes, the same on all ranks, through slots or where that is possible `direct`; with a meeting of all now and
 * then. 0, or what the meeting returned. */
int trial_begin(struct trial *t, struct rounds *r, uint64_t bytes, bool direct);
/* The run was done. */
void trial_end(const struct trial *t, const struct rounds *r);
#endif
