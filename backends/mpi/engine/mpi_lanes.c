/* See mpi_lanes.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_lanes.h"
#include "mpi_messages.h"
#include "mpi_seats.h"

#define PAGE ((uint64_t)4096)
#define SHORT_RING ((size_t)64 << 10)
#define LONG_RING ((uint64_t)2 << 20)     /* twice a core's own caches, as the socket engine's (link_shm.c) */
#define BUDGET ((uint64_t)64 << 20)       /* of all longer rings; they cost memory only once used */
#define AT_ONCE 16                        /* messages of a lane, before others have their turn */
#define UNDER_WAY 256                     /* more than a lane holds */
#define AHEAD 1024                        /* bytes in a cell that come while their receive is looked for (link_shm.c) */

static uint64_t long_ring(int size)
{
    uint64_t room = LONG_RING;
    while (room * (uint64_t)size * (uint64_t)size > BUDGET)
        room /= 2;
    return room;
}

/* With its cell. */
static uint64_t ring_and_cell(uint64_t room)
{
    return lane_up(room + room / LINK_CELL_PART + LANE_LINE, PAGE);
}

static uint64_t footprint(int size)
{
    return lane_up(sizeof(struct lane_memory) + ring_and_cell(long_ring(size)) + link_shm_footprint(SHORT_RING), PAGE);
}

uint64_t lanes_bytes(int size)
{
    return (uint64_t)size * (uint64_t)size * footprint(size);
}

/* ---- queues ---- */

void lane_append(struct lane_queue *queue, struct mpi_op *op)
{
    op->next = NULL;
    *queue->end = op;
    queue->end = &op->next;
}

bool lane_remove(struct lane_queue *queue, const struct mpi_op *op)
{
    struct mpi_op **at = &queue->first;
    while (*at && *at != op)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = op->next;
    if (queue->end == &op->next)
        queue->end = at;
    return true;
}

static void end_all(struct lane_queue *queue, int code)
{
    while (queue->first) {
        struct mpi_op *op = queue->first;
        lane_remove(queue, op);
        lane_unstage(op);
        mpi_end_op(op, code);
    }
}

/* ---- beginning and end ---- */

static struct lane_memory *memory_of(char *memory, int size, int from, int to)
{
    return (struct lane_memory *)(void *)(memory + (uint64_t)(from * size + to) * footprint(size));
}

static struct link *link_in(struct lane_memory *memory, int peer, bool outgoing, uint64_t room)
{
    struct link_ring *ring = (struct link_ring *)(void *)(memory->contents + ring_and_cell(room));
    return link_shm_new(peer, outgoing, ring, SHORT_RING, NULL, NULL);
}

void lane_unstage(struct mpi_op *op)
{
    free(op->staged);
    op->staged = NULL;
}

static void open_queue(struct lane_queue *queue)
{
    queue->end = &queue->first;
}

struct mpi_lanes *lanes_new(const struct acomm_group *g, char *memory)
{
    struct mpi_lanes *all = calloc(1, sizeof *all + (size_t)g->size * sizeof all->lanes[0]);
    bool whole = all != NULL;
    for (int peer = 0; peer < g->size && whole; peer++) {
        struct mpi_lane *lane = &all->lanes[peer];
        all->size = g->size;
        all->room = long_ring(g->size);
        lane->peer = peer;
        lane->cells = CELL_OURS;
        lane->to_memory = memory_of(memory, g->size, g->rank, peer);
        lane->from_memory = memory_of(memory, g->size, peer, g->rank);
        lane->to = link_in(lane->to_memory, peer, true, all->room);
        lane->from = link_in(lane->from_memory, peer, false, all->room);
        open_queue(&lane->waiting);
        open_queue(&lane->offered);
        open_queue(&lane->reading);
        whole = lane->to && lane->from;
    }
    if (whole)
        return all;
    lanes_free(all);
    return NULL;
}

static void free_replies(struct mpi_lane *lane)
{
    while (lane->replies) {
        struct lane_reply *reply = lane->replies;
        lane->replies = reply->next;
        free(reply);
    }
}

void lanes_free(struct mpi_lanes *all)
{
    for (int peer = 0; all && peer < all->size; peer++) {
        free_replies(&all->lanes[peer]);
        free(all->lanes[peer].to); /* the memory belongs to the group */
        free(all->lanes[peer].from);
    }
    free(all);
}

void lanes_use(struct acomm_group *g, struct mpi_lanes *all)
{
    pthread_mutex_lock(&g->messages->lock);
    g->messages->lanes = all;
    pthread_mutex_unlock(&g->messages->lock);
}

/* What was offered changes when its operation has ended: who reads it is told before. */
static void withdraw(struct mpi_lane *lane)
{
    atomic_store(lane->to->withdrawn, 1);
    atomic_thread_fence(memory_order_seq_cst);
}

/* The group has failed: nothing else comes by the lane. */
void lanes_leave(struct mpi_op *op)
{
    struct mpi_lanes *all = op->group->messages->lanes;
    struct mpi_lane *lane = all && op->call.root >= 0 ? &all->lanes[op->call.root] : NULL;
    if (!lane)
        return;
    bool first = lane->waiting.first == op;
    if (lane_remove(&lane->waiting, op) && first && lane->ready)
        lane->cut = true;
    if (lane_remove(&lane->offered, op))
        withdraw(lane);
    if (lane->writing == op)
        lane->writing = NULL, lane->cut = true;
    if (lane_remove(&lane->reading, op))
        lane_unstage(op);
}

bool lanes_busy(struct acomm_group *g)
{
    const struct mpi_lanes *all = g->messages->lanes;
    bool busy = false;
    for (int peer = 0; all && peer < all->size; peer++) {
        const struct mpi_lane *lane = &all->lanes[peer];
        busy = busy || lane->waiting.first || lane->writing || lane->offered.first || lane->reading.first;
    }
    return busy;
}

void lanes_end(struct acomm_group *g, int code)
{
    struct mpi_lanes *all = g->messages->lanes;
    for (int peer = 0; all && peer < all->size; peer++) {
        struct mpi_lane *lane = &all->lanes[peer];
        if (lane->offered.first)
            withdraw(lane);
        if (lane->writing)
            mpi_end_op(lane->writing, code);
        end_all(&lane->waiting, code);
        end_all(&lane->offered, code);
        end_all(&lane->reading, code);
    }
    g->messages->lanes = NULL;
}

int lanes_broken(struct acomm_group *g, int peer)
{
    g->messages->lanes->lanes[peer].cut = true;
    acomm_failure failure = {.code = ACOMM_PROTOCOL, .origin = g->rank, .culprit = peer, .mine = {.root = -1}, .theirs = {.root = -1}};
    snprintf(failure.text, sizeof failure.text, "rank %d wrote what cannot be into memory that it shares with rank %d", peer, g->rank);
    if (!atomic_load(&g->poisoned))
        news_spread(g, &failure);
    return mpi_poison(g, &failure);
}

/* ---- what is received ---- */

/* A cell that the sender of a message names. */
static unsigned seen_from_here(uint64_t cell)
{
    return CELLS - (unsigned)cell;
}

static bool is_possible(const struct mpi_lanes *all, const struct mpi_lane *lane)
{
    const struct lane_head *next = &lane->next.head;
    const struct head *head = &next->head;
    if (head->what == CLEAR)
        return head->ticket >= TAG_CONTENTS && head->ticket <= TAG_LAST;
    if (head->what != MESSAGE && head->what != OFFERED)
        return head->what == DONE;
    if (!acomm_dtype_bytes(head->dtype) || head->count > INT64_MAX / acomm_dtype_bytes(head->dtype))
        return false;
    if (!lane_lies_apart(next))
        return true;
    uint64_t cell = lane_cell(next->id), room = cell ? lane_cell_bytes(all) : all->room;
    bool inside = next->at % room + lane_length(head) <= room;
    if (cell)
        return inside && cell < CELLS && !(seen_from_here(cell) & (lane->cells | lane->held));
    return next->at - lane->met < 2 * room && (inside || !lane_is_whole(next->id));
}

static int deliver_in_cell(struct acomm_group *g, struct mpi_lane *lane, struct arrival *a)
{
    const struct mpi_lanes *all = g->messages->lanes;
    a->cell = seen_from_here(lane_cell(a->id));
    lane->held |= a->cell;
    a->contents = lane_is_whole(a->id) ? lane_cell_of(all, lane, a->cell) + a->at % lane_cell_bytes(all) : NULL;
    for (uint64_t ahead = 0; a->contents && ahead < lane_length(&a->head) && ahead < AHEAD; ahead += LANE_LINE)
        __builtin_prefetch(a->contents + ahead);
    return messages_deliver(g, a, 0);
}

static int deliver(struct acomm_group *g, struct mpi_lane *lane)
{
    uint64_t room = g->messages->lanes->room;
    struct lane_head *next = &lane->next.head;
    struct arrival a = {.head = next->head, .at = next->at, .id = next->id};
    lane_take_cell(lane, lane->refused); /* their sender has written all by now */
    lane->refused = 0;
    if (a.head.what == CLEAR || a.head.what == DONE)
        return lane_hear_answer(g, lane, next);
    a.head.source = lane->peer;
    a.head.ticket = 0;
    if (a.head.what == MESSAGE)
        a.contents = lane->next.contents;
    if (!lane_lies_apart(next))
        return messages_deliver(g, &a, a.head.what == MESSAGE ? lane_length(&a.head) : 0);
    if (lane_cell(next->id))
        return deliver_in_cell(g, lane, &a);
    a.contents = lane_is_whole(next->id) ? lane->from_memory->contents + a.at % room : NULL;
    a.stays = true;
    lane->met = lane_up(a.at + lane_length(&a.head), LANE_LINE);
    int rc = messages_deliver(g, &a, 0);
    lane_release(g, lane);
    return rc;
}

void lane_release(struct acomm_group *g, struct mpi_lane *lane)
{
    const struct arrival *a = g->messages->unexpected;
    while (a && !(a->stays && a->head.source == lane->peer))
        a = a->next;
    uint64_t kept = a ? lane->met - a->at : 0;
    for (const struct mpi_op *op = lane->reading.first; op; op = op->next)
        if (!op->offer && !op->cell && lane->met - (op->from + op->moved) > kept)
            kept = lane->met - (op->from + op->moved);
    atomic_store_explicit(&lane->from_memory->freed, (lane->met - kept) / LANE_LINE * LANE_LINE, memory_order_release);
}

const char *lane_contents(const struct mpi_lanes *all, const struct mpi_lane *lane, unsigned cell, uint64_t at, uint64_t *bytes)
{
    const struct lane_memory *memory = lane->from_memory;
    uint64_t written = atomic_load_explicit(cell ? &memory->celled : &memory->written, memory_order_acquire);
    uint64_t there = (int64_t)(written - at) < 0 ? 0 : written - at;
    uint64_t room = cell ? lane_cell_bytes(all) : all->room, run = room - at % room;
    run = run < there ? run : there;
    *bytes = run < *bytes ? run : *bytes;
    return (cell ? lane_cell_of(all, lane, cell) : memory->contents) + at % room;
}

/* Takes the next message if it is there. 0 or a code. */
static int hear(struct acomm_group *g, struct mpi_lane *lane, bool *heard)
{
    const struct head *head = &lane->next.head.head;
    size_t wanted = sizeof lane->next.head;
    for (;;) {
        if (lane->arrived >= sizeof lane->next.head)
            wanted = sizeof lane->next.head + (head->what == MESSAGE && !lane_lies_apart(&lane->next.head) ? lane_length(head) : 0);
        if (lane->arrived == wanted)
            break;
        ssize_t n = lane->from->ops->recv(lane->from, (char *)&lane->next + lane->arrived, wanted - lane->arrived);
        if (!n)
            return 0;
        lane->arrived += (size_t)n;
        if (n < 0 || (lane->arrived == sizeof lane->next.head && !is_possible(g->messages->lanes, lane)))
            return lanes_broken(g, lane->peer);
    }
    lane->arrived = 0;
    *heard = true;
    return deliver(g, lane);
}

static int hear_all(struct acomm_group *g, struct mpi_lane *lane, int most)
{
    bool heard = !lane->cut;
    int rc = 0;
    while (most-- && heard && !rc) {
        heard = false;
        rc = hear(g, lane, &heard);
    }
    return rc;
}

int lanes_catch_up(struct acomm_group *g, int peer)
{
    return hear_all(g, &g->messages->lanes->lanes[peer], UNDER_WAY);
}

static int turn(struct acomm_group *g, struct mpi_lane *lane)
{
    int rc = hear_all(g, lane, AT_ONCE);
    if (!rc && lane->writing)
        rc = lane_pour(g, lane);
    if (!rc && !lane->cut && (lane->waiting.first || lane->replies))
        rc = lane_flush(g, lane);
    return rc || !lane->reading.first ? rc : lane_read(g, lane);
}

int lanes_turn(struct acomm_group *g, int peer)
{
    struct mpi_lanes *all = g->messages->lanes;
    int rc = 0;
    if (peer >= 0)
        return turn(g, &all->lanes[peer]);
    for (peer = 0; peer < all->size && !rc; peer++)
        rc = turn(g, &all->lanes[peer]);
    return rc;
}
