/* Rings: n - 1 steps, in each of which every rank sends to the next one and receives from the one before.
 *
 * all_gather forwards the block received in the step before; blocks may have different sizes. Chan et al., "Collective
 * communication: theory, practice, and experience" (2007).
 * reduce_scatter: a partial of each block goes once around the ring and ends at its owner. Two buffers: one arrives while the
 * other leaves.
 * all_reduce does both, one after the other; every link carries 2(n-1)/n of the array, the least possible. Patarasuk and Yuan,
 * "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel and Distributed Computing 69 (2009).
 * One rank finishes each block and the others copy it, so all ranks get the same bits. */
#include "collectives/partials.h"

#define SEGMENT ((size_t)16 << 20)        /* bytes of an all_reduce, where the output holds the partials: the last-level cache */
#define SEGMENT_WIDENED ((size_t)2 << 20) /* bytes of scratch, where it cannot */
#define SEGMENT_BLOCK ((size_t)1 << 20)   /* bytes of partials of a block of a reduce_scatter */

/* Where the block of a rank lies: of an all_gather (count 0), or of an all_reduce's segment of so many elements. */
static struct span ring_block(const struct acomm_op *op, uint64_t count, int rank)
{
    if (!count)
        return op_gathered(op, rank);
    struct pattern_range block = pattern_block(count, op->team->size, rank);
    return (struct span){block.first * op->width, block.count * op->width};
}

static int ring_gather(struct acomm_op *op, char *out, uint64_t count)
{
    int rank = op->team->rank, n = op->team->size, rc = 0;
    for (int step = 0; step < n - 1 && !rc; step++) {
        struct span sent = ring_block(op, count, pattern_ring_gather_sends(rank, n, step));
        struct span got = ring_block(op, count, pattern_ring_gather_receives(rank, n, step));
        rc = transfer_exchange(op, pattern_next(rank, n), blocks_at(out, sent.offset), sent.bytes,
                               pattern_prev(rank, n), blocks_at(out, got.offset), got.bytes);
    }
    return rc;
}

int all_gather_ring(struct acomm_op *op)
{
    struct span own = op_gathered(op, op->team->rank);
    int rc = blocks_copy_all(op, blocks_at(op->out, own.offset), op->in, own.bytes);
    return rc ? rc : ring_gather(op, op->out, 0);
}

/* ---- all_reduce ---- */

static int ring_reduce(struct partials *p, char *partial, uint64_t count)
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

static int ring_segment(struct partials *p, const char *in, char *out, uint64_t count)
{
    char *partial = p->widened ? p->buffer : out;
    reduce_begin(&p->reduction, partial, in, count);
    int rc = ring_reduce(p, partial, count);
    if (rc)
        return rc;
    struct pattern_range own = pattern_block(count, p->op->team->size, p->op->team->rank);
    reduce_finish(&p->reduction, out + own.first * p->op->width, partial + own.first * p->width, own.count);
    return ring_gather(p->op, out, count);
}

int all_reduce_ring(struct acomm_op *op)
{
    struct partials p;
    bool widened = reduce_partial_dtype(op->dtype) != op->dtype;
    int rc = partials_open(&p, op, widened ? 1 : 0, widened ? SEGMENT_WIDENED : SEGMENT);
    return rc ? rc : partials_each_segment(&p, ring_segment);
}

/* ---- reduce_scatter ---- */

static void ring_begin(const struct partials *p, char *partial, struct pattern_range part)
{
    if (part.count)
        reduce_begin(&p->reduction, partial, p->op->in + part.first * p->op->width, part.count);
}

static int ring_scatter_segment(const struct partials *p, uint64_t segment)
{
    int rank = p->op->team->rank, n = p->op->team->size;
    char *leaving = p->buffer, *arriving = p->buffer + p->bytes;
    struct pattern_range part = partials_part(p, segment, pattern_ring_reduce_sends(rank, n, 0));
    ring_begin(p, leaving, part);
    for (int step = 0; step < n - 1; step++) {
        struct pattern_range next = partials_part(p, segment, pattern_ring_reduce_receives(rank, n, step));
        ring_begin(p, arriving, next);
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
    uint64_t largest = op_largest(op->send_counts, op->count, op->team->size);
    struct partials p;
    int rc = partials_open(&p, op, 2, SEGMENT_BLOCK);
    for (uint64_t segment = 0; !rc && segment * p.segment < largest; segment++)
        rc = ring_scatter_segment(&p, segment);
    return rc;
}
