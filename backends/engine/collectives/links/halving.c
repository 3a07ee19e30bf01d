/* Recursive halving: a reduce-scatter that halves a rank's range in every step; for all_reduce and reduce then the same steps in
 * reverse. Moves as few bytes as the ring (for powers of two; reduce twice as much as it had to), in 2 log2 n steps instead of
 * 2(n-1). Rabenseifner, "Optimization of collective reduction operations", ICCS 2004. Ranges are runs of 2^k blocks, k =
 * pattern_doubling_steps(n). Ranks beyond a power of two fold, as in doubling. */
#include <errno.h>
#include <stdlib.h>

#include "collectives/partials.h"

#define SEGMENT ((size_t)16 << 20)        /* bytes, where the output holds the partials */
#define SEGMENT_SCRATCH ((size_t)2 << 20) /* where scratch does, as it has to on some rank */
#define PART_MIN ((size_t)4 << 10)        /* of each of many blocks */

struct halving {
    struct partials p;
    int rank, n, fold, number; /* number: among those that take part */
    int steps, ranks;          /* ranks: that take part */
    uint64_t *place;           /* ranks + 1: where the blocks begin that ranges are made of, in elements */
};

static int halving_open(struct halving *h, struct acomm_op *op, int buffers, size_t bytes)
{
    int rank = op->team->rank, n = op->team->size, steps = pattern_doubling_steps(n);
    *h = (struct halving){.rank = rank, .n = n, .fold = pattern_doubling_fold(rank, n), .number = pattern_doubling_number(rank, n),
                          .steps = steps, .ranks = 1 << steps, .place = malloc(((size_t)n + 1) * sizeof *h->place)};
    return h->place ? partials_open(&h->p, op, buffers, bytes) : group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
}

/* Elements of the blocks first .. first + blocks - 1. */
static struct pattern_range elements(const struct halving *h, int first, int blocks)
{
    return (struct pattern_range){h->place[first], h->place[first + blocks] - h->place[first]};
}

/* Returns through `kept` the first block of the range that this rank holds in the end: one block. */
static int halve(const struct halving *h, char *partial, int *kept)
{
    const struct partials *p = &h->p;
    int rc = 0;
    *kept = 0;
    for (int step = 0; step < h->steps && !rc; step++) {
        int peer = pattern_doubling_partner(h->rank, h->n, step), half = 1 << (h->steps - step - 1);
        int given = *kept + half;
        if (h->number >> step & 1) {
            given = *kept;
            *kept += half;
        }
        struct pattern_range out = elements(h, given, half), in = elements(h, *kept, half);
        struct transfer list[] = {partials_to(p, peer, partial + out.first * p->width, out.count),
                                  partials_from(p, peer, partial + in.first * p->width, in.count, peer < h->rank)};
        rc = transfer_run(p->op, list, 2);
    }
    return rc;
}

/* Combines the contribution of a folding rank, and halves the range of those that take part. */
static int take_and_halve(const struct halving *h, char *partial, int *kept)
{
    int rc = 0;
    if (h->fold >= 0) {
        struct transfer taken = partials_from(&h->p, h->fold, partial, h->place[h->ranks], false);
        rc = transfer_run(h->p.op, &taken, 1);
    }
    return rc ? rc : halve(h, partial, kept);
}

/* ---- all_reduce and reduce ---- */

static int double_back(const struct halving *h, char *data, int kept)
{
    struct acomm_op *op = h->p.op;
    int rc = 0;
    for (int step = h->steps - 1; step >= 0 && !rc; step--) {
        int peer = pattern_doubling_partner(h->rank, h->n, step), half = 1 << (h->steps - step - 1);
        struct pattern_range out = elements(h, kept, half), in = elements(h, kept ^ half, half);
        rc = transfer_exchange(op, peer, data + out.first * op->width, out.count * op->width, peer,
                               data + in.first * op->width, in.count * op->width);
        kept &= ~half;
    }
    return rc;
}

static int take_part(const struct halving *h, char *partial, char *out, uint64_t count)
{
    struct acomm_op *op = h->p.op;
    int kept, rc = take_and_halve(h, partial, &kept);
    if (rc)
        return rc;
    struct pattern_range own = elements(h, kept, 1);
    reduce_finish(&h->p.reduction, out + own.first * op->width, partial + own.first * h->p.width, own.count);
    rc = double_back(h, out, kept);
    return rc || h->fold < 0 ? rc : transfer_exchange(op, h->fold, out, count * op->width, -1, NULL, 0);
}

static int run_segment(const struct halving *h, const char *in, char *out, uint64_t count)
{
    const struct partials *p = &h->p;
    char *partial = p->widened ? p->buffer : out;
    for (int i = 0; i <= h->ranks; i++)
        h->place[i] = i < h->ranks ? pattern_block(count, h->ranks, i).first : count;
    reduce_begin(&p->reduction, partial, in, count);
    if (h->number >= 0)
        return take_part(h, partial, out, count);
    int rc = transfer_exchange(p->op, h->fold, partial, count * p->width, -1, NULL, 0);
    return rc ? rc : transfer_exchange(p->op, -1, NULL, 0, h->fold, out, count * p->op->width);
}

int all_reduce_halving(struct acomm_op *op)
{
    struct halving h;
    bool widened = reduce_partial_dtype(op->dtype) != op->dtype, scratch = widened || op->kind == ACOMM_REDUCE;
    int rc = halving_open(&h, op, widened + !op->out, scratch ? SEGMENT_SCRATCH : SEGMENT);
    for (uint64_t at = 0; at < op->count && !rc; at += h.p.segment) {
        uint64_t count = op->count - at < h.p.segment ? op->count - at : h.p.segment;
        char *out = op->out ? op->out + at * op->width : h.p.buffer + (widened ? h.p.bytes : 0);
        rc = run_segment(&h, op->in + at * op->width, out, count);
    }
    free(h.place);
    return rc;
}

/* ---- reduce_scatter ---- */

/* Number k of those that take part ends with the block whose place has its bits in the other order. */
static int reversed(int k, int bits)
{
    int found = 0;
    for (int bit = 0; bit < bits; bit++)
        found |= (k >> bit & 1) << (bits - bit - 1);
    return found;
}

/* This rank's own partials of a segment, block by block as the ranks that take part will hold them: of the one that a rank folds with
 * both blocks. */
static void halving_lay_out(const struct halving *h, uint64_t segment)
{
    const struct partials *p = &h->p;
    uint64_t at = 0;
    for (int i = 0; i < h->ranks; i++) {
        int owner = pattern_doubling_rank(reversed(i, h->steps), h->n), last = owner + (pattern_doubling_fold(owner, h->n) >= 0);
        h->place[i] = at;
        for (; owner <= last; owner++) {
            struct pattern_range part = partials_part(p, segment, owner);
            if (part.count)
                reduce_begin(&p->reduction, p->buffer + at * p->width, p->op->in + part.first * p->op->width, part.count);
            at += part.count;
        }
    }
    h->place[h->ranks] = at;
}

static int halving_scatter_segment(const struct halving *h, uint64_t segment)
{
    const struct partials *p = &h->p;
    uint64_t own = partials_part(p, segment, h->rank).count;
    char *mine = p->buffer;
    int kept, rc;
    halving_lay_out(h, segment);
    if (h->number < 0) {
        rc = transfer_exchange(p->op, h->fold, p->buffer, h->place[h->ranks] * p->width, -1, NULL, 0);
        rc = rc ? rc : transfer_exchange(p->op, -1, NULL, 0, h->fold, mine, own * p->width);
    } else {
        rc = take_and_halve(h, p->buffer, &kept);
        mine += rc ? 0 : h->place[kept] * p->width;
        if (!rc && h->fold >= 0)
            rc = transfer_exchange(p->op, h->fold, mine + own * p->width, partials_part(p, segment, h->fold).count * p->width,
                                   -1, NULL, 0);
    }
    if (!rc && own)
        reduce_finish(&p->reduction, p->op->out + segment * p->segment * p->op->width, mine, own);
    return rc;
}

int reduce_scatter_halving(struct acomm_op *op)
{
    size_t n = (size_t)op->team->size, part = SEGMENT_SCRATCH / n > PART_MIN ? SEGMENT_SCRATCH / n : PART_MIN;
    uint64_t largest = op_largest(op->send_counts, op->count, op->team->size);
    struct halving h;
    int rc = halving_open(&h, op, (int)n, part);
    for (uint64_t segment = 0; !rc && segment * h.p.segment < largest; segment++)
        rc = halving_scatter_segment(&h, segment);
    free(h.place);
    return rc;
}
