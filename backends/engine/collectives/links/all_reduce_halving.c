/* Recursive halving and doubling all_reduce: a reduce-scatter that halves the range a rank cares for in every step,
 * then the way back. Moves as little as the ring (for powers of two), in 2 log2 n steps instead of 2(n-1).
 * Rabenseifner, "Optimization of collective reduction operations", ICCS 2004. Ranges are runs of 2^k blocks, k =
 * pattern_doubling_steps(n). Ranks beyond a power of two fold, as in doubling. */
#include "collectives/partials.h"

#define SEGMENT ((size_t)16 << 20)        /* bytes, where the output holds the partials */
#define SEGMENT_WIDENED ((size_t)2 << 20) /* bytes of scratch, where it cannot */

/* Elements of the blocks first .. first + blocks - 1. */
static struct pattern_range elements(uint64_t count, int ranks, int first, int blocks)
{
    struct pattern_range start = pattern_block(count, ranks, first);
    struct pattern_range last = pattern_block(count, ranks, first + blocks - 1);
    return (struct pattern_range){start.first, last.first + last.count - start.first};
}

/* Returns through `kept` the first block of the range that this rank holds in the end: one block. */
static int halve(struct partials *p, char *partial, uint64_t count, int *kept)
{
    int rank = p->op->team->rank, n = p->op->team->size, steps = pattern_doubling_steps(n), rc = 0;
    int number = pattern_doubling_number(rank, n);
    *kept = 0;
    for (int step = 0; step < steps && !rc; step++) {
        int peer = pattern_doubling_partner(rank, n, step), half = 1 << (steps - step - 1);
        int given = *kept + half;
        if (number >> step & 1) {
            given = *kept;
            *kept += half;
        }
        struct pattern_range out = elements(count, 1 << steps, given, half);
        struct pattern_range in = elements(count, 1 << steps, *kept, half);
        struct transfer list[] = {partials_to(p, peer, partial + out.first * p->width, out.count),
                                  partials_from(p, peer, partial + in.first * p->width, in.count, peer < rank)};
        rc = transfer_run(p->op, list, 2);
    }
    return rc;
}

static int double_back(struct acomm_op *op, char *data, uint64_t count, int kept)
{
    int rank = op->team->rank, n = op->team->size, steps = pattern_doubling_steps(n), rc = 0;
    for (int step = steps - 1; step >= 0 && !rc; step--) {
        int peer = pattern_doubling_partner(rank, n, step), half = 1 << (steps - step - 1);
        struct pattern_range out = elements(count, 1 << steps, kept, half);
        struct pattern_range in = elements(count, 1 << steps, kept ^ half, half);
        rc = transfer_exchange(op, peer, data + out.first * op->width, out.count * op->width, peer,
                               data + in.first * op->width, in.count * op->width);
        kept &= ~half;
    }
    return rc;
}

static int all_reduce_halving_take_part(struct partials *p, int fold, char *partial, char *out, uint64_t count)
{
    int kept = 0, rc = 0, ranks = 1 << pattern_doubling_steps(p->op->team->size);
    if (fold >= 0) {
        struct transfer taken = partials_from(p, fold, partial, count, false);
        rc = transfer_run(p->op, &taken, 1);
    }
    if (!rc)
        rc = halve(p, partial, count, &kept);
    if (rc)
        return rc;
    struct pattern_range own = pattern_block(count, ranks, kept);
    reduce_finish(&p->reduction, out + own.first * p->op->width, partial + own.first * p->width, own.count);
    rc = double_back(p->op, out, count, kept);
    return rc || fold < 0 ? rc : transfer_exchange(p->op, fold, out, count * p->op->width, -1, NULL, 0);
}

static int all_reduce_halving_run_segment(struct partials *p, const char *in, char *out, uint64_t count)
{
    int rank = p->op->team->rank, n = p->op->team->size, fold = pattern_doubling_fold(rank, n);
    char *partial = p->widened ? p->buffer : out;
    reduce_begin(&p->reduction, partial, in, count);
    if (pattern_doubling_number(rank, n) >= 0)
        return all_reduce_halving_take_part(p, fold, partial, out, count);
    int rc = transfer_exchange(p->op, fold, partial, count * p->width, -1, NULL, 0);
    return rc ? rc : transfer_exchange(p->op, -1, NULL, 0, fold, out, count * p->op->width);
}

int all_reduce_halving(struct acomm_op *op)
{
    struct partials p;
    bool widened = reduce_partial_dtype(op->dtype) != op->dtype;
    int rc = partials_open(&p, op, widened ? 1 : 0, widened ? SEGMENT_WIDENED : SEGMENT);
    return rc ? rc : partials_each_segment(&p, all_reduce_halving_run_segment);
}
