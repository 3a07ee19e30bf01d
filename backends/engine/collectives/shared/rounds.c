/* Runs a collective over the shared segment as rounds of commit and consume, and compares the call signatures in the first; a
 * barrier is one round without contents. */
#include <errno.h>

#include "collectives/shared/rounds.h"

int rounds_await_all(const struct rounds *r)
{
    int rc = 0;
    for (int rank = 0; rank < r->ranks && !rc; rank++)
        rc = shared_await(r->shared, r->op, rank, r->ranks - 1, r->round);
    return rc;
}

#define STACK_RANKS 64
#define ONE_WAY_PIECES 8
#define RESULTS_KEPT (16u << 20) /* bytes of all ranks of the host: with the inputs as much as a cache of 32 MiB keeps for us */
#define ONE_WAY_MIN (64u << 10) /* bytes; below, the rounds show, */
#define ONE_WAY_MANY (384u << 10) /* and with more than two ranks, whose synchronization may need a turn of every rank */
#define BLOCK (16u << 10) /* bytes that are still in the L1 cache when they are copied on */

/* Exchange buffers are in this core's caches already. */
static void rounds_put(const struct rounds *r, bool hands, int reader, char *slot, const void *from, size_t bytes)
{
    if (hands || r->op->group->without & ACOMM_NO_PROBE)
        stream_exchange(slot, from, bytes);
    else
        stream_fill(&r->op->group->stores[reader], slot, from, bytes);
}

void rounds_fill(const struct rounds *r, int reader, char *slot, const void *from, size_t bytes)
{
    if (bytes > SHARED_TINY)
        rounds_put(r, r->shared->in_cell || r->pairs, reader, slot, from, bytes);
    else if (bytes)
        memcpy(slot, from, bytes);
}

static bool goes_past(const struct rounds *r, const char *out)
{
    return out && (uint64_t)(out - r->op->out) >= r->kept;
}

static void rounds_reduce_block(const struct rounds *r, char *out, const void **in, size_t bytes, char *copy)
{
    const struct acomm_op *op = r->op;
    struct reduction reduction = {.dtype = op->dtype, .redop = op->redop, .factor = op->factor,
                                  .ranks = op_inputs(op, r->rank, r->ranks)};
    _Alignas(64) char block[BLOCK];
    char *to = out && !goes_past(r, out) ? out : block;
    reduce_all(&reduction, to, in, reduction.ranks, bytes / op->width);
    if (copy)
        rounds_put(r, r->shared->in_cell, r->rank, copy, to, bytes);
    if (out && to != out)
        stream_copy(out, to, bytes);
}

void rounds_reduce(const struct rounds *r, char *out, const char *own, size_t offset, size_t bytes, size_t slot,
                   char *copy)
{
    const void *few[STACK_RANKS];
    const void **in = r->ranks <= STACK_RANKS ? few : r->inputs;
    int inputs = op_inputs(r->op, r->rank, r->ranks);
    size_t step = copy || goes_past(r, out) ? BLOCK : bytes;
    for (size_t at = 0; at < bytes; at += step) {
        size_t part = bytes - at < step ? bytes - at : step;
        for (int rank = 0; rank < inputs; rank++)
            in[rank] = rank == r->rank ? own + at : rounds_given(r, rank, r->rank, offset, slot) + at;
        rounds_reduce_block(r, out ? out + at : NULL, in, part, copy ? copy + at : NULL);
    }
}

/* Compares the calls of `rank` in rounds up to `last` that are open here. */
static int compare_earlier(const struct rounds *r, int rank, uint64_t last)
{
    const struct shared *s = r->shared;
    for (uint64_t round = s->settled + 1; shared_any_open(s) && round <= last; round++) {
        if (!shared_is_open(s, round))
            continue;
        acomm_header theirs;
        shared_copy(&theirs, shared_header(s, rank, round), sizeof theirs);
        int rc = op_compare_earlier(r->op, team_member(r->op->team, rank), &s->called[round % SHARED_SLOTS], &theirs);
        if (rc)
            return rc;
    }
    return 0;
}

/* All ranks have published round `last`. */
static int rounds_settle_last(const struct rounds *r, uint64_t last)
{
    int rc = 0;
    bool alike = shared_alike(r->shared, last);
    for (int rank = 0; !alike && rank < r->ranks && !rc; rank++)
        rc = rank == r->rank ? 0 : compare_earlier(r, rank, last);
    if (!rc)
        shared_settle(r->shared, last);
    return rc;
}

int rounds_settle(struct acomm_group *g)
{
    const struct shared *s = &g->shared;
    uint64_t first = s->settled + 1, last = s->round;
    if (!shared_any_open(s))
        return 0;
    while (!shared_is_open(s, first))
        first++;
    while (!shared_is_open(s, last)) /* a rank with another call has not arrived at later rounds, and never does */
        last--;
    const acomm_header *mine = &s->called[last % SHARED_SLOTS]; /* a rank that arrived at this one arrived at all */
    struct acomm_op op = op_of_header(g, mine);
    struct rounds r = rounds_start(&op);
    r.round = last;
    int rc = rounds_await_all(&r);
    return rc ? rc : rounds_settle_last(&r, r.round);
}

/* A rank that has arrived calls the same operation. This rank's call lies where peers may write. */
static int compare_with(struct rounds *r, int rank)
{
    acomm_header called;
    uint64_t bytes;
    int rc = 0;
    if (rank == r->rank) {
        op_header(r->op, &called);
    } else {
        shared_copy(&called, shared_header(r->shared, rank, r->round), sizeof called);
        rc = op_compare(r->op, team_member(r->op->team, rank), &called);
    }
    bool ours = r->op->kind == ACOMM_ALL_TO_ALL; /* and not a barrier that is a part of one over several hosts */
    if (rc || !ours || !(called.flags & OP_UNEVEN))
        return rc;
    if (__builtin_mul_overflow(called.count, r->op->width, &bytes))
        return group_fail_op(r->op, ACOMM_PROTOCOL, team_member(r->op->team, rank), 0, "it has called with more than memory holds");
    r->largest = bytes > r->largest ? bytes : r->largest;
    return 0;
}

static int compare_all(struct rounds *r)
{
    int rc = 0;
    for (int rank = 0; rank < r->ranks && !rc; rank++) {
        rc = shared_await(r->shared, r->op, rank, r->ranks - 1, r->round);
        rc = rc ? rc : compare_with(r, rank);
    }
    if (rc)
        return rc;
    r->shared->past = r->round; /* saves later waits a load per rank */
    return shared_any_open(r->shared) ? rounds_settle_last(r, r->round - 1) : 0;
}

/* The root waits for no rank, the others wait for the root, and all compare with the other ranks later: so each rank finds a
 * differing call by itself, at the latest in the next round that waits for all, before anything is written. */
static int compare_one_way(struct rounds *r)
{
    int root = r->op->root, rc = 0;
    if (r->rank != root) {
        rc = rounds_await(r, root);
        rc = rc ? rc : compare_with(r, root);
    }
    if (!rc && r->op->group->check && (r->rank == root || r->ranks > 2)) /* of two ranks, the other one is the root */
        shared_leave(r->shared, r->op);
    return rc;
}

static int compare(struct rounds *r, bool one_way)
{
    int rc = one_way ? compare_one_way(r) : compare_all(r);
    r->op->compared = !rc;
    return rc;
}

static uint64_t largest(const struct rounds *r, const struct rounds_plan *plan)
{
    return r->largest > plan->block ? r->largest : plan->block;
}

static uint64_t count_rounds(const struct rounds *r, const struct rounds_plan *plan)
{
    uint64_t block = largest(r, plan);
    uint64_t pieces = (block + r->piece - 1) / r->piece;
    return (pieces ? pieces : 1) + plan->extra;
}

struct rounds rounds_start(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    return (struct rounds){.op = op, .shared = &g->shared, .rank = op->team->rank, .ranks = op->team->size, .largest = 0};
}

/* Waits for the next slot. The first round of an operation carries its call signature. */
static int rounds_claim(struct rounds *r, size_t bytes, bool read_later)
{
    r->shared->turn = false;
    bool cell = r->cells && bytes > SHARED_TINY && shared_take_cell(r->shared, read_later);
    int rc = cell ? 0 : shared_acquire(r->shared, r->op, bytes, read_later);
    if (!rc && shared_any_open(r->shared) && r->shared->settled < r->shared->past)
        rc = rounds_settle_last(r, r->shared->past);
    r->round = r->shared->round + 1;
    if (!rc && !r->op->compared)
        op_header(r->op, shared_header(r->shared, r->rank, r->round));
    return rc;
}

static void publish(struct rounds *r)
{
    shared_commit(r->shared);
    r->op->entered = true;
}

/* Whether this is the first round of an operation that a helping waiter has left in it. */
static bool entered(struct rounds *r)
{
    r->round = r->shared->round;
    return r->op->entered && !r->op->compared;
}

int rounds_meet(struct rounds *r, const void *say, size_t bytes)
{
    if (!entered(r)) {
        int rc = rounds_claim(r, bytes, false);
        if (rc)
            return rc;
        if (bytes)
            memcpy(rounds_slot(r, r->rank, bytes), say, bytes);
        publish(r);
    }
    r->index++;
    return r->op->compared ? rounds_await_all(r) : compare(r, false);
}

/* Bytes of this rank's slot in a round in which it sends something. Beside pairs, its reduced part of a piece. */
static size_t rounds_slot_bytes(const struct rounds *r, const struct rounds_plan *plan)
{
    if (!r->pairs)
        return (size_t)r->piece * (size_t)plan->blocks;
    uint64_t count = r->piece / r->op->width, ranks = (uint64_t)r->ranks;
    return plan->extra ? (size_t)((count + ranks - 1) / ranks * r->op->width) : 0;
}

static int rounds_give(struct rounds *r, const struct rounds_plan *plan)
{
    if (entered(r))
        return 0;
    bool after = r->index && r->index * r->piece >= largest(r, plan); /* the last piece: nothing more is published */
    int rc = rounds_claim(r, after ? 0 : rounds_slot_bytes(r, plan), plan->extra > 0);
    r->shared->turn |= r->pairs && !after;
    if (!rc && plan->fill)
        plan->fill(r);
    if (!rc)
        publish(r);
    return rc;
}

/* Among more than two ranks short ones only: a rank that learns of a mismatch later must not have written half of its array by
 * then; of two, the other one compares before it reads anything. A helping waiter could not leave in a later round any more.
 * Parts begin with a round in which all ranks of the host meet (select.h).
 * Measured on 2 cores, unproved elsewhere (docs/lab/mechanisms.md); ARRAYCOMM_WITHOUT=ahead switches it off. */
static bool goes_ahead(const struct rounds *r, const struct rounds_plan *plan)
{
    bool long_too = r->ranks == 2 && !r->op->guest;
    return plan->one_way && !(r->op->group->without & ACOMM_NO_AHEAD) && !r->op->whole && (long_too || count_rounds(r, plan) == 1);
}

static int run_rounds(struct rounds *r, const struct rounds_plan *plan)
{
    for (uint64_t rounds = 1; r->index < rounds; r->index++) {
        int rc = r->index ? wait_look(r->op) : 0;
        if (!rc)
            rc = rounds_give(r, plan);
        if (!rc && !r->op->compared)
            rc = compare(r, goes_ahead(r, plan));
        if (!rc && r->index == 0)
            rounds = count_rounds(r, plan);
        if (!rc && plan->drain)
            rc = plan->drain(r);
        if (rc)
            return rc;
    }
    return 0;
}

/* Bytes of a block's pieces at most. */
static uint64_t piece_room(const struct rounds *r, const struct rounds_plan *plan)
{
    uint64_t slot = r->cells && r->shared->piece > SHARED_CELL ? SHARED_CELL : r->shared->piece;
    uint64_t room = slot / (uint64_t)plan->blocks, part = plan->block / ONE_WAY_PIECES / SHARED_LINE * SHARED_LINE;
    if (r->pairs) /* each gets a part of a single block */
        return shared_pair_room(r->shared) * (uint64_t)(plan->blocks == 1 ? r->ranks : 1);
    uint64_t least = r->ranks > 2 ? ONE_WAY_MANY : ONE_WAY_MIN;
    room -= room > SHARED_LINE ? room % SHARED_LINE : 0;
    if (!plan->one_way || part >= room)
        return room;
    return part < least ? (least < room ? least : room) : part;
}

/* As many pieces as needed, of equal size: a last one of few bytes would cost a full round. */
static uint64_t rounds_piece_of(const struct rounds *r, const struct rounds_plan *plan)
{
    uint64_t room = piece_room(r, plan), pieces = (plan->block + room - 1) / room, width = r->op->width;
    uint64_t piece = r->op->send_counts && r->op->recv_counts ? room : plan->block;
    if (pieces > 1)
        piece = ((plan->block + pieces - 1) / pieces + SHARED_LINE - 1) / SHARED_LINE * SHARED_LINE;
    piece = piece < room ? piece : room;
    piece -= piece % width;
    return piece ? piece : width;
}

/* A part of every result, of any length: a result that overflows the cache is evicted before its next use, and if all of it used
 * non-temporal stores at once, the first such size would take twice as long as the one before. */
static uint64_t rounds_kept(const struct rounds *r, const struct rounds_plan *plan)
{
    uint64_t share = RESULTS_KEPT / (uint64_t)(r->op->kind == ACOMM_GATHER ? 1 : r->ranks);
    return plan->result > share ? share : UINT64_MAX;
}

int rounds_run(struct acomm_op *op, const struct rounds_plan *plan)
{
    struct rounds r = rounds_start(op);
    r.kept = rounds_kept(&r, plan);
    bool exchanges = !(op->group->without & ACOMM_NO_EXCHANGE);
    r.cells = exchanges && r.ranks == 2 && plan->mutual;
    r.pairs = exchanges && r.ranks > 2 && plan->pairwise && (op->send_counts || plan->block * (uint64_t)plan->blocks > SHARED_SHORT);
    r.piece = rounds_piece_of(&r, plan);
    if (r.ranks > STACK_RANKS && op_reduces(op) && !(r.inputs = group_scratch(op, (size_t)r.ranks * sizeof *r.inputs)))
        return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
    return run_rounds(&r, plan);
}

int shared_barrier(struct acomm_op *op)
{
    struct rounds_plan plan = {.blocks = 1, .drain = rounds_await_all};
    return rounds_run(op, &plan);
}
