/* gather and scatter. Along a binomial tree: log2 n steps, for short blocks. A rank handles the blocks of its subtree, which are
 * a run of virtual ranks, in segments of each block. Direct between the root and each rank: no block is sent twice, so this is
 * better than a tree once the root's own link is the bottleneck. */
#include <errno.h>

#include "collectives/collectives.h"

#define SUBTREE ((size_t)2 << 20) /* bytes of all blocks' parts in a segment */
#define PART_MIN ((size_t)4 << 10)
#define CHILDREN 31

struct subtree {
    struct acomm_op *op;
    int rank, n, root, own;  /* own: virtual rank */
    int parent, children, span;
    uint64_t block;          /* bytes */
    uint64_t part;           /* bytes of a block that a segment covers */
    char *data;              /* the parts of the subtree's blocks, packed */
};

static int open_subtree(struct subtree *s, struct acomm_op *op)
{
    int rank = op->team->rank, n = op->team->size, root = op->root, own = pattern_virtual(rank, root, n);
    *s = (struct subtree){.op = op, .rank = rank, .n = n, .root = root, .own = own, .span = pattern_tree_span(own, n)};
    s->parent = pattern_tree_parent(rank, root, n);
    s->children = pattern_tree_children(rank, root, n);
    s->block = op->count * op->width;
    s->part = SUBTREE / (size_t)n < PART_MIN ? PART_MIN : SUBTREE / (size_t)n;
    if (s->part > s->block)
        s->part = s->block;
    s->data = group_scratch(op, (size_t)s->span * s->part);
    return s->data ? 0 : group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
}

/* The transfers with all children of `length` bytes of each block. */
static int run_children(const struct subtree *s, uint64_t length, bool to)
{
    struct transfer list[CHILDREN];
    for (int i = 0; i < s->children; i++) {
        int child = pattern_tree_child(s->rank, s->root, s->n, s->children - 1 - i);
        int first = 1 << (s->children - 1 - i), blocks = pattern_tree_span(s->own + first, s->n);
        char *data = s->data + (uint64_t)first * length;
        list[i] = to ? transfer_to(s->op, child, data, (uint64_t)blocks * length)
                     : transfer_from(s->op, child, data, (uint64_t)blocks * length);
    }
    return transfer_run(s->op, list, s->children);
}

/* The root's array, where the part of virtual rank v's block lies. */
static uint64_t gather_binomial_place(const struct subtree *s, int v, uint64_t offset)
{
    return (uint64_t)pattern_actual(v, s->root, s->n) * s->block + offset;
}

static int gather_segment(const struct subtree *s, uint64_t offset, uint64_t length)
{
    blocks_copy(s->data, s->op->in + offset, length);
    int rc = run_children(s, length, false);
    if (rc)
        return rc;
    if (s->parent >= 0)
        return transfer_exchange(s->op, s->parent, s->data, (uint64_t)s->span * length, -1, NULL, 0);
    for (int v = 0; v < s->n; v++)
        blocks_copy(s->op->out + gather_binomial_place(s, v, offset), s->data + (uint64_t)v * length, length);
    return 0;
}

static int scatter_segment(const struct subtree *s, uint64_t offset, uint64_t length)
{
    int rc = 0;
    if (s->parent >= 0)
        rc = transfer_exchange(s->op, -1, NULL, 0, s->parent, s->data, (uint64_t)s->span * length);
    for (int v = 0; v < s->n && s->parent < 0; v++)
        blocks_copy(s->data + (uint64_t)v * length, s->op->in + gather_binomial_place(s, v, offset), length);
    if (!rc)
        rc = run_children(s, length, true);
    if (!rc)
        blocks_copy(s->op->out + offset, s->data, length);
    return rc;
}

static int each_segment(struct acomm_op *op, int (*run)(const struct subtree *, uint64_t offset, uint64_t length))
{
    struct subtree s;
    int rc = open_subtree(&s, op);
    for (uint64_t at = 0; !rc && at < s.block; at += s.part)
        rc = run(&s, at, s.block - at < s.part ? s.block - at : s.part);
    return rc;
}

int gather_binomial(struct acomm_op *op)
{
    return each_segment(op, gather_segment);
}

int scatter_binomial(struct acomm_op *op)
{
    return each_segment(op, scatter_segment);
}

/* ---- direct ---- */

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
