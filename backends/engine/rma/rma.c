/* One-sided operations: puts, gets and accumulates on memory that peers of this host exposed. */
#include "rma/rma.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "group/group.h"

#define CHUNK ((size_t)1 << 20) /* of a long copy; between two, signals and the group are checked, and an owner may close */
#define SPINS 4 /* times the usual spin budget: microseconds pass between a program's calls */
#define PART ((size_t)16 << 10) /* of an accumulate into memory that has to be fetched and brought back */

struct told { _Alignas(64) _Atomic uint64_t signals, fences; }; /* by one rank to another, ever */
struct control {
    _Alignas(64) _Atomic uint32_t lock; /* 0 free, 1 locked, 2 locked with waiters; futex */
    struct told told[];                 /* by rank */
};

struct reached {                        /* a rank's memory, as we access it */
    struct control *control;
    char *mapped;                       /* or NULL: */
    uint64_t at, bytes;
};

struct acomm_rma {
    struct acomm_group *group;
    struct acomm_block *block;          /* of our control */
    _Atomic int inside;                 /* threads in a call */
    _Atomic int closed;
    _Atomic uint64_t *taken;            /* signals by rank, of those that came */
    _Atomic uint64_t epoch;             /* fences that we came to */
    struct acomm_rma *next;             /* of the group */
    struct reached ranks[];
};

/* A rank's message to the others when the memory is exposed. */
struct offer { uint64_t control, at, bytes; int32_t mapped, maps, reaches; };

/* ---- opening ---- */

static struct offer own_offer(struct acomm_group *g, struct acomm_group *arenas, const acomm_block *block, uintptr_t data, uint64_t bytes)
{
    struct direct_place control = direct_place(&g->direct, (const char *)acomm_block_address(block), 1);
    struct direct_place place = direct_place(&arenas->direct, (const char *)data, bytes);
    struct offer own = {.control = control.at, .at = place.at, .bytes = bytes, .mapped = place.how == DIRECT_MAPPED,
                        .maps = control.how == DIRECT_MAPPED, .reaches = 1};
    for (int rank = 0; rank < g->size; rank++) {
        int local_rank = g->hosts.local_rank[rank];
        own.maps = own.maps && symmetric_map(g, local_rank, 0) && (!arenas->direct.arena || symmetric_map(arenas, local_rank, 0));
        own.reaches = own.reaches && (rank == g->rank || window_reaches(&g->shared, local_rank));
    }
    return own;
}

/* The same on all ranks. */
static bool all_reach(const struct offer *offers, int ranks)
{
    bool maps = true, reaches = true, private = false;
    for (int rank = 0; rank < ranks; rank++) {
        maps = maps && offers[rank].maps && offers[rank].control <= ARENA_ROOM && !(offers[rank].control % _Alignof(struct control))
            && (!offers[rank].mapped || (offers[rank].at <= ARENA_ROOM && offers[rank].bytes <= ARENA_ROOM));
        reaches = reaches && offers[rank].reaches;
        private = private || (!offers[rank].mapped && offers[rank].bytes);
    }
    return maps && (reaches || !private);
}

/* False if memory is too short for the page tables of the peers' offers. */
static bool rma_fill(struct acomm_rma *r, struct acomm_group *arenas, const struct offer *offers)
{
    struct acomm_group *g = r->group;
    size_t told = sizeof(struct control) + (size_t)g->size * sizeof(struct told);
    for (int rank = 0; rank < g->size; rank++) {
        const struct offer *o = &offers[rank];
        int local_rank = g->hosts.local_rank[rank];
        char *control = symmetric_map(g, local_rank, o->control + told), *data = o->mapped ? symmetric_map(arenas, local_rank, o->at + o->bytes) : NULL;
        if (!control || (o->mapped && !data))
            return false;
        r->ranks[rank] = (struct reached){.control = (struct control *)(void *)(control + o->control),
                                          .mapped = o->mapped ? data + o->at : NULL, .at = o->at, .bytes = o->bytes};
    }
    return true;
}

static void rma_add(struct acomm_rma *r)
{
    pthread_mutex_lock(&r->group->lock);
    r->next = r->group->rmas;
    r->group->rmas = r;
    pthread_mutex_unlock(&r->group->lock);
}

int acomm_rma_open(acomm_group *g, acomm_group *arenas, uintptr_t data, uint64_t bytes, int64_t timeout, acomm_rma **out)
{
    acomm_block *block = NULL;
    size_t ranks = (size_t)g->size;
    int rc = acomm_group_share(g, sizeof(struct control) + ranks * sizeof(struct told), timeout, &block);
    if (rc)
        return rc;
    struct acomm_rma *r = calloc(1, sizeof *r + ranks * sizeof r->ranks[0]);
    struct offer offers[ranks], own = own_offer(g, arenas, block, data, bytes);
    if (!r || !(r->taken = calloc(ranks, sizeof *r->taken)))
        own.maps = 0; /* all learn of it */
    rc = acomm_run(g, &(acomm_call){.kind = ACOMM_ALL_GATHER, .in = &own, .out = offers, .count = sizeof own,
                                    .dtype = ACOMM_UINT8, .root = -1, .timeout = timeout});
    offers[g->rank] = own;
    bool open = !rc && all_reach(offers, g->size);
    if (open) {
        r->group = g;
        r->block = block;
        open = rma_fill(r, arenas, offers);
        rc = open ? 0 : ACOMM_RESOURCE;
    }
    if (open) {
        rma_add(r);
        *out = r;
    } else {
        if (r)
            free(r->taken);
        free(r);
        acomm_block_free(block);
        errno = 0; /* addresses are not what is missing */
    }
    return rc ? rc : open ? 0 : ACOMM_UNSUPPORTED;
}

/* ---- calls ---- */

/* 0, followed by rma_leave(); or the code that refuses the call. */
static int come(struct acomm_rma *r, int rank, struct acomm_op *op)
{
    atomic_fetch_add(&r->inside, 1);
    int rc = atomic_load(&r->closed) ? ACOMM_CLOSED : rank < 0 || rank >= r->group->size ? ACOMM_ARGUMENT
           : group_forked(r->group) ? ACOMM_FORKED : 0;
    if (rc)
        atomic_fetch_sub(&r->inside, 1);
    *op = (struct acomm_op){.group = r->group, .kind = ACOMM_RECV, .peer = rank, .root = -1, .synchronous = true, .timeout = -1};
    return rc;
}

static int rma_leave(struct acomm_rma *r, int rc)
{
    atomic_fetch_sub(&r->inside, 1);
    return rc;
}

/* The same where a group that has failed ends the call. */
static int rma_begin(struct acomm_rma *r, int rank, struct acomm_op *op)
{
    int rc = come(r, rank, op), poisoned = rc ? 0 : atomic_load(&r->group->poisoned);
    return poisoned ? rma_leave(r, poisoned) : rc;
}

/* One part of a copy: 0 or errno. */
static int rma_copy(struct acomm_rma *r, int rank, uint64_t at, char *mine, size_t bytes, bool put)
{
    struct shared *s = &r->group->shared;
    struct reached *to = &r->ranks[rank];
    int local_rank = r->group->hosts.local_rank[rank];
    if (!to->mapped && rank != r->group->rank && put)
        return window_write(s, local_rank, to->at + at, mine, bytes);
    if (!window_enter(s, local_rank))
        return ECANCELED;
    int errnum = 0;
    char *there = to->mapped ? to->mapped + at : (char *)(uintptr_t)(to->at + at);
    if (!to->mapped && rank != r->group->rank)
        errnum = peer_memory_read(window_process(s, local_rank), to->at + at, mine, bytes);
    else if (put)
        memmove(there, mine, bytes);
    else
        memmove(mine, there, bytes);
    window_leave(s);
    return errnum;
}

static int rma_move(struct acomm_rma *r, int rank, uint64_t at, char *mine, uint64_t bytes, bool put)
{
    struct acomm_op op;
    int rc = rma_begin(r, rank, &op);
    if (rc)
        return rc;
    if (at > r->ranks[rank].bytes || bytes > r->ranks[rank].bytes - at)
        return rma_leave(r, ACOMM_ARGUMENT);
    for (uint64_t done = 0; done < bytes && !rc; done += CHUNK) {
        size_t part = bytes - done < CHUNK ? bytes - done : CHUNK;
        int errnum = rma_copy(r, rank, at + done, mine + done, part, put);
        rc = errnum ? wait_unreached(&op, rank, errnum) : bytes > CHUNK ? wait_look(&op) : 0;
    }
    return rma_leave(r, rc);
}

int acomm_rma_put(acomm_rma *r, int rank, uint64_t at, uintptr_t from, uint64_t bytes)
{
    return rma_move(r, rank, at, (char *)from, bytes, true);
}

int acomm_rma_get(acomm_rma *r, int rank, uint64_t at, uintptr_t to, uint64_t bytes)
{
    return rma_move(r, rank, at, (char *)to, bytes, false);
}

/* ---- accumulate ---- */

static int lock_control(struct acomm_op *op, struct control *c)
{
    uint32_t unlocked = 0;
    op->timeout = op->group->timeout;
    /* A thread that has slept does not know about other sleepers. */
    for (struct wait w = wait_start(op); !atomic_compare_exchange_strong(&c->lock, &unlocked, w.sleepy ? 2 : 1); unlocked = 0) {
        int rc = wait_step(&w); /* a holder that died: the group fails */
        if (rc == ACOMM_INTERRUPTED)
            return rc;
        if (rc)
            return group_fail_op(op, rc, -1, 0, "another rank accumulates there");
        if (!w.sleepy)
            continue;
        if (atomic_exchange(&c->lock, 2) == 0)
            return 0;
        futex_sleep(&c->lock, 2, WAIT_SLEEP_NS, true);
        wait_woke(&w);
    }
    return 0;
}

/* With the lock. 0 or errno. */
static int rma_reduce_part(struct acomm_rma *r, int rank, uint64_t at, char *mine, size_t bytes, int dtype, int redop)
{
    struct shared *s = &r->group->shared;
    struct reached *to = &r->ranks[rank];
    int local_rank = r->group->hosts.local_rank[rank], errnum = 0;
    char *there = to->mapped ? to->mapped + at : rank == r->group->rank ? (char *)(uintptr_t)(to->at + at) : NULL;
    _Alignas(64) char fetched[PART];
    char *place = there ? there : fetched;
    if (!there && (errnum = rma_copy(r, rank, at, fetched, bytes, false)))
        return errnum;
    if (there && !window_enter(s, local_rank))
        return ECANCELED;
    uintptr_t inputs[2] = {(uintptr_t)place, (uintptr_t)mine};
    acomm_reduce_local((uintptr_t)place, inputs, 2, bytes / acomm_dtype_bytes(dtype), dtype, redop, 1);
    if (there)
        window_leave(s);
    return there ? 0 : rma_copy(r, rank, at, fetched, bytes, true);
}

int acomm_rma_accumulate(acomm_rma *r, int rank, uint64_t at, uintptr_t from, uint64_t count, int dtype, int redop)
{
    uint64_t width = dtype < 0 || dtype >= ACOMM_DTYPES ? 0 : acomm_dtype_bytes(dtype), bytes = count * width;
    if (!width || !acomm_can_reduce(dtype, redop))
        return ACOMM_UNSUPPORTED;
    struct acomm_op op;
    int rc = rma_begin(r, rank, &op);
    if (rc)
        return rc;
    if (count > r->ranks[rank].bytes || at > r->ranks[rank].bytes || bytes > r->ranks[rank].bytes - at)
        return rma_leave(r, ACOMM_ARGUMENT);
    struct control *c = r->ranks[rank].control;
    if ((rc = lock_control(&op, c)))
        return rma_leave(r, rc);
    for (uint64_t done = 0; done < bytes && !rc; done += PART) {
        size_t part = bytes - done < PART ? bytes - done : PART;
        int errnum = rma_reduce_part(r, rank, at + done, (char *)from + done, part, dtype, redop);
        rc = errnum ? wait_unreached(&op, rank, errnum) : 0;
    }
    if (atomic_exchange(&c->lock, 0) == 2)
        futex_wake(&c->lock, 1, true);
    return rma_leave(r, rc);
}

/* ---- signals and fences ---- */

static void rma_tell(struct acomm_rma *r, int rank, bool fence)
{
    struct told *told = &r->ranks[rank].control->told[r->group->rank];
    atomic_fetch_add(fence ? &told->fences : &told->signals, 1);
    doorbell_ring(&region_of(&r->group->shared, r->group->hosts.local_rank[rank])->doorbell);
}

int acomm_rma_signal(acomm_rma *r, int rank)
{
    struct acomm_op op;
    int rc = rma_begin(r, rank, &op);
    if (rc)
        return rc;
    rma_tell(r, rank, false);
    return rma_leave(r, 0);
}

static bool rma_take(struct acomm_rma *r, int rank, uint64_t unused)
{
    (void)unused;
    const struct told *told = &r->ranks[r->group->rank].control->told[rank];
    uint64_t taken = atomic_load(&r->taken[rank]);
    while (taken < atomic_load(&told->signals))
        if (atomic_compare_exchange_weak(&r->taken[rank], &taken, taken + 1))
            return true;
    return false;
}

static bool fenced(struct acomm_rma *r, int rank, uint64_t epoch)
{
    return atomic_load(&r->ranks[r->group->rank].control->told[rank].fences) >= epoch;
}

static void sleep_until(struct acomm_rma *r, struct acomm_op *op, bool (*there)(struct acomm_rma *, int, uint64_t), uint64_t epoch,
                        bool *found)
{
    struct doorbell *doorbell = r->group->doorbell;
    int64_t left = op->deadline - clock_now();
    uint32_t seen = doorbell_listen(doorbell);
    *found = there(r, op->peer, epoch);
    if (!*found && !atomic_load(&r->group->poisoned))
        doorbell_sleep(doorbell, seen, left < WAIT_SLEEP_NS ? left : WAIT_SLEEP_NS);
    doorbell_leave(doorbell);
}

/* 0, 1 when the deadline has passed, or a code. */
static int rma_await(struct acomm_rma *r, struct acomm_op *op, bool (*there)(struct acomm_rma *, int, uint64_t), uint64_t epoch)
{
    bool found = there(r, op->peer, epoch);
    struct wait w = wait_start(op);
    w.spins *= r->group->oversubscribed ? 1 : SPINS;
    for (; !found; found = found || there(r, op->peer, epoch)) {
        int rc = atomic_load(&r->closed) ? ACOMM_CLOSED : wait_step(&w);
        if (rc == ACOMM_INTERRUPTED)
            return rc; /* a handler's exception is raised; an arrived signal is for the next caller */
        if (rc && there(r, op->peer, epoch)) /* it came before the end that we saw */
            return 0;
        if (rc == ACOMM_TIMEOUT)
            return 1;
        if (rc == ACOMM_CLOSED)
            return rc;
        if (rc)
            return group_fail_op(op, rc, -1, 0, NULL);
        if (!w.sleepy)
            continue;
        sleep_until(r, op, there, epoch, &found);
        wait_woke(&w);
    }
    return 0;
}

int acomm_rma_wait(acomm_rma *r, int rank, int64_t timeout)
{
    struct acomm_op op;
    int rc = come(r, rank, &op);
    if (rc)
        return rc;
    if (rma_take(r, rank, 0))
        return rma_leave(r, 0); /* also where the group has failed since */
    op.timeout = timeout;
    rc = atomic_load(&r->group->poisoned);
    return rma_leave(r, rc ? rc : timeout <= 0 ? 1 : rma_await(r, &op, rma_take, 0));
}

int acomm_rma_fence(acomm_rma *r, int64_t timeout, int32_t *late)
{
    struct acomm_op op;
    int rc = rma_begin(r, 0, &op);
    if (rc)
        return rc;
    uint64_t epoch = atomic_fetch_add(&r->epoch, 1) + 1;
    for (int rank = 0; rank < r->group->size; rank++)
        rma_tell(r, rank, true);
    op.timeout = timeout;
    for (int rank = 0; rank < r->group->size && !rc; rank++) {
        op.peer = *late = rank;
        rc = rma_await(r, &op, fenced, epoch);
    }
    return rma_leave(r, rc);
}

/* ---- the end ---- */

static void close_one(struct acomm_rma *r)
{
    if (atomic_exchange(&r->closed, 1))
        return;
    doorbell_ring(r->group->doorbell);
    while (atomic_load(&r->inside))
        sched_yield(); /* it detects the close within WAIT_SLEEP_NS */
    acomm_block_free(r->block);
}

void rma_close_all(struct acomm_group *g)
{
    if (group_forked(g))
        return; /* it is the parent's, which continues */
    for (struct acomm_rma *r = g->rmas; r; r = r->next)
        close_one(r);
    if (g->rmas)
        group_close_window(g); /* the owner of the memory may free it from here on */
    g->rmas = NULL;
}

void acomm_rma_free(acomm_rma *r)
{
    free(r->taken);
    free(r);
}
