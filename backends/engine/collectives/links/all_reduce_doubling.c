/* Recursive doubling all_reduce: log2 n exchanges of the whole array, for arrays whose transfer costs less than a
 * step. Ranks beyond a power of two fold their part into a neighbour first. Thakur, Rabenseifner and Gropp,
 * "Optimization of collective communication operations in MPICH", Int. J. High Performance Computing Applications 19
 * (2005). Both sides of an exchange combine lower ranks' partial (left) with higher ranks' (right): all calculate the
 * same tree. */
#include "collectives/partials.h"

#define SEGMENT ((size_t)1 << 20) /* bytes; two such buffers */

static int all_reduce_doubling_exchange(struct partials *p, int peer, char *partial, uint64_t count)
{
    char *incoming = p->buffer + p->bytes; /* combining as it comes would change what is still being sent */
    int rc = transfer_exchange(p->op, peer, partial, count * p->width, peer, incoming, count * p->width);
    if (!rc)
        reduce_combine(&p->reduction, partial, incoming, count, peer < p->op->team->rank);
    return rc;
}

static int give_away(struct partials *p, int peer, char *out, uint64_t count)
{
    struct transfer list[] = {partials_to(p, peer, p->buffer, count),
                              transfer_from(p->op, peer, out, count * p->op->width)};
    return transfer_run(p->op, list, 2);
}

static int all_reduce_doubling_take_part(struct partials *p, int fold, char *out, uint64_t count)
{
    int rank = p->op->team->rank, n = p->op->team->size, rc = 0;
    if (fold >= 0) {
        struct transfer taken = partials_from(p, fold, p->buffer, count, false);
        rc = transfer_run(p->op, &taken, 1);
    }
    for (int step = 0; step < pattern_doubling_steps(n) && !rc; step++)
        rc = all_reduce_doubling_exchange(p, pattern_doubling_partner(rank, n, step), p->buffer, count);
    if (rc)
        return rc;
    reduce_finish(&p->reduction, out, p->buffer, count);
    return fold < 0 ? 0 : transfer_exchange(p->op, fold, out, count * p->op->width, -1, NULL, 0);
}

static int all_reduce_doubling_run_segment(struct partials *p, const char *in, char *out, uint64_t count)
{
    int rank = p->op->team->rank, n = p->op->team->size, fold = pattern_doubling_fold(rank, n);
    reduce_begin(&p->reduction, p->buffer, in, count);
    return pattern_doubling_number(rank, n) < 0 ? give_away(p, fold, out, count) : all_reduce_doubling_take_part(p, fold, out, count);
}

int all_reduce_doubling(struct acomm_op *op)
{
    struct partials p;
    int rc = partials_open(&p, op, 2, SEGMENT);
    return rc ? rc : partials_each_segment(&p, all_reduce_doubling_run_segment);
}
