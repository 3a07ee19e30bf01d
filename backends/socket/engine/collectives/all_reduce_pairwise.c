/* Direct all_reduce: every rank owns a slice, gets everybody's part of it, reduces it in rank order with one rounding
 * at the end, and gives the result to all. Moves as little as the ring, narrow types unwidened, in two steps whatever
 * the number of ranks; but each rank talks to all others at once. The bits are those of the shared-memory forms.
 * reduce does the same and gives the result to the root only.
 *
 * The results of one segment travel together with the parts of the next. Headers travel before the first parts, which nobody
 * takes from a peer whose header differs, and nothing is written into the array before all have been compared: a turn of all
 * ranks less than comparing first. */
#include <errno.h>

#include "../agree.h"
#include "partials.h"

#define SLICES ((size_t)2 << 20)   /* bytes of all ranks' parts of a slice together */
#define SLICE_MIN ((size_t)4 << 10)

struct direct {
    struct acomm_op *op;
    struct reduction reduction;
    int rank, n;
    bool everybody;           /* gets the result; otherwise the root */
    uint64_t slice;           /* elements of a whole slice */
    uint64_t segments;
    char *parts;              /* n slices; the own one holds the result where there is no output */
    const void **inputs;      /* n, in rank order */
    struct transfer *list;    /* PEER_TRANSFERS a peer */
    acomm_header mine, *theirs; /* n */
};
#define PEER_TRANSFERS 4     /* of parts and headers, or of results and parts */

static size_t slice_bytes(const struct acomm_op *op)
{
    size_t bytes = SLICES / (size_t)op->team->size;
    if (bytes < SLICE_MIN)
        bytes = SLICE_MIN;
    uint64_t needed = pattern_block(op->count, op->team->size, 0).count * op->width;
    return needed < bytes ? (size_t)needed : bytes;
}

static int open_direct(struct direct *d, struct acomm_op *op)
{
    size_t n = (size_t)op->team->size, slice = slice_bytes(op);
    *d = (struct direct){.op = op, .reduction = partials_reduction(op), .rank = op->team->rank, .n = (int)n};
    d->everybody = op->kind == ACOMM_ALL_REDUCE;
    d->slice = slice / op->width;
    d->segments = d->slice ? (op->count + d->slice * n - 1) / (d->slice * n) : 0;
    d->list = group_scratch(op, n * (PEER_TRANSFERS * sizeof *d->list + sizeof *d->inputs + sizeof *d->theirs + slice));
    if (!d->list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    d->inputs = (const void **)(d->list + PEER_TRANSFERS * n);
    d->theirs = (acomm_header *)(d->inputs + n);
    d->parts = (char *)(d->theirs + n);
    op_header(op, &d->mine);
    return 0;
}

/* Where the slice of `rank` in a segment lies in the array. Segments but the last are full. */
static struct span slice_of(const struct direct *d, uint64_t segment, int rank)
{
    uint64_t whole = d->slice * (uint64_t)d->n, first = segment * whole;
    uint64_t count = d->op->count - first < whole ? d->op->count - first : whole;
    struct pattern_range r = pattern_block(count, d->n, rank);
    return (struct span){(first + r.first) * d->op->width, r.count * d->op->width};
}

static char *part_of(const struct direct *d, int rank)
{
    return d->parts + (size_t)rank * d->slice * d->op->width;
}

static char *result_of(const struct direct *d, struct span own)
{
    return d->op->out ? d->op->out + own.offset : part_of(d, d->rank);
}

static bool gets_result(const struct direct *d, int rank)
{
    return d->everybody || rank == d->op->root;
}

static int add_headers(struct direct *d, int peer, int used)
{
    d->list[used] = transfer_to(d->op, peer, &d->mine, sizeof d->mine);
    d->list[used + 1] = transfer_from(d->op, peer, &d->theirs[peer], sizeof d->mine);
    d->list[used + 1].checked = true;
    return used + 2;
}

static int add_results(const struct direct *d, uint64_t segment, int peer, int used)
{
    struct span own = slice_of(d, segment, d->rank), theirs = slice_of(d, segment, peer);
    if (gets_result(d, peer))
        d->list[used++] = transfer_to(d->op, peer, result_of(d, own), own.bytes);
    if (gets_result(d, d->rank))
        d->list[used++] = transfer_from(d->op, peer, d->op->out + theirs.offset, theirs.bytes);
    return used;
}

static int add_parts(const struct direct *d, uint64_t segment, int peer, int used, int before)
{
    struct span own = slice_of(d, segment, d->rank), theirs = slice_of(d, segment, peer);
    struct transfer *to = &d->list[used], *from = to + 1;
    *to = transfer_to(d->op, peer, d->op->in + theirs.offset, theirs.bytes);
    *from = transfer_from(d->op, peer, part_of(d, peer), own.bytes);
    for (struct transfer *t = &d->list[before]; t < to; t++)
        t->more = t->link && t->link->outgoing && to->bytes;
    for (struct transfer *t = &d->list[before]; t < to; t++)
        *(t->link && t->link->outgoing ? &to->after : &from->after) = t; /* goes first over the same link */
    return used + 2;
}

static void reduce_slice(const struct direct *d, uint64_t segment)
{
    struct span own = slice_of(d, segment, d->rank);
    if (!own.bytes)
        return;
    for (int rank = 0; rank < d->n; rank++)
        d->inputs[rank] = rank == d->rank ? d->op->in + own.offset : part_of(d, rank);
    reduce_all(&d->reduction, result_of(d, own), d->inputs, d->n, own.bytes / d->op->width);
}

static int run_direct(struct acomm_op *op)
{
    struct direct d;
    int rc = open_direct(&d, op);
    bool tells = op->group->check && !op->compared;
    if (!rc && tells && !d.segments)
        return agree(op);
    for (uint64_t step = 0; step <= d.segments && !rc && d.segments; step++) {
        int used = 0;
        for (int i = 0; i < d.n - 1; i++) {
            int before = used, peer = pattern_pairwise_to(d.rank, d.n, i);
            if (step > 0)
                used = add_results(&d, step - 1, peer, used);
            else if (tells)
                used = add_headers(&d, peer, used);
            if (step < d.segments)
                used = add_parts(&d, step, peer, used, before);
        }
        rc = transfer_run(op, d.list, used);
        if (!rc && step < d.segments)
            reduce_slice(&d, step);
    }
    return rc;
}

int all_reduce_pairwise(struct acomm_op *op)
{
    return run_direct(op);
}

int reduce_pairwise(struct acomm_op *op)
{
    return run_direct(op);
}
