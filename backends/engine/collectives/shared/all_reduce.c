/* all_reduce, reduce and scans over the shared segment, in two forms, the second of which is not for scans.
 *
 * Flat ("whole"): every rank puts a piece into its slot, then each rank with a result reduces all pieces itself. One wait per
 * piece; reads n inputs per result. For small arrays and for two ranks, where it moves as many bytes as the other form.
 *
 * Reduce-scatter + all-gather ("sliced"): every rank reads its own slice of all ranks' pieces, reduces it, puts the result into
 * its slot, and one round later all copy the finished slices out of each other's slots. Reads 2 inputs per result for any number
 * of ranks.
 *
 * Both reduce each element in rank order, so their bits are the same. */
#include "collectives/shared/rounds.h"

static uint64_t shared_all_reduce_whole_bytes(const struct rounds *r)
{
    return r->op->count * r->op->width;
}

/* Not of the root in a reduce, nor of the last rank in a scan. */
static bool read_by_others(const struct rounds *r)
{
    bool scans = acomm_operations[r->op->kind].reduces > ACOMM_OF_ALL;
    return r->rank != (scans ? r->ranks - 1 : r->op->root);
}

static void shared_all_reduce_fill(const struct rounds *r)
{
    size_t bytes = rounds_piece(r, shared_all_reduce_whole_bytes(r), r->index);
    if (bytes && read_by_others(r))
        rounds_fill(r, r->rank, rounds_slot(r, r->rank, bytes), r->op->in + r->index * r->piece, bytes);
}

static int drain_whole(const struct rounds *r)
{
    if (!r->op->out)
        return 0;
    int rc = 0, inputs = op_inputs(r->op, r->rank, r->ranks);
    for (int rank = 0; rank < inputs && !rc; rank++)
        rc = rounds_await(r, rank);
    size_t bytes = rounds_piece(r, shared_all_reduce_whole_bytes(r), r->index);
    if (rc || !bytes)
        return rc;
    rounds_reduce(r, r->op->out + r->index * r->piece, r->op->in + r->index * r->piece, 0, bytes, bytes,
                  NULL);
    return 0;
}

/* Slice of `rank` in a piece of `bytes`. */
static struct span shared_all_reduce_slice(const struct rounds *r, size_t bytes, int rank)
{
    struct pattern_range s = pattern_block(bytes / r->op->width, r->ranks, rank);
    return (struct span){s.first * r->op->width, s.count * r->op->width};
}

/* Where a rank's finished slice of a piece of `bytes` lies in its slot, and how long that is. */
struct finished { size_t offset, slot; };

static struct finished shared_all_reduce_finished(const struct rounds *r, size_t bytes, int rank)
{
    struct span own = shared_all_reduce_slice(r, bytes, r->pairs ? 0 : rank);
    return r->pairs ? (struct finished){0, own.bytes} : (struct finished){own.offset, bytes};
}

/* The contents for the others to reduce: all but this rank's own slice, whose place in the slot is for its result. */
static void fill_sliced(const struct rounds *r)
{
    size_t bytes = rounds_piece(r, shared_all_reduce_whole_bytes(r), r->index);
    const char *in = r->op->in + r->index * r->piece;
    for (int rank = 0; rank < r->ranks; rank++) {
        struct span s = shared_all_reduce_slice(r, bytes, rank);
        if (rank != r->rank && s.bytes)
            rounds_fill(r, rank, rounds_given(r, r->rank, rank, s.offset, bytes), in + s.offset, s.bytes);
    }
}

static void copy_finished(const struct rounds *r)
{
    uint64_t index = r->index - 1;
    size_t bytes = rounds_piece(r, shared_all_reduce_whole_bytes(r), index);
    for (int i = 1; i < r->ranks; i++) {
        int rank = (r->rank + i) % r->ranks; /* so that ranks do not all read the same slot at once */
        struct span s = shared_all_reduce_slice(r, bytes, rank);
        struct finished f = shared_all_reduce_finished(r, bytes, rank);
        const char *slot = shared_data(r->shared, rank, r->round - 1, f.slot);
        stream_keep(r->op->out + index * r->piece + s.offset, slot + f.offset, s.bytes);
    }
}

static int drain_sliced(const struct rounds *r)
{
    int rc = rounds_await_all(r);
    if (rc)
        return rc;
    if (r->index && r->op->out)
        copy_finished(r);
    size_t bytes = rounds_piece(r, shared_all_reduce_whole_bytes(r), r->index);
    struct span s = shared_all_reduce_slice(r, bytes, r->rank);
    struct finished f = shared_all_reduce_finished(r, bytes, r->rank);
    uint64_t place = r->index * r->piece + s.offset;
    if (s.bytes)
        rounds_reduce(r, r->op->out ? r->op->out + place : NULL, r->op->in + place, s.offset, s.bytes, bytes,
                      rounds_slot(r, r->rank, f.slot) + f.offset);
    return 0;
}

/* In a reduce a rank without a result does not wait. In a scan a rank does not wait for those after it. */
static struct rounds_plan plan_of(const struct acomm_op *op)
{
    bool mutual = acomm_operations[op->kind].gets == ACOMM_ALL && acomm_operations[op->kind].reduces == ACOMM_OF_ALL;
    return (struct rounds_plan){.block = op->count * op->width, .blocks = 1, .mutual = mutual};
}

int shared_all_reduce_whole(struct acomm_op *op)
{
    struct rounds_plan plan = plan_of(op);
    plan.fill = shared_all_reduce_fill;
    plan.drain = drain_whole;
    return rounds_run(op, &plan);
}

int shared_all_reduce_sliced(struct acomm_op *op)
{
    struct rounds_plan plan = plan_of(op);
    plan.extra = 1;
    plan.pairwise = true;
    plan.fill = fill_sliced;
    plan.drain = drain_sliced;
    return rounds_run(op, &plan);
}
