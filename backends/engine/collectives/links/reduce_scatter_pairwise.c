/* Direct reduce_scatter: every rank sends each other rank its part of that one's block, and reduces its own block in
 * rank order with one rounding at the end. Moves the least possible, narrow types unwidened. Headers travel before the first
 * parts, which lie in scratch until all have been compared: a turn of all ranks less than comparing first. */
#include <errno.h>

#include "group/signature.h"
#include "collectives/blocks.h"
#include "collectives/partials.h"

#define PARTS ((size_t)2 << 20) /* bytes of all ranks' parts of one segment together, */
#define PARTS_FAR ((size_t)8 << 20) /* between hosts, where each segment waits once for the network's delay */
#define PART_MIN ((size_t)4 << 10)

struct direct {
    struct acomm_op *op;
    struct reduction reduction;
    int rank, n;
    size_t part;              /* bytes of a block that a segment covers */
    char *parts;              /* n of them */
    const void **inputs;
    struct transfer *list;    /* PEER_TRANSFERS a peer */
    acomm_header mine, *theirs; /* n */
};
#define PEER_TRANSFERS 4     /* of headers and parts */

static int reduce_scatter_pairwise_open_direct(struct direct *d, struct acomm_op *op, uint64_t largest)
{
    size_t n = (size_t)op->team->size, parts = op->group->loopback ? PARTS : PARTS_FAR;
    size_t part = parts / n < PART_MIN ? PART_MIN : parts / n;
    *d = (struct direct){.op = op, .reduction = partials_reduction(op), .rank = op->team->rank, .n = (int)n};
    d->part = largest < part ? (size_t)largest : part - part % op->width;
    d->list = group_scratch(op, n * (PEER_TRANSFERS * sizeof *d->list + sizeof *d->inputs + sizeof *d->theirs + d->part));
    if (!d->list)
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    d->inputs = (const void **)(d->list + PEER_TRANSFERS * n);
    d->theirs = (acomm_header *)(d->inputs + n);
    d->parts = (char *)(d->theirs + n);
    op_header(op, &d->mine);
    return 0;
}

static struct span reduce_scatter_pairwise_part_of(const struct direct *d, uint64_t segment, int rank)
{
    return blocks_part(op_block(d->op->send_counts, d->op->count, rank, d->op->width), segment, d->part);
}

/* list[2] and list[3] are this rank's part for `to` and that of `from`; the headers go right before them. */
static void reduce_scatter_pairwise_add_headers(struct direct *d, struct transfer *list, int to, int from)
{
    list[0] = transfer_to(d->op, to, &d->mine, sizeof d->mine);
    list[0].more = list[2].bytes > 0;
    list[1] = transfer_from(d->op, from, &d->theirs[from], sizeof d->mine);
    list[1].checked = true;
    list[2].after = &list[0];
    list[3].after = &list[1];
}

static int reduce_scatter_pairwise_exchange(struct direct *d, uint64_t segment, struct span own, bool tells)
{
    int used = 0;
    for (int step = 0; step < d->n - 1; step++) {
        int to = pattern_pairwise_to(d->rank, d->n, step), from = pattern_pairwise_from(d->rank, d->n, step);
        struct span theirs = reduce_scatter_pairwise_part_of(d, segment, to);
        struct transfer *list = &d->list[used], *parts = tells ? list + 2 : list;
        parts[0] = transfer_to(d->op, to, d->op->in + theirs.offset, theirs.bytes);
        parts[1] = transfer_from(d->op, from, d->parts + (size_t)from * d->part, own.bytes);
        if (tells)
            reduce_scatter_pairwise_add_headers(d, list, to, from);
        used += tells ? PEER_TRANSFERS : 2;
    }
    return transfer_run(d->op, d->list, used);
}

static void reduce_scatter_pairwise_reduce_part(const struct direct *d, uint64_t segment, struct span own)
{
    if (!own.bytes)
        return;
    for (int rank = 0; rank < d->n; rank++)
        d->inputs[rank] = rank == d->rank ? d->op->in + own.offset : d->parts + (size_t)rank * d->part;
    reduce_all(&d->reduction, d->op->out + segment * d->part, d->inputs, d->n, own.bytes / d->op->width);
}

int reduce_scatter_pairwise(struct acomm_op *op)
{
    uint64_t largest = blocks_largest(op->send_counts, op->count, op->team->size) * op->width;
    struct direct d;
    bool tells = op->group->check && !op->compared;
    int rc = largest ? reduce_scatter_pairwise_open_direct(&d, op, largest) : tells ? signature_check(op) : 0;
    for (uint64_t segment = 0; !rc && largest && segment * d.part < largest; segment++) {
        struct span own = reduce_scatter_pairwise_part_of(&d, segment, d.rank);
        rc = reduce_scatter_pairwise_exchange(&d, segment, own, tells && !segment);
        if (!rc)
            reduce_scatter_pairwise_reduce_part(&d, segment, own);
    }
    return rc;
}
