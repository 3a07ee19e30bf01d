/* One-sided operations on memory of a group's ranks, all on one host: who asks does it, the owner takes no part.
 *
 * A symmetric array is written where its peers have mapped it (arena.h), any other by the kernel (window.h). Either way a rank
 * counts itself in before it touches another's memory, and an owner that closes waits until nobody is in (window.h).
 * Every rank has a `control` in its arena: a lock for accumulates, and what each of the others has said so far. */
#ifndef ACOMM_RMA_H
#define ACOMM_RMA_H
#include <stdatomic.h>
#include "acomm.h"

struct acomm_rma;
/* Of the group that is stopping: threads inside are on their way out, and none comes in. */
void rma_close_all(struct acomm_group *g);
#endif
