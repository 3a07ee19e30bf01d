/* One-sided operations on memory of a group's ranks, all on one host: the caller does all the work, the owner takes no part.
 *
 * A symmetric array is written where its peers have mapped it (arena.h), any other by the kernel (window.h). Either way a rank
 * counts itself in before it accesses another's memory, and an owner that closes waits until the counts are zero (window.h).
 * Every rank has a `control` in its arena: a lock for accumulates, and the notices of each other rank so far. */
#ifndef ACOMM_RMA_H
#define ACOMM_RMA_H
#include <stdatomic.h>
#include "acomm.h"

struct acomm_rma;
/* Of a stopping group: threads inside are returning, and no thread enters. */
void rma_close_all(struct acomm_group *g);
#endif
