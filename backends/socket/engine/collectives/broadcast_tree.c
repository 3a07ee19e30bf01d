/* broadcast along a tree, in segments that a rank passes on while the next one arrives. Binomial tree: log2 n steps,
 * for short arrays. Chain: the longest way, but every rank sends the array only once, so that for long arrays the
 * time is that of one transfer and n-2 segments. */
#include "../group.h"
#include "../pattern.h"
#include "../transfer.h"
#include "blocks.h"
#include "collectives.h"

#define SEGMENT ((uint64_t)128 << 10) /* bytes */
#define CHILDREN 31

struct tree { int parent, children, child[CHILDREN]; };

static struct span segment_of(uint64_t bytes, uint64_t segment)
{
    return blocks_part((struct span){0, bytes}, segment, SEGMENT);
}

static int relay(struct acomm_op *op, const struct tree *tree)
{
    bool root = tree->parent < 0;
    const char *data = root ? op->in : op->out;
    uint64_t bytes = op->count * op->width, segments = (bytes + SEGMENT - 1) / SEGMENT;
    for (uint64_t turn = 0; turn < segments + !root; turn++) {
        struct transfer list[1 + CHILDREN];
        int used = 0;
        struct span arriving = segment_of(bytes, turn), leaving = segment_of(bytes, root ? turn : turn - 1);
        if (!root)
            list[used++] = transfer_from(op, tree->parent, blocks_at(data, arriving.offset), arriving.bytes);
        for (int i = 0; i < tree->children && (root || turn > 0); i++)
            list[used++] = transfer_to(op, tree->child[i], blocks_at(data, leaving.offset), leaving.bytes);
        int rc = transfer_run(op, list, used);
        if (rc)
            return rc;
    }
    if (root && op->out)
        blocks_copy(op->out, op->in, bytes);
    return 0;
}

int broadcast_binomial(struct acomm_op *op)
{
    int rank = op->group->rank, n = op->group->size;
    struct tree tree = {.parent = pattern_tree_parent(rank, op->root, n),
                        .children = pattern_tree_children(rank, op->root, n)};
    for (int i = 0; i < tree.children; i++)
        tree.child[i] = pattern_tree_child(rank, op->root, n, tree.children - 1 - i); /* the deepest subtree first */
    return relay(op, &tree);
}

int broadcast_chain(struct acomm_op *op)
{
    int rank = op->group->rank, n = op->group->size, place = pattern_virtual(rank, op->root, n);
    struct tree tree = {.parent = place == 0 ? -1 : pattern_prev(rank, n), .children = place < n - 1,
                        .child = {pattern_next(rank, n)}};
    return relay(op, &tree);
}
