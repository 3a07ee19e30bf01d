/* Ring all_gather: n-1 steps, in each of which every rank passes on the block it got in the step before. Blocks may
 * have different sizes. Chan et al., "Collective communication: theory, practice, and experience" (2007). */
#include "base/pattern.h"
#include "group/transfer.h"
#include "group/group.h"
#include "collectives/blocks.h"
#include "collectives/collectives.h"

int all_gather_ring(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size;
    struct span own = op_gathered(op, rank);
    int rc = blocks_copy_all(op, blocks_at(op->out, own.offset), op->in, own.bytes);
    for (int step = 0; step < n - 1 && !rc; step++) {
        struct span sent = op_gathered(op, pattern_ring_gather_sends(rank, n, step));
        struct span got = op_gathered(op, pattern_ring_gather_receives(rank, n, step));
        rc = transfer_exchange(op, pattern_next(rank, n), blocks_at(op->out, sent.offset), sent.bytes,
                               pattern_prev(rank, n), blocks_at(op->out, got.offset), got.bytes);
    }
    return rc;
}
