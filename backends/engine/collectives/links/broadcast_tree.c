/* broadcast along a tree. Every rank forwards received bytes while the rest is still arriving, so that the time for a long array
 * is that of one transfer and little more per level. Binomial tree: log2 n levels, for short arrays. Chain: n - 1 levels, but
 * every rank sends the array only once: for long ones, where the sender's link is the limit. */
#include <errno.h>

#include "collectives/collectives.h"

#define CHILDREN 31

struct tree { int parent, children, child[CHILDREN]; };

static int relay(struct acomm_op *op, const struct tree *tree)
{
    bool root = tree->parent < 0;
    uint64_t bytes = op->count * op->width;
    bool aside = op->ahead && !root && op->team->size > 2; /* another rank's mismatch may arrive before the end */
    char *data = root ? (char *)(uintptr_t)op->in : aside ? group_scratch(op, bytes) : op->out;
    struct transfer list[1 + CHILDREN];
    int used = 0;
    if (bytes && !data)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    if (!root)
        list[used++] = transfer_from(op, tree->parent, data, bytes);
    for (int i = 0; i < tree->children; i++) {
        list[used] = transfer_to(op, tree->child[i], data, bytes);
        list[used++].behind = root ? NULL : &list[0];
    }
    int rc = transfer_run(op, list, used);
    return rc || !op->out ? rc : blocks_copy_all(op, op->out, data, bytes);
}

int broadcast_binomial(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size;
    struct tree tree = {.parent = pattern_tree_parent(rank, op->root, n),
                        .children = pattern_tree_children(rank, op->root, n)};
    for (int i = 0; i < tree.children; i++)
        tree.child[i] = pattern_tree_child(rank, op->root, n, tree.children - 1 - i); /* the deepest subtree first */
    return relay(op, &tree);
}

int broadcast_chain(struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size, place = pattern_virtual(rank, op->root, n);
    struct tree tree = {.parent = place == 0 ? -1 : pattern_prev(rank, n), .children = place < n - 1,
                        .child = {pattern_next(rank, n)}};
    return relay(op, &tree);
}
