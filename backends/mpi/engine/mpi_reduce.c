/* Reductions of long arrays by our own kernels, for what MPI has no type or operation for, and where it is faster: each rank
 * gets everybody's contribution to its slice, reduces it in rank order, and passes the result on (Rabenseifner's idea, with
 * direct exchanges). Round by round, so that what lies between stays in the caches. */
#include <string.h>

#include "mpi_group.h"
#include "reduce.h"

struct slice { uint64_t start, count; };

/* What a rank of `size` has of `count` elements. */
static struct slice slice_of(uint64_t start, uint64_t count, int rank, int size)
{
    uint64_t each = (count + (uint64_t)size - 1) / (uint64_t)size, from = each * (uint64_t)rank;
    from = from < count ? from : count;
    return (struct slice){start + from, each < count - from ? each : count - from};
}

static char *scratch(struct mpi_op *op, uint64_t bytes)
{
    struct acomm_group *g = op->group;
    if (mpi_grow(&g->scratch, &g->scratch_room, bytes))
        return g->scratch;
    mpi_fail_op(op, ACOMM_RESOURCE, -1, "no memory for parts of a reduction");
    return NULL;
}

/* Of one rank's part. */
static uint64_t part_bytes(const struct mpi_op *op, uint64_t elements)
{
    return (elements * op->width + 63) & ~(uint64_t)63;
}

/* Begins to move everybody's elements of our slice here, and ours of theirs there. slices[r]: what rank r has. */
static int post_parts(struct mpi_op *op, const struct slice *slices)
{
    struct acomm_group *g = op->group;
    uint64_t mine = slices[g->rank].count, bytes = part_bytes(op, mine);
    int rc = 0;
    for (int step = 1; step < g->size && !rc; step++) {
        int from = mpi_neighbour(g, step), to = mpi_neighbour(g, -step);
        if (mine)
            rc = mpi_take(op, g->scratch + (uint64_t)from * bytes, mine * op->width, from);
        if (!rc && slices[to].count)
            rc = mpi_give(op, (const char *)op->call.in + slices[to].start * op->width, slices[to].count * op->width, to);
    }
    return rc;
}

/* Those have come. */
static void reduce_parts(const struct mpi_op *op, const struct slice *slices, char *out)
{
    const struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct slice mine = slices[g->rank];
    uint64_t bytes = part_bytes(op, mine.count);
    struct reduction reduction = {c->dtype, c->redop, c->factor, g->size};
    const void *inputs[g->size];
    for (int rank = 0; rank < g->size; rank++)
        inputs[rank] = g->scratch + (uint64_t)rank * bytes;
    inputs[g->rank] = (const char *)c->in + mine.start * op->width;
    if (mine.count)
        reduce_all(&reduction, out, inputs, g->size, mine.count);
}

/* Begins to move everybody's result to everybody, or to the root. */
static int post_results(struct mpi_op *op, const struct slice *slices, const char *result)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct slice mine = slices[g->rank];
    int rc = 0;
    for (int step = 1; step < g->size && !rc; step++) {
        int from = mpi_neighbour(g, step), to = mpi_neighbour(g, -step);
        if (c->out && slices[from].count)
            rc = mpi_take(op, (char *)c->out + slices[from].start * op->width, slices[from].count * op->width, from);
        if (!rc && mine.count && (c->kind == ACOMM_ALL_REDUCE || to == c->root))
            rc = mpi_give(op, result, mine.count * op->width, to);
    }
    return rc;
}

static uint64_t slice_elements(const struct mpi_op *op)
{
    return op->group->mpi->slice / op->width;
}

static uint64_t divide(const struct mpi_op *op, struct slice *slices, uint64_t start)
{
    int size = op->group->size;
    uint64_t round = slice_elements(op) * (uint64_t)size, left = op->call.count - start;
    for (int rank = 0; rank < size; rank++)
        slices[rank] = slice_of(start, left < round ? left : round, rank, size);
    return start + (left < round ? left : round);
}

/* A round's results travel with the next one's parts: ranks wait for each other once a round. */
static int reduce_all_of_it(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct slice slices[g->size];
    uint64_t next = divide(op, slices, 0), most = part_bytes(op, slices[0].count);
    int rc = scratch(op, ((uint64_t)g->size + 1) * most) ? post_parts(op, slices) : ACOMM_RESOURCE;
    while (!rc) {
        char *space = g->scratch + (uint64_t)g->size * most; /* where the caller has no place for it */
        char *result = c->out ? (char *)c->out + slices[g->rank].start * op->width : space;
        rc = mpi_wait(op); /* the results of the round before have left, too */
        if (rc)
            break;
        reduce_parts(op, slices, result);
        rc = post_results(op, slices, result);
        if (rc || next == c->count)
            break;
        next = divide(op, slices, next);
        rc = post_parts(op, slices);
    }
    int waited = mpi_wait(op);
    return rc ? rc : waited;
}

/* Round by round through every rank's own block. */
static int reduce_scatter(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct slice slices[g->size];
    uint64_t longest = 0, round = slice_elements(op);
    int rc = scratch(op, (uint64_t)g->size * part_bytes(op, round)) ? 0 : ACOMM_RESOURCE;
    for (int rank = 0; rank < g->size; rank++) {
        uint64_t count = mpi_count(op, op->call.counts, rank);
        longest = count > longest ? count : longest;
    }
    for (uint64_t done = 0; done < longest && !rc; done += round) {
        uint64_t start = 0;
        for (int rank = 0; rank < g->size; rank++) {
            uint64_t count = mpi_count(op, op->call.counts, rank), from = done < count ? done : count;
            slices[rank] = (struct slice){start + from, count - from < round ? count - from : round};
            start += count;
        }
        rc = post_parts(op, slices);
        int waited = mpi_wait(op);
        rc = rc ? rc : waited;
        if (!rc)
            reduce_parts(op, slices, (char *)c->out + done * op->width);
    }
    return rc;
}

/* scan and exscan, from rank to rank, piece by piece: one goes on while the next one comes. */
static int scan(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    int inputs = g->rank + (acomm_operations[c->kind].reduces == ACOMM_INCLUSIVE);
    struct reduction reduction = {c->dtype, c->redop, c->factor, inputs};
    uint64_t wide = acomm_dtype_bytes(reduce_partial_dtype(c->dtype)), piece = op->group->mpi->slice / wide;
    int rc = scratch(op, 2 * piece * wide) ? 0 : ACOMM_RESOURCE;
    for (uint64_t at = 0; at < c->count && !rc; at += piece) {
        uint64_t count = c->count - at < piece ? c->count - at : piece;
        char *before = g->scratch, *with = g->scratch + piece * wide, *out = (char *)c->out + at * op->width;
        const void *in = (const char *)c->in + at * op->width;
        rc = g->rank ? mpi_take(op, before, count * wide, g->rank - 1) : 0;
        int waited = mpi_wait(op);
        if (rc || waited)
            return rc ? rc : waited;
        reduce_begin(&reduction, with, in, count);
        if (g->rank)
            reduce_combine(&reduction, with, before, count, true);
        if (g->rank)
            reduce_finish(&reduction, out, inputs > g->rank ? with : before, count);
        else
            reduce_all(&reduction, out, &in, inputs, count);
        rc = g->rank + 1 < g->size ? mpi_give(op, with, count * wide, g->rank + 1) : 0;
    }
    int waited = mpi_wait(op);
    return rc ? rc : waited;
}

int mpi_reduction(struct mpi_op *op)
{
    if (acomm_operations[op->call.kind].reduces > ACOMM_OF_ALL)
        return scan(op);
    return op->call.kind == ACOMM_REDUCE_SCATTER ? reduce_scatter(op) : reduce_all_of_it(op);
}
