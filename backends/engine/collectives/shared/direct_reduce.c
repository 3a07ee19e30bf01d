/* all_reduce and reduce_scatter out of the peers' arrays. Every rank reduces its own part of all ranks' arrays, block by block,
 * in rank order. Mapped arrays are read in place; others come through scratch that stays in the cache.
 *
 * all_reduce: where all outputs are mapped, the finished block goes straight into all of them: n inputs are read once and n
 * outputs written once. Otherwise each rank fetches the finished parts out of the others' outputs. In place both are right: a
 * rank's part of an array is read and written by that rank alone until all have finished theirs. */
#include <errno.h>

#include "collectives/shared/direct.h"
#include "collectives/shared/rounds.h"

#define BLOCK_MAPPED ((size_t)16 << 10) /* the result is still in the L1 cache when it is copied on */
#define LOOK ((size_t)1 << 20)          /* bytes between two checks of signals and of the group */
#define BLOCK_READ ((size_t)256 << 10)  /* below, system calls show; above, scratch leaves the L2 cache */

struct inputs {
    const void **at;             /* by rank, of the block */
    char *scratch;               /* room for a block of every rank; this one needs none for its own, */
    size_t block;
    char *result;                /* which is for results by non-temporal stores; NULL: they are written to their targets */
};

/* Addresses of all ranks' contributions to bytes [from, from + bytes); unmapped ones are read into scratch. */
static int collect(struct rounds *r, struct inputs *inputs, uint64_t from, size_t bytes)
{
    char *scratch = inputs->scratch;
    for (int rank = 0; rank < r->ranks; rank++) {
        struct direct_place in = direct_offer(r, rank)->in;
        const char *mapped = rank == r->rank ? r->op->in : direct_mapped(r, rank, in);
        if (mapped) {
            inputs->at[rank] = mapped + from;
            continue;
        }
        int rc = direct_read(r, rank, in, from, scratch, bytes, bytes);
        if (rc)
            return rc;
        inputs->at[rank] = scratch;
        scratch += inputs->block;
    }
    return 0;
}

static bool all_mapped(const struct rounds *r, bool out)
{
    for (int rank = 0; rank < r->ranks; rank++) {
        const struct direct_offer *o = direct_offer(r, rank);
        if ((out ? o->out.how : o->in.how) != DIRECT_MAPPED)
            return false;
    }
    return true;
}

static int direct_reduce_prepare(struct rounds *r, struct inputs *inputs, bool past)
{
    size_t table = ((size_t)r->ranks * sizeof *inputs->at + 63) / 64 * 64;
    inputs->block = all_mapped(r, false) ? BLOCK_MAPPED : BLOCK_READ;
    char *memory = group_scratch(r->op, table + (size_t)r->ranks * inputs->block);
    if (!memory)
        return group_fail_op(r->op, ACOMM_RESOURCE, r->op->group->rank, ENOMEM, NULL);
    inputs->at = (const void **)(void *)memory;
    inputs->scratch = memory + table;
    inputs->result = past ? inputs->scratch + (size_t)(r->ranks - 1) * inputs->block : NULL;
    return 0;
}

/* To the same place of every other rank's output. */
static void direct_reduce_push(const struct rounds *r, uint64_t place, const char *from, size_t bytes)
{
    bool past = r->op->count * r->op->width >= STREAM_LONG;
    for (int i = 1; i < r->ranks; i++) {
        int rank = (r->rank + i) % r->ranks;
        char *to = direct_mapped(r, rank, direct_offer(r, rank)->out) + place;
        if (past)
            stream_copy(to, from, bytes);
        else
            rounds_fill(r, rank, to, from, bytes);
    }
}

/* Reduces bytes [s.offset, s.offset + s.bytes) of all ranks' inputs into `out`, and into all outputs. */
static int reduce(struct rounds *r, struct span s, char *out, bool pushes)
{
    const struct acomm_op *op = r->op;
    struct reduction reduction = {.dtype = op->dtype, .redop = op->redop, .factor = op->factor, .ranks = r->ranks};
    struct inputs inputs = {.at = NULL};
    int rc = direct_reduce_prepare(r, &inputs, !pushes && s.bytes >= STREAM_LONG);
    for (uint64_t at = 0; at < s.bytes && !rc; at += inputs.block) {
        size_t part = s.bytes - at < inputs.block ? s.bytes - at : inputs.block;
        rc = collect(r, &inputs, s.offset + at, part);
        if (rc)
            return rc;
        char *to = inputs.result ? inputs.result : out + at;
        reduce_all(&reduction, to, inputs.at, r->ranks, part / op->width);
        if (inputs.result)
            stream_copy(out + at, to, part);
        if (pushes)
            direct_reduce_push(r, s.offset + at, out + at, part);
        if (at % LOOK == 0)
            rc = wait_look(r->op);
    }
    return rc;
}

static int reduce_own_block(struct rounds *r)
{
    const struct acomm_op *op = r->op;
    return reduce(r, op_scattered(op, r->rank), op->out, false);
}

int direct_reduce_scatter(struct acomm_op *op)
{
    uint64_t bytes = op_total(op->send_counts, op->count, op->team->size, op->width);
    struct direct_plan plan = {.bytes = bytes, .offered = bytes, .staged = shared_reduce_scatter,
                               .move = reduce_own_block};
    return direct_run(op, &plan);
}

static struct span direct_reduce_slice(const struct rounds *r, int rank)
{
    struct pattern_range s = pattern_block(r->op->count, r->ranks, rank);
    return (struct span){s.first * r->op->width, s.count * r->op->width};
}

/* The other ranks' finished slices, out of their outputs. */
static int fetch_finished(struct rounds *r)
{
    int rc = rounds_meet(r, NULL, 0);
    for (int i = 1; i < r->ranks && !rc; i++) {
        int rank = (r->rank + i) % r->ranks;
        struct span s = direct_reduce_slice(r, rank);
        if (s.bytes)
            rc = direct_read(r, rank, direct_offer(r, rank)->out, s.offset, r->op->out + s.offset, s.bytes, s.bytes);
    }
    return rc;
}

static int all_reduce(struct rounds *r)
{
    struct span own = direct_reduce_slice(r, r->rank);
    if (!all_mapped(r, true)) {
        int rc = reduce(r, own, r->op->out + own.offset, false);
        return rc ? rc : fetch_finished(r);
    }
    return reduce(r, own, r->op->out + own.offset, true);
}

int direct_all_reduce(struct acomm_op *op)
{
    uint64_t bytes = op->count * op->width;
    bool few = op->team->size <= 2;
    struct direct_plan plan = {.bytes = bytes, .offered = bytes, .offered_out = bytes, .move = all_reduce,
                               .staged = few ? shared_all_reduce_whole : shared_all_reduce_sliced};
    return direct_run(op, &plan);
}
