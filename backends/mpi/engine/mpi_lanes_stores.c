/* Which stores write long contents; see mpi_lanes.h. */
#include "clock.h"
#include "mpi_lanes.h"

enum { KEPT, PAST, WAYS, EACH = WAYS }; /* EACH: by the time to write alone */
#define PATIENCE 64          /* messages after which a trial is given up that nobody has received */
#define NS_BITS 32

/* A trial's reader has told its time; it may never: the contents may be refused, or lie there unwanted. */
static void learn(struct mpi_lane *lane)
{
    struct choice *c = &lane->stores[choice_class(lane->trial.bytes)];
    uint64_t told = atomic_load_explicit(&lane->to_memory->told, memory_order_relaxed);
    if (told >> NS_BITS == lane->trial.number)
        choice_learn(c, lane->trial.way, lane->trial.bytes, lane->trial.ns + (int64_t)(uint32_t)told);
    else if (lane->trial.passed++ < PATIENCE)
        return;
    lane->trial.number = 0;
}

void lane_choose_stores(struct mpi_lane *lane, struct mpi_op *op, bool crowded)
{
    struct choice *c = choice_for(lane->stores, op->bytes);
    op->trial = 0;
    lane->way = crowded ? EACH : KEPT;
    if (crowded || op->bytes < STREAM_MIN)
        return;
    if (lane->trial.number)
        learn(lane);
    if (!c->moved)
        c->agreed = choice_way(c->tries, c->cost, WAYS);
    lane->way = c->agreed;
    if (lane->trial.number || !choice_counts(c, op->bytes)) {
        c->moved += op->bytes;
        return;
    }
    lane->trials = lane->trials == UINT32_MAX ? 1 : lane->trials + 1;
    op->trial = lane->trial.number = lane->trials;
    lane->trial.way = lane->way;
    lane->trial.bytes = op->bytes;
    lane->trial.passed = 0;
    op->copied = 0;
}

void lane_write(struct mpi_lane *lane, struct mpi_op *op, char *to, const char *from, uint64_t bytes, bool last)
{
    int64_t before = op->trial ? clock_now() : 0;
    if (lane->way == EACH)
        stream_fill(&lane->fills, to, from, bytes);
    else
        stream_store(lane->way == PAST ? STREAM_PAST : STREAM_KEPT, to, from, bytes);
    if (!op->trial)
        return;
    op->copied += clock_now() - before;
    if (last && op->trial == lane->trial.number)
        lane->trial.ns = op->copied;
}

void lane_copy_out(struct mpi_lane *lane, struct mpi_op *op, char *to, const char *from, uint64_t bytes, bool last)
{
    int64_t before = op->trial ? clock_now() : 0;
    stream_long(to, from, bytes, op->bytes);
    if (!op->trial)
        return;
    op->copied += clock_now() - before;
    if (last)
        atomic_store_explicit(&lane->from_memory->told, (uint64_t)op->trial << NS_BITS | (uint32_t)op->copied, memory_order_relaxed);
}
