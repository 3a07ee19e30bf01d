/* reduce_scatter over hosts of as many ranks each: inside each host, local rank i receives the host's contributions to the blocks
 * of the ranks with local rank i on all hosts; its column reduces and distributes these. */
#include "collectives/slices.h"

#define SEGMENT ((size_t)16 << 20) /* bytes of scratch: see collectives/hierarchical/reduce.c */

/* The part of a rank's block that a segment covers, in elements. */
static struct span part_of_block(const struct slices *s, uint64_t segment, uint64_t each, int rank)
{
    return blocks_part(op_block(s->op->send_counts, s->op->count, rank, 1), segment, each);
}

/* The contributions to the blocks of one host's ranks: where they lie, or as partials. */
static const char *contributions(const struct slices *s, uint64_t segment, uint64_t each, int host)
{
    char *wide = s->buffer;
    uint64_t filled = 0;
    for (int local_rank = 0; local_rank < s->hosts->most; local_rank++) {
        struct span part = part_of_block(s, segment, each, hosts_rank(s->hosts, host, local_rank));
        s->counts[local_rank] = part.bytes;
        s->places[local_rank] = s->begins ? filled : part.offset;
        if (s->begins && part.bytes)
            reduce_begin(&s->reduction, wide + filled * s->width, s->op->in + part.offset * s->op->width, part.bytes);
        filled += part.bytes;
    }
    return s->begins ? wide : s->op->in;
}

/* Packs into `sums` this host's contributions to the blocks of the ranks with this local rank. */
static int inside(struct slices *s, uint64_t segment, uint64_t each, char *sums)
{
    int rc = 0;
    bool compared = s->op->compared;
    for (int host = 0; host < s->hosts->count && !rc; host++) {
        const char *in = contributions(s, segment, each, host);
        struct acomm_op part = slices_reducing(s, &s->hosts->host, ACOMM_REDUCE_SCATTER, in, sums, 0);
        part.send_counts = s->counts;
        part.places = s->places;
        part.compared = compared;
        rc = part_run(s->op, &part);
        sums += s->counts[s->local_rank] * s->width;
        compared = true;
    }
    return rc;
}

static int hierarchical_reduce_scatter_between(struct slices *s, uint64_t segment, uint64_t each, const char *sums, char *out)
{
    for (int host = 0; host < s->hosts->count; host++)
        s->counts[host] = part_of_block(s, segment, each, hosts_rank(s->hosts, host, s->local_rank)).bytes;
    struct acomm_op part = slices_reducing(s, &s->hosts->column, ACOMM_REDUCE_SCATTER, sums, out, 0);
    part.send_counts = s->counts;
    return part_run(s->op, &part);
}

/* Scratch: contributions as partials, one host's at a time; sums for all hosts; the own block's partials. */
static int hierarchical_reduce_scatter_run_segment(struct slices *s, uint64_t segment)
{
    struct acomm_op *op = s->op;
    uint64_t each = s->segment;
    char *sums = s->buffer + (size_t)s->hosts->most * each * s->width;
    char *spare = sums + (size_t)s->hosts->count * each * s->width;
    uint64_t count = part_of_block(s, segment, each, op->group->rank).bytes;
    char *out = blocks_at(op->out, segment * each * op->width), *partial = s->begins ? spare : out;
    int rc = inside(s, segment, each, sums);
    rc = rc ? rc : hierarchical_reduce_scatter_between(s, segment, each, sums, partial);
    op->compared = true;
    if (!rc && count)
        reduce_finish(&s->reduction, out, partial, count);
    return rc;
}

int hierarchical_reduce_scatter(struct acomm_op *op)
{
    struct slices s;
    const struct hosts *h = &op->group->hosts;
    int buffers = h->most + h->count + 1;
    uint64_t largest = op_largest(op->send_counts, op->count, op->group->size);
    int rc = slices_open(&s, op, op->group->size, buffers, SEGMENT / (size_t)buffers);
    uint64_t segment = 0;
    do
        rc = rc ? rc : hierarchical_reduce_scatter_run_segment(&s, segment);
    while (!rc && ++segment * s.segment < largest);
    return rc;
}
