/* gather and scatter straight between the root and each rank: no block travels twice, so better than a tree once the
 * root's own link is what limits. */
#include <errno.h>

#include "base/pattern.h"
#include "group/transfer.h"
#include "collectives/blocks.h"
#include "collectives/collectives.h"

/* The root's transfers with all others. */
static int run_root(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size;
    struct transfer *list = group_scratch(op, (size_t)n * sizeof *list);
    if (!list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    for (int step = 0; step < n - 1; step++) {
        int peer = pattern_pairwise_to(rank, n, step);
        struct span block = op_block(NULL, op->count, peer, op->width);
        list[step] = op->kind == ACOMM_GATHER ? transfer_from(op, peer, blocks_at(op->out, block.offset), block.bytes)
                                              : transfer_to(op, peer, blocks_at(op->in, block.offset), block.bytes);
    }
    return transfer_run(op, list, n - 1);
}

int gather_linear(struct acomm_op *op)
{
    struct span own = op_block(NULL, op->count, op->team->rank, op->width);
    if (op->team->rank != op->root)
        return transfer_exchange(op, op->root, op->in, own.bytes, -1, NULL, 0);
    int rc = blocks_copy_all(op, blocks_at(op->out, own.offset), op->in, own.bytes);
    return rc ? rc : run_root(op);
}

int scatter_linear(struct acomm_op *op)
{
    struct span own = op_block(NULL, op->count, op->team->rank, op->width);
    if (op->team->rank != op->root)
        return transfer_exchange(op, -1, NULL, 0, op->root, op->out, own.bytes);
    int rc = run_root(op);
    return rc ? rc : blocks_copy_all(op, op->out, blocks_at(op->in, own.offset), own.bytes);
}
