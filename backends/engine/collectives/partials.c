/* Scratch, segments and transfers of partial results, for the algorithms that carry them from rank to rank. */
#include "collectives/partials.h"

#include <errno.h>

int partials_open(struct partials *p, struct acomm_op *op, int buffers, size_t bytes)
{
    *p = (struct partials){.op = op, .reduction = partials_reduction(op)};
    int dtype = reduce_partial_dtype(op->dtype);
    p->width = acomm_dtype_bytes(dtype);
    p->widened = dtype != op->dtype;
    p->segment = bytes / p->width;
    if (p->segment > op->count && !op->send_counts)
        p->segment = op->count ? op->count : 1; /* a short array needs little scratch */
    p->bytes = p->segment * p->width;
    p->bounce = group_scratch(op, TRANSFER_PIECE + (size_t)buffers * p->bytes);
    if (!p->bounce)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    p->buffer = p->bounce + TRANSFER_PIECE;
    return 0;
}

struct transfer partials_from(const struct partials *p, int peer, char *partial, uint64_t count, bool swap)
{
    struct transfer t = transfer_from(p->op, peer, p->bounce, count * p->width);
    t.reduction = &p->reduction;
    t.partial = partial;
    t.swap = swap;
    return t;
}

struct transfer partials_to(const struct partials *p, int peer, const char *partial, uint64_t count)
{
    return transfer_to(p->op, peer, partial, count * p->width);
}

struct pattern_range partials_part(const struct partials *p, uint64_t segment, int rank)
{
    struct span part = blocks_part(op_block(p->op->send_counts, p->op->count, rank, 1), segment, p->segment);
    return (struct pattern_range){part.offset, part.bytes};
}

int partials_each_segment(struct partials *p, partials_run *run)
{
    struct acomm_op *op = p->op;
    int rc = 0;
    for (uint64_t at = 0; at < op->count && !rc; at += p->segment) {
        uint64_t count = op->count - at < p->segment ? op->count - at : p->segment;
        rc = run(p, op->in + at * op->width, op->out + at * op->width, count);
    }
    return rc;
}
