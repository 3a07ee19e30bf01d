/* Ring all_reduce: a ring reduce-scatter, then a ring all-gather; every link carries 2(n-1)/n of the array, the least
 * possible, in 2(n-1) steps. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", J. Parallel and Distributed Computing 69 (2009).
 * One rank finishes each block and the others copy it, so all ranks get the same bits. */
#include "collectives/partials.h"

#define SEGMENT ((size_t)16 << 20)        /* bytes, where the output holds the partials: the last-level cache */
#define SEGMENT_WIDENED ((size_t)2 << 20) /* bytes of scratch, where it cannot */

static int reduce_scatter(struct partials *p, char *partial, uint64_t count)
{
    int rank = p->op->team->rank, n = p->op->team->size, rc = 0;
    for (int step = 0; step < n - 1 && !rc; step++) {
        struct pattern_range sent = pattern_block(count, n, pattern_ring_reduce_sends(rank, n, step));
        struct pattern_range received = pattern_block(count, n, pattern_ring_reduce_receives(rank, n, step));
        struct transfer list[] = {
            partials_to(p, pattern_next(rank, n), partial + sent.first * p->width, sent.count),
            partials_from(p, pattern_prev(rank, n), partial + received.first * p->width, received.count, true)};
        rc = transfer_run(p->op, list, 2);
    }
    return rc;
}

static int all_gather(struct acomm_op *op, char *out, uint64_t count)
{
    int rank = op->team->rank, n = op->team->size, rc = 0;
    for (int step = 0; step < n - 1 && !rc; step++) {
        struct pattern_range sent = pattern_block(count, n, pattern_ring_gather_sends(rank, n, step));
        struct pattern_range received = pattern_block(count, n, pattern_ring_gather_receives(rank, n, step));
        rc = transfer_exchange(op, pattern_next(rank, n), out + sent.first * op->width, sent.count * op->width,
                               pattern_prev(rank, n), out + received.first * op->width, received.count * op->width);
    }
    return rc;
}

static int all_reduce_ring_run_segment(struct partials *p, const char *in, char *out, uint64_t count)
{
    char *partial = p->widened ? p->buffer : out;
    reduce_begin(&p->reduction, partial, in, count);
    int rc = reduce_scatter(p, partial, count);
    if (rc)
        return rc;
    struct pattern_range own = pattern_block(count, p->op->team->size, p->op->team->rank);
    reduce_finish(&p->reduction, out + own.first * p->op->width, partial + own.first * p->width, own.count);
    return all_gather(p->op, out, count);
}

int all_reduce_ring(struct acomm_op *op)
{
    struct partials p;
    bool widened = reduce_partial_dtype(op->dtype) != op->dtype;
    int rc = partials_open(&p, op, widened ? 1 : 0, widened ? SEGMENT_WIDENED : SEGMENT);
    return rc ? rc : partials_each_segment(&p, all_reduce_ring_run_segment);
}
