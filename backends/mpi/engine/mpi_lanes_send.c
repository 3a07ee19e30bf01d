/* What a rank sends by its lanes; see mpi_lanes.h. */
#include "mpi_lanes.h"
#include "mpi_messages.h"

#define SKEWED 4096                       /* bytes from which contents begin where in a line their array does: link_shm.c */
#define PIECE_MIN ((uint64_t)8 << 10)     /* bytes of long contents between two words of how far they are written, */
#define PIECE_MAX ((uint64_t)32 << 10)
#define PIECE_SHARED ((uint64_t)256 << 10) /* and where ranks share cores, whose receivers have to be switched to for each */
#define REST 256                          /* at their end no piece of its own */

/* As much of the longer ring as the receiver needs no more, who can only have gone on, and at most through all that was given away.
 * 0 or a code. */
static int refresh(struct acomm_group *g, struct mpi_lane *lane)
{
    uint64_t freed = atomic_load_explicit(&lane->to_memory->freed, memory_order_acquire);
    if (freed - lane->seen > lane->filled - lane->seen)
        return lanes_broken(g, lane->peer);
    lane->seen = freed;
    if (freed - lane->freed <= lane->filled - lane->freed)
        lane->freed = freed;
    return 0;
}

/* Whether contents that would flow are offered: where nobody waits, as the receiver alone brings an offer's on, and where that takes
 * less time. */
static bool offers(const struct mpi_op *op, const struct mpi_lane *lane)
{
    return !op->synchronous || atomic_load_explicit(&lane->to_memory->offers[choice_class(op->bytes)], memory_order_relaxed);
}

/* A place for long contents: for all of them at once, or for contents longer than the ring, which flow through it while their
 * sender waits. 1; 0: there is none; or a code. */
static int take_place(struct mpi_op *op, struct mpi_lane *lane, unsigned skew)
{
    struct acomm_group *g = op->group;
    uint64_t room = g->messages->lanes->room, full = lane_up(skew + op->bytes, LANE_LINE);
    uint64_t at = lane->filled % room + full > room ? lane_up(lane->filled, room) : lane->filled; /* in a row */
    bool flows = lane_flows(g->messages->lanes, op->bytes);
    if (lane->writing || (flows && offers(op, lane)))
        return 0;
    bool again = g->crowded && op->bytes <= PIECE_MIN + REST; /* who shares a core finds the same lines in its caches */
    bool tight = !flows && at + full - lane->freed > room;
    int rc = again || tight ? refresh(g, lane) : 0;
    if ((again || tight) && lane->freed == lane->filled) /* nothing lies there, but what is left of the ring may be too short */
        lane->freed = at = lane_up(lane->filled, room);
    if (rc || (!flows && at + full - lane->freed > room))
        return rc;
    lane->place = at + skew;
    lane->filled = at + full;
    return 1;
}

static uint64_t piece(const struct acomm_group *g, uint64_t bytes)
{
    uint64_t room = g->messages->lanes->room;
    if (g->crowded)
        return room / 4 < PIECE_SHARED ? room / 4 : PIECE_SHARED;
    uint64_t quarter = bytes / 4 / LANE_LINE * LANE_LINE;
    return quarter < PIECE_MIN ? PIECE_MIN : quarter < PIECE_MAX ? quarter : PIECE_MAX;
}

/* Where the next of `left` bytes go, *bytes in a row; 0 of them where there is no room now. */
static char *next_place(const struct mpi_lanes *all, const struct mpi_lane *lane, uint64_t at, uint64_t left, uint64_t *bytes)
{
    bool unwanted = lane->freed - at <= lane->filled - at; /* what flows is, where its receive was of another length */
    uint64_t ahead = unwanted ? 0 : at - lane->freed, free = ahead < all->room ? all->room - ahead : 0;
    uint64_t run = all->room - at % all->room;
    run = run < free ? run : free;
    *bytes = left < run ? left : run;
    return lane->to_memory->contents + at % all->room;
}

/* Contents of the operation, to where byte `at` of the longer ring lies. */
static void write_part(struct mpi_lane *lane, const struct mpi_op *op, uint64_t at, char *to, const char *from, uint64_t bytes)
{
    struct stores_talk *talk = op->group->crowded ? NULL : &lane->to_memory->talk;
    stores_write(&lane->stores, talk, at, to, from, bytes, op->bytes);
}

int lane_pour(struct acomm_group *g, struct mpi_lane *lane)
{
    struct mpi_op *op = lane->writing;
    uint64_t most = piece(g, op->bytes), part = 1;
    while (part && op->moved < op->bytes) {
        uint64_t at = lane->place + op->moved, left = op->bytes - op->moved;
        left = left < most + REST ? left : most;
        char *to = next_place(g->messages->lanes, lane, at, left, &part);
        int rc = part < left ? refresh(g, lane) : 0;
        if (rc)
            return rc;
        if (part < left)
            to = next_place(g->messages->lanes, lane, at, left, &part);
        write_part(lane, op, at, to, (const char *)op->call.in + op->moved, part);
        op->moved += part;
        g->messages->lanes->moved += part != 0;
        atomic_store_explicit(&lane->to_memory->written, at + part, memory_order_release);
    }
    if (op->moved < op->bytes)
        return 0;
    lane->writing = NULL;
    mpi_end_op(op, 0);
    return 0;
}

/* Which cell takes contents; one that they were in lately before one that was never used. */
static unsigned choose_cell(const struct mpi_op *op, const struct mpi_lane *lane, unsigned skew)
{
    bool fits = op->bytes && !op->on_device && skew + op->bytes <= lane_cell_bytes(op->group->messages->lanes);
    return !fits ? CELL_NONE : lane->cells & CELL_THEIRS ? CELL_THEIRS : lane->cells & CELL_OURS;
}

/* The message gives it away. */
static void enter_cell(const struct mpi_op *op, struct mpi_lane *lane, unsigned cell, unsigned skew)
{
    lane->cells &= ~cell;
    lane->celled += lane_cell_bytes(op->group->messages->lanes);
    lane->front.at = lane->celled + skew;
    lane->front.id = (uint64_t)cell << CELL_SHIFT;
}

/* All contents, as there always is room for them. */
static void write_cell(const struct mpi_op *op, struct mpi_lane *lane)
{
    const struct mpi_lanes *all = op->group->messages->lanes;
    uint64_t at = lane->front.at, most = piece(op->group, op->bytes), part;
    char *to = lane_cell_of(all, lane, (unsigned)lane_cell(lane->front.id)) + at % lane_cell_bytes(all);
    for (uint64_t moved = 0; moved < op->bytes; moved += part) {
        uint64_t left = op->bytes - moved;
        part = left < most + REST ? left : most - (at + moved) % LANE_LINE; /* the next piece begins with a line */
        stream_store(STREAM_KEPT, to + moved, lane->body + moved, part);
        atomic_store_explicit(&lane->to_memory->celled, at + moved + part, memory_order_release);
    }
}

/* All of a message's contents before its head, where they are one piece: that spares who receives them a look at how far they are
 * written. */
static void write_whole(struct mpi_op *op, struct mpi_lane *lane)
{
    lane->front.id |= LANE_WHOLE;
    if (lane_cell(lane->front.id)) {
        write_cell(op, lane);
        return;
    }
    struct lane_memory *memory = lane->to_memory;
    char *to = memory->contents + lane->place % op->group->messages->lanes->room;
    write_part(lane, op, lane->place, to, lane->body, op->bytes);
    atomic_store_explicit(&memory->written, lane->place + op->bytes, memory_order_release);
}

/* The head of a message, with the contents behind it, in a cell or in the longer ring, or else an offer. 0 or a code. */
static int prepare(struct mpi_op *op, struct mpi_lane *lane)
{
    struct lane_head *front = &lane->front;
    const char *data = (const char *)op->call.in;
    unsigned skew = op->bytes >= SKEWED ? (uintptr_t)data % LANE_LINE : 0, cell = choose_cell(op, lane, skew);
    bool is_short = !cell && op->bytes <= LANE_SHORT && (!op->on_device || !op->bytes);
    int rc = is_short || op->on_device ? is_short : cell ? 1 : take_place(op, lane, skew);
    if (rc < 0)
        return rc;
    *front = (struct lane_head){.head = {.count = op->call.count, .tag = op->call.tag, .dtype = (uint32_t)op->call.dtype & HEAD_DTYPES,
                                         .what = rc ? MESSAGE : OFFERED}, .at = rc && !is_short ? lane->place : 0};
    lane->body = data;
    lane->body_bytes = is_short ? op->bytes : 0;
    if (!rc) {
        front->at = op->on_device ? 0 : (uintptr_t)op->call.in;
        front->id = op->offer = ++lane->offers;
    }
    if (cell)
        enter_cell(op, lane, cell, skew);
    if (rc && !is_short && op->bytes <= piece(op->group, 0) + REST)
        write_whole(op, lane);
    lane->ready = true;
    return 0;
}

/* What is left of the frame. 1: all has gone, 0: there is no room, or a code. */
static int put(struct acomm_group *g, struct mpi_lane *lane)
{
    const struct link_ops *ops = lane->to->ops;
    uint64_t head = sizeof lane->front, whole = head + lane->body_bytes;
    for (ssize_t n = 1; n && lane->sent < whole; lane->sent += (uint64_t)n) {
        n = lane->sent ? ops->send(lane->to, lane->body + (lane->sent - head), whole - lane->sent, false)
                       : ops->frame(lane->to, &lane->front, head, lane->body, lane->body_bytes);
        if (n < 0)
            return lanes_broken(g, lane->peer);
    }
    return lane->sent == whole;
}

static int transmit(struct mpi_op *op, struct mpi_lane *lane)
{
    int rc = lane->ready ? 0 : prepare(op, lane);
    return rc ? rc : put(op->group, lane);
}

static int transmitted(struct mpi_op *op, struct mpi_lane *lane)
{
    lane->ready = false;
    lane->sent = 0;
    if (lane->front.head.what == OFFERED)
        lane_append(&lane->offered, op);
    else if (!lane_lies_apart(&lane->front) || lane_is_whole(lane->front.id))
        mpi_end_op(op, 0);
    else if (lane_cell(lane->front.id)) {
        write_cell(op, lane);
        mpi_end_op(op, 0);
    } else {
        lane->writing = op;
        op->moved = 0;
        return lane_pour(op->group, lane);
    }
    return 0;
}

int lanes_send(struct mpi_op *op)
{
    struct mpi_lane *lane = &op->group->messages->lanes->lanes[op->call.root];
    op->bytes = op->call.count * op->width;
    int rc = lane->waiting.first ? 0 : transmit(op, lane);
    if (!rc)
        lane_append(&lane->waiting, op);
    return rc > 0 ? transmitted(op, lane) : rc;
}

int lane_flush(struct acomm_group *g, struct mpi_lane *lane)
{
    int rc = lane->sent ? 1 : lane_flush_answers(g, lane);
    while (rc > 0 && lane->waiting.first) {
        struct mpi_op *op = lane->waiting.first;
        rc = transmit(op, lane);
        if (rc > 0) {
            lane_remove(&lane->waiting, op);
            rc = transmitted(op, lane) ? -1 : 1;
        }
    }
    return rc < 0 ? atomic_load(&g->poisoned) : 0;
}
