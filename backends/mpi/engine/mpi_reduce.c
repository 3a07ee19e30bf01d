/* Reductions of long arrays by our own kernels, for what MPI has no type or operation for, and where it is faster: each rank
 * gets everybody's contribution to its slice, reduces it in rank order, and passes the result on (Rabenseifner's idea, with
 * direct exchanges). Round by round, so that what lies between stays in the caches. */
#include <string.h>

#include "mpi_group.h"
#include "reduce.h"

#define SLICE_BYTES ((uint64_t)512 << 10) /* of one rank and round */

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

/* The reduction of everybody's elements of our slice, into *out, or into scratch memory where that is NULL. slices[r]: what
 * rank r wants of ours. */
static int reduce_slice(struct mpi_op *op, const struct slice *slices, char **out)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct slice mine = slices[g->rank];
    const void *inputs[g->size];
    uint64_t bytes = (mine.count * op->width + 63) & ~(uint64_t)63;
    char *space = scratch(op, ((uint64_t)g->size + 1) * bytes + 64);
    int rc = space ? 0 : ACOMM_RESOURCE;
    for (int step = 1; step < g->size && !rc; step++) {
        int from = mpi_neighbour(g, step), to = mpi_neighbour(g, -step);
        char *part = space + (uint64_t)from * bytes;
        inputs[from] = part;
        if (mine.count)
            rc = mpi_take(op, part, mine.count * op->width, from);
        if (!rc && slices[to].count)
            rc = mpi_give(op, (const char *)c->in + slices[to].start * op->width, slices[to].count * op->width, to);
    }
    inputs[g->rank] = (const char *)c->in + mine.start * op->width;
    int waited = mpi_wait(op);
    if (rc || waited)
        return rc ? rc : waited;
    struct reduction reduction = {c->dtype, c->redop, c->factor, g->size};
    *out = *out ? *out : space + (uint64_t)g->size * bytes;
    if (mine.count)
        reduce_all(&reduction, *out, inputs, g->size, mine.count);
    return 0;
}

/* Everybody's result to everybody, or to the root. */
static int pass_on(struct mpi_op *op, const struct slice *slices, const char *result)
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
    int waited = mpi_wait(op);
    return rc ? rc : waited;
}

static uint64_t slice_elements(const struct mpi_op *op)
{
    return SLICE_BYTES / op->width;
}

static int reduce_all_of_it(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct slice slices[g->size];
    uint64_t round = slice_elements(op) * (uint64_t)g->size;
    for (uint64_t start = 0; start < c->count; start += round) {
        uint64_t count = c->count - start < round ? c->count - start : round;
        for (int rank = 0; rank < g->size; rank++)
            slices[rank] = slice_of(start, count, rank, g->size);
        char *result = c->out ? (char *)c->out + slices[g->rank].start * op->width : NULL;
        int rc = reduce_slice(op, slices, &result);
        if (!rc)
            rc = pass_on(op, slices, result);
        if (rc)
            return rc;
    }
    return 0;
}

/* Round by round through every rank's own block. */
static int reduce_scatter(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const acomm_call *c = &op->call;
    struct slice slices[g->size];
    uint64_t longest = 0, round = slice_elements(op);
    for (int rank = 0; rank < g->size; rank++) {
        uint64_t count = mpi_count(op, op->counts, rank);
        longest = count > longest ? count : longest;
    }
    for (uint64_t done = 0; done < longest; done += round) {
        uint64_t start = 0;
        for (int rank = 0; rank < g->size; rank++) {
            uint64_t count = mpi_count(op, op->counts, rank), from = done < count ? done : count;
            slices[rank] = (struct slice){start + from, count - from < round ? count - from : round};
            start += count;
        }
        char *out = (char *)c->out + done * op->width;
        int rc = reduce_slice(op, slices, &out);
        if (rc)
            return rc;
    }
    return 0;
}

int mpi_reduction(struct mpi_op *op)
{
    return op->call.kind == ACOMM_REDUCE_SCATTER ? reduce_scatter(op) : reduce_all_of_it(op);
}
