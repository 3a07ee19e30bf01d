/* Collectives that read or write the peers' arrays: offers are exchanged, then the arrays moved, or slots used instead. */
#include "collectives/shared/direct.h"

#include <errno.h>
#include <stdlib.h>

#include "collectives/shared/rounds.h"

#define CHUNK ((size_t)4 << 20) /* of a long copy; between two, signals and the group are checked */

/* ---- reading and writing ---- */

/* Memory that only its owner can access is no failure if all ranks can still use slots. */
static int direct_broken(struct rounds *r, int rank, int errnum)
{
    struct direct_state *d = &r->op->group->direct;
    if (!d->repeats || (errnum != EFAULT && errnum != EPERM))
        return wait_unreached(r->op, team_member(r->op->team, rank), errnum);
    d->barred = true;
    return ACOMM_SYSTEM;
}

static int move_private(struct rounds *r, int rank, uint64_t there, char *ours, size_t bytes, bool writes)
{
    int errnum = writes ? window_write(r->shared, rank, there, ours, bytes)
                        : peer_memory_read(window_process(r->shared, rank), there, ours, bytes);
    return errnum ? direct_broken(r, rank, errnum) : 0;
}

char *direct_mapped(const struct rounds *r, int rank, struct direct_place place)
{
    if (place.how != DIRECT_MAPPED)
        return NULL;
    struct direct_state *d = &r->op->group->direct;
    return rank == r->rank ? (char *)(uintptr_t)place.at : d->mapped[rank].base + place.at;
}

static int direct_move(struct rounds *r, int rank, struct direct_place place, uint64_t offset, char *ours, size_t bytes,
                       size_t whole, bool writes)
{
    char *mapped = direct_mapped(r, rank, place);
    int rc = 0;
    for (size_t at = 0; at < bytes && !rc; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        if (!mapped)
            rc = move_private(r, rank, place.at + offset + at, ours + at, part, writes);
        else if (writes)
            stream_copy(mapped + offset + at, ours + at, part);
        else
            stream_long(ours + at, mapped + offset + at, part, whole);
        rc = rc ? rc : wait_look(r->op);
    }
    return rc;
}

int direct_read(struct rounds *r, int rank, struct direct_place from, uint64_t offset, char *to, size_t bytes, size_t whole)
{
    return direct_move(r, rank, from, offset, to, bytes, whole, false);
}

int direct_write(struct rounds *r, int rank, struct direct_place to, uint64_t offset, const char *from, size_t bytes)
{
    return direct_move(r, rank, to, offset, (char *)(uintptr_t)from, bytes, bytes, true);
}

const struct direct_offer *direct_offer(const struct rounds *r, int rank)
{
    return &r->op->group->direct.offers[rank];
}

/* ---- offers ---- */

static bool possible(const struct direct_place *place)
{
    return place->how <= DIRECT_PRIVATE || (place->how == DIRECT_MAPPED && place->at <= ARENA_ROOM);
}

/* Every rank's offer, copied once, then checked: a peer must not make us access memory beyond its arena. Our own offer is known
 * here, and its arrays are used at our own addresses. */
static int take_offers(struct rounds *r, const struct direct_offer *own)
{
    struct direct_state *d = &r->op->group->direct;
    for (int rank = 0; rank < r->ranks; rank++) {
        struct direct_offer *o = &d->offers[rank];
        shared_copy(o, rank == r->rank ? (const char *)own : rounds_slot(r, rank, sizeof *o), sizeof *o);
        if (!possible(&o->in) || !possible(&o->out))
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
        if (rank != r->rank && !symmetric_map(g, rank, 0))
            return false;
    }
    return true;
}

/* Tries access to the peers' memory once, and agrees on the result: if one rank has no access, all use slots for good. */
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
        d->reach = can[0] ? PATH_OPEN : PATH_CLOSED;
    if (!rc && maps)
        d->map = can[1] ? PATH_OPEN : PATH_CLOSED;
    return rc;
}

/* ---- running ---- */

/* The last round: all ranks have finished; or one had no access: then its data and later private arrays use slots. */
static int direct_end(struct rounds *r, const struct direct_plan *plan)
{
    struct direct_state *d = &r->op->group->direct;
    uint8_t barred = d->barred;
    int rc = rounds_meet(r, &barred, sizeof barred);
    for (int rank = 0; rank < r->ranks && !rc; rank++)
        barred |= *(const uint8_t *)rounds_slot(r, rank, sizeof barred);
    if (rc || !barred)
        return rc;
    d->reach = PATH_CLOSED;
    return plan->staged(r->op);
}

/* Opens the addresses of the peers' offered arrays, each no longer than `bytes`. */
static int open_offers(struct rounds *r, uint64_t bytes)
{
    for (int rank = 0; rank < r->ranks; rank++) {
        const struct direct_offer *o = direct_offer(r, rank);
        uint64_t in = o->in.how == DIRECT_MAPPED ? o->in.at : 0, out = o->out.how == DIRECT_MAPPED ? o->out.at : 0;
        bool maps = rank != r->rank && (o->in.how == DIRECT_MAPPED || o->out.how == DIRECT_MAPPED);
        if (maps && !symmetric_map(r->op->group, rank, (in > out ? in : out) + bytes))
            return group_fail_op(r->op, ACOMM_RESOURCE, r->op->group->rank, errno, "no addresses for a peer's symmetric array");
    }
    return 0;
}

/* All ranks' offers, and whether all arrays can be accessed. */
static int meet(struct rounds *r, const struct direct_plan *plan, bool *open)
{
    struct acomm_group *g = r->op->group;
    struct direct_state *d = &g->direct;
    struct direct_offer own = {.in = direct_place(d, r->op->in, plan->offered),
                               .out = direct_place(d, r->op->out, plan->offered_out), .pushes = plan->pushes};
    if (!d->offers && !(d->offers = calloc((size_t)g->size, sizeof *d->offers)))
        return group_fail_op(r->op, ACOMM_RESOURCE, g->rank, ENOMEM, NULL);
    int rc = rounds_meet(r, &own, sizeof own);
    rc = rc ? rc : take_offers(r, &own);
    if (rc)
        return rc;
    bool reaches = any(r, DIRECT_PRIVATE), maps = any(r, DIRECT_MAPPED);
    bool new_reach = reaches && d->reach == PATH_UNKNOWN, new_map = maps && d->map == PATH_UNKNOWN;
    rc = new_reach || new_map ? try_ways(r, new_reach, new_map) : 0;
    *open = (!reaches || d->reach == PATH_OPEN) && (!maps || d->map == PATH_OPEN);
    return rc || !maps || !*open ? rc : open_offers(r, plan->bytes);
}

static int direct_run_direct(struct rounds *r, const struct direct_plan *plan)
{
    struct direct_state *d = &r->op->group->direct;
    d->repeats = plan->repeats;
    d->barred = false;
    int rc = plan->move(r);
    return rc && !d->barred ? rc : direct_end(r, plan);
}

static int direct_choose(struct acomm_op *op, const struct direct_plan *plan)
{
    struct acomm_group *g = op->group;
    struct direct_state *d = &g->direct;
    struct rounds r = rounds_start(op);
    bool forced = op->algorithm == g->selection.forced[op->kind], open = true;
    if (!d->symmetric && d->reach == PATH_CLOSED) /* all offers are private arrays, which no peer can access */
        return plan->staged(op);
    int rc = meet(&r, plan, &open);
    if (rc)
        return rc;
    bool beside = plan->shared && d->symmetric && !forced && any(&r, DIRECT_PRIVATE);
    return open && !beside ? direct_run_direct(&r, plan) : plan->staged(op);
}

int direct_run(struct acomm_op *op, const struct direct_plan *plan)
{
    int rc = plan->bytes > ARENA_ROOM ? plan->staged(op) : direct_choose(op, plan); /* beyond the checked size of an arena */
    if (rc < 0 && plan->pushed)
        group_close_window(op->group); /* the caller may free the array that peers are writing to */
    return rc;
}
