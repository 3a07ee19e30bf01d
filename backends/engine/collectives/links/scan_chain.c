/* scan and exscan along a chain: each rank receives the partial of the ranks before it, combines it with its own array and
 * forwards the result. n - 1 steps, but every link carries the array once, and one segment goes on while the next one comes: for
 * long arrays. In rank order. */
#include "collectives/partials.h"

#define SEGMENT ((size_t)256 << 10) /* bytes; three such buffers */

/* This rank's result of one segment: `with` its own array, or the partial `before` it; rank 0 has nothing before. */
static void write_result(const struct partials *p, const char *in, char *out, const char *before, const char *with, uint64_t count)
{
    int inputs = p->reduction.ranks;
    const void *own = in;
    if (p->op->team->rank == 0)
        reduce_all(&p->reduction, out, &own, inputs, count);
    else
        reduce_finish(&p->reduction, out, inputs > p->op->team->rank ? with : before, count);
}

int scan_chain(struct acomm_op *op)
{
    int rank = op->team->rank;
    struct transfer on = {0}; /* the segment before, on its way to the next rank */
    struct partials p;
    bool passes = rank + 1 < op->team->size, counts = passes || op_inputs(op, rank, op->team->size) > rank;
    int rc = partials_open(&p, op, 3, SEGMENT);
    bool unchanged = !rank && !p.widened && op->redop != ACOMM_PREMUL_SUM && op->in != op->out;
    for (uint64_t at = 0, turn = 0; at < op->count && !rc; at += p.segment, turn++) {
        uint64_t count = op->count - at < p.segment ? op->count - at : p.segment;
        char *before = p.buffer, *with = p.buffer + (1 + turn % 2) * p.bytes;
        const char *in = op->in + at * op->width;
        struct transfer list[] = {on, rank ? transfer_from(op, rank - 1, before, count * p.width) : (struct transfer){0}};
        rc = transfer_run(op, list, 2);
        if (rc)
            break;
        if (counts && !unchanged)
            reduce_begin(&p.reduction, with, in, count);
        if (counts && rank)
            reduce_combine(&p.reduction, with, before, count, true);
        on = passes ? partials_to(&p, rank + 1, unchanged ? in : with, count) : (struct transfer){0};
        if (at + count == op->count)
            rc = transfer_run(op, &on, 1); /* or another rank's mismatch might arrive after the result is written */
        if (!rc)
            write_result(&p, in, op->out + at * op->width, before, with, count);
    }
    return rc ? rc : transfer_run(op, &on, 1);
}
