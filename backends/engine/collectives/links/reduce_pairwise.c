/* Direct all_reduce: every rank owns a slice, receives all ranks' parts of it, reduces it in rank order with one rounding at the
 * end, and sends the result to all. Moves as few bytes as the ring, narrow types unwidened, in two steps for any number of ranks;
 * but each rank communicates with all others at once. The bits are those of the shared-memory forms.
 * reduce does the same and sends the result to the root only; in reduce_scatter the slices are the blocks, and each rank keeps
 * its own.
 *
 * The results of one segment travel together with the parts of the next. Between hosts parts are sent further ahead, so that
 * links do not idle during the wait for a segment: it arrives a network's delay after it was sent, and of several connections one
 * is always late (docs/internals/tcp.md). Inside a host that gains nothing, as more bytes under way are fewer in the caches.
 * reduce_scatter, which has no results on their way, takes larger segments instead.
 *
 * Call signatures precede the first parts. A rank accepts no parts from a peer whose signature differs, and writes nothing into
 * the array before all have been compared: this saves a separate exchange for the check. */
#include <errno.h>

#include "group/signature.h"
#include "collectives/partials.h"

#define SLICES ((size_t)2 << 20)      /* bytes of all ranks' parts of a slice together, at most; */
#define SLICES_FAR ((size_t)256 << 10) /* between hosts at least this, so that short arrays too are several segments, */
#define AHEAD_FAR 4                   /* whose parts are sent before the first of them is reduced */
#define BLOCKS_FAR ((size_t)8 << 20)  /* the same of reduce_scatter, where each segment waits once for the network's delay */
#define SLICE_MIN ((size_t)4 << 10)
#define LINE ((size_t)64)

struct direct {
    struct acomm_op *op;
    struct reduction reduction;
    int rank, n;
    uint64_t slice;           /* elements of a whole slice */
    uint64_t segments, ahead; /* in all; whose parts are under way */
    char *parts;              /* n slices of each segment under way; the own one holds the result where there is no output */
    const void **inputs;      /* n, in rank order */
    struct transfer *list;    /* of ahead + 1 steps, each of PEER_TRANSFERS a peer */
    acomm_header mine, *theirs; /* n */
};
/* A step's transfers with a peer: signatures or the results of a segment, to and from; parts of a later segment, to and from. */
#define PEER_TRANSFERS 4

static bool scatters(const struct acomm_op *op)
{
    return op->kind == ACOMM_REDUCE_SCATTER;
}

static uint64_t ahead(const struct acomm_op *op)
{
    return op->group->loopback || scatters(op) ? 1 : AHEAD_FAR;
}

/* longest: bytes of the longest slice, if all were one segment. */
static size_t slice_bytes(const struct acomm_op *op, uint64_t longest)
{
    size_t bytes = scatters(op) && !op->group->loopback ? BLOCKS_FAR : SLICES, share = op->count * op->width / ahead(op);
    if (ahead(op) > 1 && share < bytes)
        bytes = share < SLICES_FAR ? SLICES_FAR : share;
    bytes = bytes / (size_t)op->team->size / LINE * LINE;
    if (bytes < SLICE_MIN)
        bytes = SLICE_MIN;
    return longest < bytes ? (size_t)longest : bytes;
}

static int open_direct(struct direct *d, struct acomm_op *op)
{
    int ranks = op->team->size;
    uint64_t longest = scatters(op) ? op_largest(op->send_counts, op->count, ranks) : pattern_block(op->count, ranks, 0).count;
    size_t n = (size_t)ranks, slice = slice_bytes(op, longest * op->width);
    *d = (struct direct){.op = op, .reduction = partials_reduction(op), .rank = op->team->rank, .n = ranks};
    d->slice = slice / op->width;
    if (!d->slice)
        return 0;
    d->segments = (longest + d->slice - 1) / d->slice;
    d->ahead = d->segments < ahead(op) ? d->segments : ahead(op);
    size_t steps = d->ahead + 1;
    d->list = group_scratch(op, n * (steps * PEER_TRANSFERS * sizeof *d->list + sizeof *d->inputs + sizeof *d->theirs
                                     + d->ahead * slice));
    if (!d->list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    memset(d->list, 0, n * steps * PEER_TRANSFERS * sizeof *d->list);
    d->inputs = (const void **)(d->list + n * steps * PEER_TRANSFERS);
    d->theirs = (acomm_header *)(d->inputs + n);
    d->parts = (char *)(d->theirs + n);
    op_header(op, &d->mine);
    return 0;
}

/* Where the slice of `rank` in a segment lies in the array. Segments but the last are full. */
static struct span slice_of(const struct direct *d, uint64_t segment, int rank)
{
    const struct acomm_op *op = d->op;
    if (scatters(op))
        return blocks_part(op_block(op->send_counts, op->count, rank, op->width), segment, d->slice * op->width);
    uint64_t whole = d->slice * (uint64_t)d->n, first = segment * whole;
    uint64_t count = op->count - first < whole ? op->count - first : whole;
    struct pattern_range r = pattern_block(count, d->n, rank);
    return (struct span){(first + r.first) * op->width, r.count * op->width};
}

static char *part_of_slice(const struct direct *d, uint64_t segment, int rank)
{
    return d->parts + ((segment % d->ahead) * (uint64_t)d->n + (uint64_t)rank) * d->slice * d->op->width;
}

static char *result_of(const struct direct *d, uint64_t segment)
{
    if (!d->op->out)
        return part_of_slice(d, segment, d->rank);
    return d->op->out + (scatters(d->op) ? segment * d->slice * d->op->width : slice_of(d, segment, d->rank).offset);
}

/* From the others. */
static bool gets_result(const struct direct *d, int rank)
{
    return d->op->kind == ACOMM_ALL_REDUCE || (d->op->kind == ACOMM_REDUCE && rank == d->op->root);
}

static struct transfer *step_list(const struct direct *d, uint64_t step)
{
    return d->list + (step % (d->ahead + 1)) * (uint64_t)(PEER_TRANSFERS * (d->n - 1));
}

static void add_headers(struct direct *d, int peer, struct transfer *list)
{
    list[0] = transfer_to(d->op, peer, &d->mine, sizeof d->mine);
    list[1] = transfer_from(d->op, peer, &d->theirs[peer], sizeof d->mine);
    list[1].checked = true;
}

static void add_results(const struct direct *d, uint64_t segment, int peer, struct transfer *list)
{
    struct span theirs = slice_of(d, segment, peer);
    if (gets_result(d, peer))
        list[0] = transfer_to(d->op, peer, result_of(d, segment), slice_of(d, segment, d->rank).bytes);
    if (gets_result(d, d->rank))
        list[1] = transfer_from(d->op, peer, d->op->out + theirs.offset, theirs.bytes);
}

static void add_parts(const struct direct *d, uint64_t segment, int peer, struct transfer *list)
{
    struct span theirs = slice_of(d, segment, peer);
    list[2] = transfer_to(d->op, peer, d->op->in + theirs.offset, theirs.bytes);
    list[3] = transfer_from(d->op, peer, part_of_slice(d, segment, peer), slice_of(d, segment, d->rank).bytes);
}

/* Transfers over one link go one after the other; empty ones are passed over. */
static void put_in_order(struct transfer *list, struct transfer *before)
{
    for (int way = 0; way < 2; way++) {
        struct transfer *first = &list[way], *second = &list[2 + way];
        first->after = before[2 + way].bytes ? &before[2 + way] : before[way].bytes ? &before[way] : before[way].after;
        second->after = first->bytes ? first : first->after;
    }
    list[0].more = list[2].bytes > 0;
}

/* The parts of segment `step`, and the results of the segment whose place they reuse, behind the step before. */
static void add_step(struct direct *d, uint64_t step, bool tells)
{
    for (int i = 0; i < d->n - 1; i++) {
        int peer = pattern_pairwise_to(d->rank, d->n, i);
        struct transfer *list = step_list(d, step) + i * PEER_TRANSFERS;
        for (int k = 0; k < PEER_TRANSFERS; k++)
            list[k] = (struct transfer){0};
        if (step >= d->ahead && step - d->ahead < d->segments)
            add_results(d, step - d->ahead, peer, list);
        if (step == 0 && tells)
            add_headers(d, peer, list);
        if (step < d->segments)
            add_parts(d, step, peer, list);
        put_in_order(list, step_list(d, step + d->ahead) + i * PEER_TRANSFERS);
    }
}

/* Waits for a step's transfers while those of the next ones go on. Its place is free then: no later transfer accesses it. */
static int run_step(const struct direct *d, uint64_t step)
{
    int transfers = PEER_TRANSFERS * (d->n - 1), all = transfers * (int)(d->ahead + 1);
    const struct transfer *first = step_list(d, step);
    for (struct transfer *t = d->list; t < d->list + all; t++)
        t->aside = t < first || t >= first + transfers;
    int rc = transfer_run(d->op, d->list, all);
    for (struct transfer *t = d->list; t < d->list + all; t++)
        if (t->after && t->after->done == t->after->bytes)
            t->after = NULL;
    return rc;
}

static void reduce_slice(const struct direct *d, uint64_t segment)
{
    struct span own = slice_of(d, segment, d->rank);
    if (!own.bytes)
        return;
    for (int rank = 0; rank < d->n; rank++)
        d->inputs[rank] = rank == d->rank ? d->op->in + own.offset : part_of_slice(d, segment, rank);
    reduce_all(&d->reduction, result_of(d, segment), d->inputs, d->n, own.bytes / d->op->width);
}

int reduce_pairwise(struct acomm_op *op)
{
    struct direct d;
    int rc = open_direct(&d, op);
    bool tells = op->group->check && !op->compared;
    if (rc || !d.segments)
        return rc || !tells ? rc : signature_check(op);
    for (uint64_t step = 0; step < d.ahead; step++)
        add_step(&d, step, tells);
    for (uint64_t step = 0; step < d.segments + d.ahead && !rc; step++) {
        rc = run_step(&d, step);
        if (!rc && step < d.segments)
            reduce_slice(&d, step);
        if (!rc)
            add_step(&d, step + d.ahead, tells);
    }
    return rc;
}
