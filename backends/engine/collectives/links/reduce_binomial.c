/* Binomial tree reduce: every rank combines its children's partials with its own part and sends the result to its
 * parent; log2 n steps. The order of a sum is that of the virtual ranks. A segment goes up while the next one
 * arrives. */
#include "collectives/partials.h"

#define SEGMENT ((size_t)256 << 10) /* bytes; two such buffers */

/* Receives the children's partials of one segment. Meanwhile `up`, the send of the segment before to the parent, ends. */
static int combine_children(const struct partials *p, char *partial, uint64_t count, struct transfer up)
{
    int rank = p->op->team->rank, n = p->op->team->size, root = p->op->root, rc = 0;
    int children = pattern_tree_children(rank, root, n);
    if (!children)
        return transfer_run(p->op, &up, 1);
    for (int i = 0; i < children && !rc; i++) {
        struct transfer list[2] = {partials_from(p, pattern_tree_child(rank, root, n, i), partial, count, false), up};
        rc = transfer_run(p->op, list, i == 0 ? 2 : 1);
    }
    return rc;
}

int reduce_binomial(struct acomm_op *op)
{
    int parent = pattern_tree_parent(op->team->rank, op->root, op->team->size);
    struct transfer up = {0};
    struct partials p;
    int rc = partials_open(&p, op, 2, SEGMENT);
    for (uint64_t at = 0, turn = 0; at < op->count && !rc; at += p.segment, turn++) {
        uint64_t count = op->count - at < p.segment ? op->count - at : p.segment;
        char *partial = p.buffer + turn % 2 * p.bytes;
        reduce_begin(&p.reduction, partial, op->in + at * op->width, count);
        rc = combine_children(&p, partial, count, up);
        if (parent >= 0)
            up = partials_to(&p, parent, partial, count);
        else if (!rc)
            reduce_finish(&p.reduction, op->out + at * op->width, partial, count);
    }
    return rc ? rc : transfer_run(op, &up, 1);
}
