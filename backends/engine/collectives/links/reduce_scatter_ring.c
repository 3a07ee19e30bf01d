/* Ring reduce_scatter: the first half of the ring all_reduce (see there), for blocks of any sizes. A partial of each
 * block goes once around the ring and ends at its owner. Two buffers: one arrives while the other leaves. */
#include "collectives/blocks.h"
#include "collectives/partials.h"

#define SEGMENT ((size_t)1 << 20) /* bytes of partials of a block */

static void reduce_scatter_ring_begin(const struct partials *p, char *partial, struct pattern_range part)
{
    if (part.count)
        reduce_begin(&p->reduction, partial, p->op->in + part.first * p->op->width, part.count);
}

static int reduce_scatter_ring_run_segment(const struct partials *p, uint64_t segment)
{
    int rank = p->op->team->rank, n = p->op->team->size;
    char *leaving = p->buffer, *arriving = p->buffer + p->bytes;
    struct pattern_range part = partials_part(p, segment, pattern_ring_reduce_sends(rank, n, 0));
    reduce_scatter_ring_begin(p, leaving, part);
    for (int step = 0; step < n - 1; step++) {
        struct pattern_range next = partials_part(p, segment, pattern_ring_reduce_receives(rank, n, step));
        reduce_scatter_ring_begin(p, arriving, next);
        struct transfer list[] = {partials_to(p, pattern_next(rank, n), leaving, part.count),
                                  partials_from(p, pattern_prev(rank, n), arriving, next.count, true)};
        int rc = transfer_run(p->op, list, 2);
        if (rc)
            return rc;
        char *free_again = leaving;
        leaving = arriving;
        arriving = free_again;
        part = next;
    }
    if (part.count) /* the own block, and last in `leaving` */
        reduce_finish(&p->reduction, p->op->out + segment * p->segment * p->op->width, leaving, part.count);
    return 0;
}

int reduce_scatter_ring(struct acomm_op *op)
{
    uint64_t largest = blocks_largest(op->send_counts, op->count, op->team->size);
    struct partials p;
    int rc = partials_open(&p, op, 2, SEGMENT);
    for (uint64_t segment = 0; !rc && segment * p.segment < largest; segment++)
        rc = reduce_scatter_ring_run_segment(&p, segment);
    return rc;
}
