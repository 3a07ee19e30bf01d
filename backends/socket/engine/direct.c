#include "direct.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "collectives/shared_rounds.h"
#include "group.h"
#include "peer_memory.h"
#include "stream.h"
#include "wait.h"
#include "window.h"

#define CHUNK ((size_t)4 << 20) /* of a long copy; between two we look at signals and at the group */

enum { STAGED, DIRECT };

/* ---- reading ---- */

/* Memory that only its owner can reach is no failure where all can still go through slots. */
static int broken(struct rounds *r, int rank, int errnum)
{
    struct direct_state *d = &r->op->group->direct;
    int peer = team_member(r->op->team, rank);
    if (d->repeats && (errnum == EFAULT || errnum == EPERM)) {
        d->barred = true;
        return ACOMM_SYSTEM;
    }
    if (errnum == ESRCH || errnum == ECANCELED) { /* it has gone, or failed: the reason is under way */
        bool closed = wait_news(r->op->group, peer);
        return group_fail_op(r->op, ACOMM_LOST, peer, 0, closed ? WAIT_CLOSED : "its process has gone");
    }
    return group_fail_op(r->op, ACOMM_SYSTEM, peer, errnum, "its array could not be reached");
}

static int read_private(struct rounds *r, int rank, uint64_t from, char *to, size_t bytes)
{
    int errnum = peer_memory_read(shared_window(r->shared, rank)->pid, from, to, bytes);
    return errnum ? broken(r, rank, errnum) : 0;
}

static int write_private(struct rounds *r, int rank, uint64_t to, const char *from, size_t bytes)
{
    int errnum = window_write(r->shared, rank, to, from, bytes);
    return errnum ? broken(r, rank, errnum) : 0;
}

char *direct_mapped(const struct rounds *r, int rank, struct direct_place place)
{
    if (place.how != DIRECT_MAPPED)
        return NULL;
    struct direct_state *d = &r->op->group->direct;
    return rank == r->rank ? (char *)(uintptr_t)place.at : d->mapped[rank] + place.at;
}

int direct_read(struct rounds *r, int rank, struct direct_place from, uint64_t offset, char *to, size_t bytes)
{
    const char *mapped = direct_mapped(r, rank, from);
    int rc = 0;
    for (size_t at = 0; at < bytes && !rc; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        if (mapped)
            stream_long(to + at, mapped + offset + at, part, bytes);
        else
            rc = read_private(r, rank, from.at + offset + at, to + at, part);
        rc = rc ? rc : wait_look(r->op);
    }
    return rc;
}

int direct_write(struct rounds *r, int rank, struct direct_place to, uint64_t offset, const char *from, size_t bytes)
{
    char *mapped = direct_mapped(r, rank, to);
    int rc = 0;
    for (size_t at = 0; at < bytes && !rc; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        if (mapped)
            stream_copy(mapped + offset + at, from + at, part);
        else
            rc = write_private(r, rank, to.at + offset + at, from + at, part);
        rc = rc ? rc : wait_look(r->op);
    }
    return rc;
}

const struct direct_offer *direct_offer(const struct rounds *r, int rank)
{
    return &r->op->group->direct.offers[rank];
}

/* ---- offers ---- */

/* Every rank's offer, copied once, then judged: a peer must not make us reach beyond its arena. Our own arrays are used
 * where we have them. */
static int take_offers(struct rounds *r)
{
    struct direct_state *d = &r->op->group->direct;
    for (int rank = 0; rank < r->ranks; rank++) {
        struct direct_offer *o = &d->offers[rank];
        memcpy(o, rounds_slot(r, rank, sizeof *o), sizeof *o);
        if ((o->in.how == DIRECT_MAPPED && o->in.at > ARENA_ROOM) || (o->out.how == DIRECT_MAPPED && o->out.at > ARENA_ROOM))
            return group_fail_op(r->op, ACOMM_PROTOCOL, team_member(r->op->team, rank), 0, "it offered an array outside its arena");
    }
    d->offers[r->rank].in.at = (uint64_t)(uintptr_t)r->op->in;
    d->offers[r->rank].out.at = (uint64_t)(uintptr_t)r->op->out;
    return 0;
}

static bool any(const struct rounds *r, enum direct_how how)
{
    for (int rank = 0; rank < r->ranks; rank++)
        if (direct_offer(r, rank)->in.how == how || direct_offer(r, rank)->out.how == how)
            return true;
    return false;
}

static bool may_reach(const struct rounds *r)
{
    for (int rank = 0; rank < r->ranks; rank++)
        if (rank != r->rank && !window_reaches(r->shared, rank))
            return false;
    return true;
}

static bool may_map(const struct rounds *r)
{
    struct acomm_group *g = r->op->group;
    for (int rank = 0; rank < r->ranks; rank++) {
        if (rank != r->rank && !direct_map(g, rank))
            return false;
    }
    return true;
}

/* Tries what has not been tried yet, and agrees on it: one rank that cannot makes all use the slots, for good. */
static int try_ways(struct rounds *r, bool reaches, bool maps)
{
    struct direct_state *d = &r->op->group->direct;
    uint8_t can[2] = {reaches && may_reach(r), maps && may_map(r)};
    int rc = rounds_meet(r, can, sizeof can);
    for (int rank = 0; rank < r->ranks && !rc; rank++) {
        const uint8_t *theirs = (const uint8_t *)rounds_slot(r, rank, sizeof can);
        can[0] &= theirs[0];
        can[1] &= theirs[1];
    }
    if (!rc && reaches)
        d->reach = can[0] ? WAY_OPEN : WAY_CLOSED;
    if (!rc && maps)
        d->map = can[1] ? WAY_OPEN : WAY_CLOSED;
    return rc;
}

/* ---- the choice ---- */

/* What a run costs a rank. Where ranks take turns on the cores that is processor time, which they share: who comes last finds
 * the arrays of all others, and is done in the time of its own copies, however long they had its core before. */
static int64_t spent(const struct acomm_group *g)
{
    return g->crowded ? clock_spent() : clock_now();
}

/* The same on all ranks: it depends on what all have offered, and on counts that go in step. By the slowest rank, because who only
 * gives leaves slots long before who takes; by the sum of all, where that is what they share. */
static int choose(const struct rounds *r, uint32_t try)
{
    float costs[2] = {0, 0};
    for (int rank = 0; rank < r->ranks; rank++)
        for (int way = 0; way < 2; way++) {
            float cost = direct_offer(r, rank)->cost[way];
            costs[way] = direct_offer(r, 0)->crowded ? costs[way] + cost : cost > costs[way] ? cost : costs[way];
        }
    return choice_way(try, costs[STAGED], costs[DIRECT]);
}

/* The last round: everybody has done, or what could not be done for one goes through slots, and so do private arrays from then on. */
static int end(struct rounds *r, const struct direct_plan *plan)
{
    struct direct_state *d = &r->op->group->direct;
    uint8_t barred = d->barred;
    int rc = rounds_meet(r, &barred, sizeof barred);
    for (int rank = 0; rank < r->ranks && !rc; rank++)
        barred |= *(const uint8_t *)rounds_slot(r, rank, sizeof barred);
    if (rc || !barred)
        return rc;
    d->reach = WAY_CLOSED;
    return plan->staged(r->op);
}

static int run_way(struct rounds *r, const struct direct_plan *plan, int way)
{
    struct direct_state *d = &r->op->group->direct;
    if (way == STAGED)
        return plan->staged(r->op);
    d->repeats = plan->repeats;
    d->barred = false;
    int rc = plan->move(r);
    return rc && !d->barred ? rc : end(r, plan);
}

char *direct_map(struct acomm_group *g, int seat)
{
    struct direct_state *d = &g->direct;
    pthread_mutex_lock(&g->lock);
    if (!d->mapped)
        d->mapped = calloc((size_t)g->size, sizeof *d->mapped);
    if (d->mapped && !d->mapped[seat])
        d->mapped[seat] = shared_map_arena(&g->shared, seat);
    char *base = d->mapped ? d->mapped[seat] : NULL;
    pthread_mutex_unlock(&g->lock);
    return base;
}

/* The first round: everybody's offer. */
static int meet(struct rounds *r, const struct direct_plan *plan, const struct choice *choice)
{
    struct direct_state *d = &r->op->group->direct;
    struct direct_offer own = {.in = direct_place(d, r->op->in, plan->offered),
                               .out = direct_place(d, r->op->out, plan->offered_out),
                               .cost = {choice->cost[STAGED], choice->cost[DIRECT]},
                               .pushes = plan->pushes, .crowded = r->op->group->crowded};
    int rc = rounds_meet(r, &own, sizeof own);
    return rc ? rc : take_offers(r);
}

/* Whether all ranks know, without asking each other, that the slots are used: nothing else is open to private arrays, or so it was
 * agreed for this try (choice.h). */
static bool known_staged(const struct direct_state *d, const struct choice *choice)
{
    return !d->symmetric && (d->reach == WAY_CLOSED || (choice->moved && choice->agreed == STAGED));
}

static int run_staged(struct acomm_op *op, const struct direct_plan *plan, struct choice *choice)
{
    int64_t before = spent(op->group);
    int rc = plan->staged(op);
    if (!rc && choice->moved)
        choice_learn(choice, STAGED, plan->bytes, spent(op->group) - before);
    return rc;
}

int direct_run(struct acomm_op *op, const struct direct_plan *plan)
{
    struct acomm_group *g = op->group;
    struct direct_state *d = &g->direct;
    struct rounds r = rounds_start(op);
    if (plan->bytes > ARENA_ROOM) /* more than an arena is checked for */
        return plan->staged(op);
    struct choice *choice = choice_for(d->choices[op->kind], plan->bytes);
    bool forced = op->algorithm == g->selection.forced[op->kind];
    if (!forced && known_staged(d, choice))
        return run_staged(op, plan, choice);
    if (!d->offers && !(d->offers = calloc((size_t)g->size, sizeof *d->offers)))
        return group_fail_op(op, ACOMM_RESOURCE, g->rank, ENOMEM, NULL);
    int rc = meet(&r, plan, choice);
    if (rc)
        return rc;
    bool reaches = any(&r, DIRECT_PRIVATE), maps = any(&r, DIRECT_MAPPED);
    bool new_reach = reaches && d->reach == WAY_UNKNOWN, new_map = maps && d->map == WAY_UNKNOWN;
    if ((new_reach || new_map) && (rc = try_ways(&r, new_reach, new_map)))
        return rc;
    bool open = (!reaches || d->reach == WAY_OPEN) && (!maps || d->map == WAY_OPEN);
    bool slots = !open || (reaches && plan->shared && d->symmetric && !forced), free_choice = !slots && reaches && !forced;
    int way = free_choice ? choose(&r, choice->tries) : slots ? STAGED : DIRECT;
    choice->agreed = way;
    int64_t before = spent(op->group);
    rc = run_way(&r, plan, way);
    if (rc && plan->pushed)
        window_close(&g->shared); /* the caller may free the array that peers are writing to */
    if (!rc && free_choice && plan->bytes)
        choice_learn(choice, way, plan->bytes, spent(op->group) - before);
    return rc;
}

struct acomm_block *direct_take(struct acomm_group *g, uint64_t bytes)
{
    pthread_mutex_lock(&g->lock);
    if (!g->direct.arena)
        g->direct.arena = arena_open(g->shared.fd, shared_arena_offset(&g->shared, g->rank));
    struct arena *arena = g->direct.arena;
    pthread_mutex_unlock(&g->lock);
    return arena ? arena_take(arena, bytes) : NULL;
}

void direct_close(struct acomm_group *g)
{
    struct direct_state *d = &g->direct;
    for (int rank = 0; d->mapped && rank < g->size; rank++)
        if (d->mapped[rank])
            munmap(d->mapped[rank], ARENA_BYTES);
    free(d->mapped);
    free(d->offers);
    arena_close(d->arena);
}
