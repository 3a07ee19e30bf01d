/* Contents that do not come with their heads: out of the longer ring, while they are written; or, where that had no room, out of the
 * sender's memory, where all ranks may read that; or by MPI, for which the receiver asks.
 *
 * The sender of an offer stands still until it is answered. Where its operation ends before, its caller may write into the array again: it
 * withdraws first what it has offered, for good, as its group has failed; and the receiver looks for that after its last byte.
 * Contents go by MPI only to who waits for them, so that none can lie there when the group is closed. */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mpi_lanes.h"
#include "mpi_messages.h"
#include "mpi_seats.h"

#define CHUNK ((uint64_t)4 << 20) /* between two, deadline, signals and news are looked at */
#define SELDOM 64                 /* the worse way comes again after so many tries (stores.c) */
#define NEVER (INT64_MAX / CHOICE_TIMED) /* ns */

enum way { FLOWS, READ, WAYS }; /* of contents longer than the ring */

static int no_memory(struct acomm_group *g)
{
    return mpi_poison(g, &(acomm_failure){.code = ACOMM_RESOURCE, .culprit = -1, .origin = g->rank});
}

/* ---- answers ---- */

static int put(struct acomm_group *g, struct mpi_lane *lane, const struct lane_head *answer)
{
    ssize_t n = lane->to->ops->frame(lane->to, answer, sizeof *answer, NULL, 0);
    return n < 0 ? lanes_broken(g, lane->peer) : n > 0;
}

int lane_flush_answers(struct acomm_group *g, struct mpi_lane *lane)
{
    int rc = 1;
    while (rc > 0 && lane->replies) {
        struct lane_reply *reply = lane->replies;
        rc = put(g, lane, &reply->head);
        if (rc > 0) {
            lane->replies = reply->next;
            free(reply);
        }
    }
    return rc;
}

static int answer(struct acomm_group *g, struct mpi_lane *lane, uint8_t what, uint64_t id, int ticket)
{
    struct lane_head head = {.head = {.what = what, .ticket = (uint16_t)ticket}, .id = id};
    int rc = lane->sent || lane->replies ? 0 : put(g, lane, &head);
    if (rc)
        return rc < 0 ? rc : 0;
    struct lane_reply *reply = malloc(sizeof *reply);
    if (!reply)
        return no_memory(g);
    *reply = (struct lane_reply){lane->replies, head};
    lane->replies = reply;
    return 0;
}

int lane_hear_answer(struct acomm_group *g, struct mpi_lane *lane, const struct lane_head *answer)
{
    struct mpi_op *op = lane->offered.first;
    while (op && op->offer != answer->id)
        op = op->next;
    if (!op)
        return lanes_broken(g, lane->peer);
    lane_remove(&lane->offered, op);
    if (answer->head.what == DONE) {
        mpi_end_op(op, 0);
        return 0;
    }
    struct mpi_flight *f = flight_new(g, op, flight_pieces(g->mpi, op->bytes), 0);
    return f ? flight_move(g, f, (char *)op->call.in, op->bytes, lane->peer, answer->head.ticket, false) : no_memory(g);
}

/* ---- the receiver ---- */

static int ask(struct acomm_group *g, struct mpi_lane *lane, struct mpi_op *op)
{
    int ticket = messages_ticket(g, lane->peer);
    struct mpi_flight *f = flight_new(g, op, flight_pieces(g->mpi, op->bytes), 0);
    int rc = f ? flight_move(g, f, (char *)op->call.out, op->bytes, lane->peer, ticket, true) : no_memory(g);
    return rc ? rc : answer(g, lane, CLEAR, op->offer, ticket);
}

/* Contents that may flow, or be read where they lie, have come, or could not be read. Which takes less time depends on how far the cores
 * are apart and on pages: the receiver times both, and tells the sender which it wants. Where ranks share cores it is the work that
 * counts, of two who copy, as the time tells who had a core. */
static void learn(const struct acomm_group *g, struct mpi_lane *lane, const struct mpi_op *op, enum way way, bool failed)
{
    if (!g->seats->reads || op->on_device || !lane_flows(g->messages->lanes, op->bytes))
        return;
    struct choice *c = choice_for(lane->ways, op->bytes);
    bool waited_for = c->agreed == (int)way; /* else it was on its way before */
    if (waited_for && g->crowded)
        choice_learn_mean(c, way, op->bytes, failed ? NEVER : way == FLOWS ? 2 * op->copying : op->copying);
    else if (waited_for)
        choice_learn(c, way, op->bytes, failed ? NEVER : clock_now() - op->met);
    if (!c->moved)
        c->agreed = choice_way_again(c->tries, op->bytes, c->cost, WAYS, SELDOM);
    atomic_store_explicit(&lane->from_memory->offers[choice_class(op->bytes)], c->agreed == READ, memory_order_relaxed);
}

static bool withdrawn(const struct mpi_lane *lane)
{
    atomic_thread_fence(memory_order_seq_cst); /* all was read before this look */
    return atomic_load(lane->from->withdrawn) != 0;
}

/* Out of the longer ring or a cell, as far as it is written. */
static int read_ring(struct acomm_group *g, struct mpi_lane *lane, struct mpi_op *op)
{
    char *to = op->staged ? op->staged : (char *)op->call.out;
    uint64_t part = op->bytes - op->moved;
    const char *from = lane_contents(g->messages->lanes, lane, op->cell, op->from + op->moved, &part);
    if (!part)
        return 0;
    int64_t before = clock_now();
    if (op->cell)
        stream_keep(to + op->moved, from, part);
    else
        stores_read(&lane->reader, &lane->from_memory->talk, op->from + op->moved, to + op->moved, from, part, op->bytes);
    op->copying += clock_now() - before;
    op->moved += part;
    g->messages->lanes->moved++;
    bool whole = op->moved == op->bytes;
    if (whole) {
        lane_remove(&lane->reading, op);
        learn(g, lane, op, FLOWS, false);
    }
    if (!op->cell && (whole || lane_flows(g->messages->lanes, op->bytes)))
        lane_release(g, lane);
    if (!whole)
        return 0;
    lane_take_cell(lane, op->cell);
    int rc = op->staged ? messages_land(g, op, op->staged) : 0;
    if (!op->staged)
        mpi_end_op(op, 0);
    else
        lane_unstage(op);
    return rc;
}

/* Out of the sender's memory. */
static int read_offer(struct acomm_group *g, struct mpi_lane *lane, struct mpi_op *op)
{
    uint64_t left = op->bytes - op->moved, part = left < CHUNK ? left : CHUNK;
    if (withdrawn(lane)) /* news of why are under way */
        return 0;
    int64_t before = clock_now();
    int errnum = peer_memory_read(g->seats->processes[lane->peer], op->from + op->moved, (char *)op->call.out + op->moved, part,
                                  false);
    op->copying += clock_now() - before;
    op->moved += part;
    g->messages->lanes->moved++;
    if (!errnum && (part < left || withdrawn(lane)))
        return 0;
    lane_remove(&lane->reading, op);
    if (errnum) {
        learn(g, lane, op, READ, true);
        return ask(g, lane, op);
    }
    learn(g, lane, op, READ, false);
    int rc = answer(g, lane, DONE, op->offer, 0);
    mpi_end_op(op, 0);
    return rc;
}

static int read_some(struct acomm_group *g, struct mpi_lane *lane, struct mpi_op *op)
{
    return op->offer ? read_offer(g, lane, op) : read_ring(g, lane, op);
}

int lane_read(struct acomm_group *g, struct mpi_lane *lane)
{
    int rc = 0;
    for (struct mpi_op *op = lane->reading.first, *next; op && !rc; op = next) {
        next = op->next;
        rc = read_some(g, lane, op);
    }
    return rc;
}

/* ---- beginning ---- */

/* Contents that flow need room, which those before them give up for memory of their own: their receives may be called later. */
static int make_room(struct acomm_group *g, const struct mpi_lane *lane, uint64_t before)
{
    struct mpi_messages *m = g->messages;
    for (struct arrival **at = &m->unexpected; *at; at = &(*at)->next) {
        struct arrival *a = *at, *made;
        uint64_t bytes = a->head.count * acomm_dtype_bytes(a->head.dtype), part, moved;
        if (!a->stays || a->head.source != lane->peer || (int64_t)(a->at - before) >= 0)
            continue;
        if (!(made = malloc(sizeof *made + bytes)))
            return no_memory(g);
        *made = *a;
        made->stays = false;
        made->contents = (char *)(made + 1);
        for (moved = 0; moved < bytes; moved += part) {
            part = bytes - moved;
            const char *from = lane_contents(m->lanes, lane, CELL_NONE, a->at + moved, &part);
            if (!part) { /* a lane's sender writes one message after the other */
                free(made);
                return lanes_broken(g, lane->peer);
            }
            memcpy((char *)(made + 1) + moved, from, part);
        }
        *at = made;
        if (m->unexpected_end == &a->next)
            m->unexpected_end = &made->next;
        free(a);
    }
    return 0;
}

int lanes_meet(struct acomm_group *g, struct mpi_op *op, const struct arrival *a)
{
    struct mpi_lane *lane = &g->messages->lanes->lanes[a->head.source];
    bool offered = a->head.what == OFFERED;
    int rc = 0;
    if (!op) {
        lane->refused |= a->cell;
        return offered ? answer(g, lane, DONE, a->id, 0) : 0;
    }
    op->cell = a->cell;
    op->offer = offered ? a->id : 0;
    op->from = a->at;
    op->moved = 0;
    op->met = clock_now();
    op->copying = 0;
    if (!offered && op->on_device && !(op->staged = malloc(op->bytes)))
        return no_memory(g);
    if (offered && (op->on_device || !a->at || !g->seats->reads))
        return ask(g, lane, op);
    if (!offered && lane_flows(g->messages->lanes, op->bytes))
        rc = make_room(g, lane, op->from);
    lane_append(&lane->reading, op);
    return rc ? rc : read_some(g, lane, op);
}

void lanes_take(struct acomm_group *g, struct mpi_op *op, const struct arrival *a)
{
    struct mpi_lane *lane = &g->messages->lanes->lanes[a->head.source];
    stores_read(&lane->reader, &lane->from_memory->talk, a->at, (char *)op->call.out, a->contents, op->bytes, op->bytes);
}
