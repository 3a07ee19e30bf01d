/* The beginning, the failure and the end of a group. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "forks.h"
#include "mpi_group.h"
#include "mpi_messages.h"
#include "mpi_seats.h"
#include "op.h"
#include "wait.h"

#define FAREWELL_NS 100000000 /* for the last news to leave */
#define DEATHS_NS 10000000000 /* for the library to learn of every death that the caller knows of */

bool group_was_forked(const struct acomm_group *g)
{
    return forks_now() != g->forks;
}

void group_enter(struct acomm_group *g)
{
    int (*enter)(int) = atomic_load(&g->enter);
    if (enter)
        enter(atomic_load(&g->device));
}

/* ---- failures ---- */

void mpi_header(const struct mpi_op *op, acomm_header *out)
{
    const acomm_call *c = &op->call;
    struct acomm_op seen; /* what op_header() reads of it: all of it is several lines of zeros */
    seen.whole = NULL;
    seen.sequence = op->sequence;
    seen.count = op->call.counts ? 0 : c->count;
    seen.layout = c->layout;
    seen.kind = c->kind;
    seen.dtype = c->dtype;
    seen.redop = c->redop;
    seen.factor = c->factor;
    seen.send_counts = op->call.counts;
    seen.root = !op_is_message(c->kind) ? c->root : -1;
    seen.shares = false;
    op_header(&seen, out); /* the same as in the socket engine, and compared as there */
}

static bool is_death(const acomm_failure *failure)
{
    return failure->code == ACOMM_LOST && failure->errnum == ESRCH;
}

/* A difference as the rank sees it that caused it: from its own side, as everywhere. */
static void turn_round(acomm_failure *failure)
{
    acomm_failure from = *failure;
    failure->origin = from.culprit, failure->culprit = from.origin;
    failure->mine = from.theirs, failure->theirs = from.mine;
}

/* Another rank's operation must not pass for one of ours: what we do is named by mpi_name(), or in a message's own record. */
static void heard(acomm_failure *failure)
{
    failure->theirs = failure->mine;
    failure->mine = (acomm_header){.root = -1};
    failure->sequence = 0;
    failure->elapsed = 0;
}

int mpi_poison(struct acomm_group *g, const acomm_failure *failure)
{
    pthread_mutex_lock(&g->lock);
    if (!atomic_load(&g->poisoned)) {
        g->failure = *failure;
        if (failure->origin != g->rank && failure->code != ACOMM_MISMATCH)
            heard(&g->failure);
        if (failure->code == ACOMM_MISMATCH && failure->culprit == g->rank)
            turn_round(&g->failure);
        g->failed = failure->code != ACOMM_CLOSED;
        if (is_death(failure))
            g->mpi->died = true;
        atomic_store(&g->poisoned, failure->code);
    }
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return atomic_load(&g->poisoned);
}

int mpi_fail(struct acomm_group *g, const acomm_failure *failure)
{
    bool first = !atomic_load(&g->poisoned);
    int code = mpi_poison(g, failure);
    if (first)
        messages_spread(g, failure);
    return code;
}

static void fill(const struct mpi_op *op, acomm_failure *failure)
{
    failure->origin = op->group->rank;
    failure->elapsed = op->started ? clock_now() - op->started : 0;
    failure->sequence = op->group->met ? op->sequence : 0;
    failure->mine = (acomm_header){.root = -1};
    if (op->group->met)
        mpi_header(op, &failure->mine);
}

void mpi_name(const struct mpi_op *op, acomm_failure *failure)
{
    if (failure->code == ACOMM_MISMATCH || (!op_is_message(op->call.kind) && failure->mine.sequence))
        return;
    int origin = failure->origin;
    fill(op, failure);
    failure->origin = origin;
}

int mpi_fail_op(struct mpi_op *op, int code, int culprit, const char *text)
{
    acomm_failure failure = {.code = code, .culprit = culprit};
    fill(op, &failure);
    snprintf(failure.text, sizeof failure.text, "%s", text ? text : op->group->met ? "" : "all ranks have to open the group");
    return mpi_fail(op->group, &failure);
}

/* The first rank that the library knows to be dead, or -1. */
static int dead_rank(struct acomm_group *g)
{
    const acomm_mpi *mpi = g->mpi;
    uint64_t all = 0, dead = 0;
    int size = 0, first = 0, rank = -1;
    if (mpi->Comm_group(g->comm, &all) || mpi->Comm_get_failed(g->comm, &dead))
        return -1;
    mpi_handle from = mpi_read(mpi, &dead);
    if (!mpi->Group_size(from, &size) && size)
        mpi->Group_translate_ranks(from, 1, &first, mpi_read(mpi, &all), &rank);
    mpi->Group_free(&dead);
    mpi->Group_free(&all);
    return rank >= 0 && rank < g->size ? rank : -1;
}

void mpi_explain(struct acomm_group *g, int code, int peer, acomm_failure *out)
{
    if (mpi_tells_of_death(g->mpi, code)) {
        int rank = dead_rank(g);
        out->code = ACOMM_LOST;
        out->culprit = rank < 0 ? peer : rank;
        out->errnum = ESRCH; /* tells a death from a farewell */
        snprintf(out->text, sizeof out->text, "its process has ended");
        return;
    }
    out->code = ACOMM_LIBRARY;
    out->culprit = g->rank; /* whatever the call was for, it failed here */
    mpi_words(g->mpi, code, out->text);
}

int mpi_fail_library(struct mpi_op *op, int code, int peer)
{
    acomm_failure failure = {0};
    fill(op, &failure);
    mpi_explain(op->group, code, peer, &failure);
    return mpi_fail(op->group, &failure);
}

int acomm_mpi_failure(struct acomm_group *g, acomm_failure *out)
{
    pthread_mutex_lock(&g->lock);
    bool failed = atomic_load(&g->poisoned) != 0;
    if (failed)
        *out = g->failure;
    pthread_mutex_unlock(&g->lock);
    return failed;
}

void acomm_mpi_abort(struct acomm_group *g, const char *text)
{
    acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = -1, .origin = g->rank};
    snprintf(failure.text, sizeof failure.text, "%s", text);
    if (!group_was_forked(g))
        mpi_fail(g, &failure);
}

/* ---- beginning ---- */

static void release(struct acomm_group *g)
{
    free(g->requests.handles);
    free(g->requests.facts);
    free(g->records);
    free(g->scratch);
    seats_free(g);
    pthread_mutex_destroy(&g->turn);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
    free(g);
}

static struct acomm_group *create(acomm_mpi *mpi, const acomm_mpi_options *options)
{
    struct acomm_group *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    forks_watch();
    g->mpi = mpi;
    g->id = options->id;
    g->timeout = options->timeout;
    g->check = options->check;
    g->forks = forks_now();
    g->crowded = options->crowded;
    pthread_mutex_init(&g->turn, NULL);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    return g;
}

static int refuse(struct acomm_group *g, int code, int rc, acomm_failure *failure)
{
    *failure = (acomm_failure){.code = code, .culprit = -1, .origin = g ? g->rank : -1};
    if (rc)
        mpi_words(g->mpi, rc, failure->text);
    if (g)
        release(g);
    return code;
}

/* A duplicate, within the timeout. */
static int duplicate(struct acomm_group *g, mpi_handle comm, uint64_t *made)
{
    uint64_t request = 0;
    int flag = 0, rc = g->mpi->Comm_idup(comm, made, &request);
    int64_t end = clock_now() + g->timeout;
    while (!rc && !flag) {
        rc = g->mpi->Test(&request, &flag, g->mpi->ignore);
        if (rc || flag)
            break;
        if (clock_now() > end)
            return ACOMM_TIMEOUT;
        if (wait_interrupted())
            return ACOMM_INTERRUPTED;
        sched_yield();
    }
    return rc;
}

static int begin(struct acomm_group *g, uint64_t made, struct acomm_group **out, acomm_failure *failure)
{
    const acomm_mpi *mpi = g->mpi;
    g->comm = mpi_read(mpi, &made);
    int rc = mpi->Comm_set_errhandler(g->comm, mpi->errors_return);
    if (!rc)
        rc = mpi->Comm_rank(g->comm, &g->rank);
    if (!rc)
        rc = mpi->Comm_size(g->comm, &g->size);
    if (rc)
        return refuse(g, ACOMM_LIBRARY, rc, failure);
    g->record_bytes = mpi_record_bytes(g);
    rc = messages_open(g);
    if (!rc)
        rc = pace_add(g);
    if (rc)
        return refuse(g, rc, 0, failure);
    *out = g;
    return 0;
}

int acomm_mpi_open(acomm_mpi *mpi, uintptr_t comm, const acomm_mpi_options *options, struct acomm_group **out,
                   acomm_failure *failure)
{
    uint64_t made = 0;
    struct acomm_group *g = create(mpi, options);
    if (!g)
        return refuse(NULL, ACOMM_RESOURCE, 0, failure);
    if (comm == mpi->world)
        mpi->Comm_set_errhandler(comm, mpi->errors_return);
    int rc = duplicate(g, comm, &made);
    if (rc)
        return refuse(g, rc < 0 ? rc : ACOMM_LIBRARY, rc < 0 ? 0 : rc, failure);
    return begin(g, made, out, failure);
}

/* Ranks that the library knows to be dead. */
static int count_dead(struct acomm_group *g)
{
    uint64_t dead = 0;
    int number = 0;
    if (!g->mpi->Comm_shrink || !g->mpi->Comm_get_failed || g->mpi->Comm_get_failed(g->comm, &dead))
        return 0;
    g->mpi->Group_size(mpi_read(g->mpi, &dead), &number);
    g->mpi->Group_free(&dead);
    return number;
}

/* A communicator without the dead, where there are any: all who live make it, so `members` has to be them. A death that a peer
 * told of the library learns of later. 0, an error of the library, or a code. */
static int leave_out_dead(struct acomm_group *g, int members, uint64_t *made)
{
    acomm_failure failure;
    int64_t end = clock_now() + DEATHS_NS;
    bool told = acomm_mpi_failure(g, &failure) && is_death(&failure);
    int dead = count_dead(g);
    if (!told && !dead)
        return 0;
    for (; dead < g->size - members; dead = count_dead(g)) {
        if (clock_now() > end)
            return ACOMM_ARGUMENT;
        if (wait_interrupted())
            return ACOMM_INTERRUPTED;
        messages_progress(g);
        sched_yield();
    }
    return g->mpi->Comm_shrink(g->comm, made);
}

/* Ranks that have left it, by what they said; in a group without deaths. */
static void note_left(struct acomm_group *g, uint8_t *gone)
{
    acomm_failure failure;
    messages_left(g, gone);
    if (acomm_mpi_failure(g, &failure) && failure.code == ACOMM_LOST && failure.culprit >= 0)
        gone[failure.culprit] = 1;
}

int acomm_mpi_gone(struct acomm_group *g, uint8_t *gone)
{
    acomm_mpi *mpi = g->mpi;
    uint64_t all = 0, some = 0, whole = 0;
    int left = 0, ranks[1], found[1];
    note_left(g, gone);
    int rc = leave_out_dead(g, g->size - 1, &whole);
    if (rc || !whole)
        return rc;
    mpi_handle living = mpi_read(mpi, &whole);
    rc = mpi->Comm_group(g->comm, &all);
    if (!rc)
        rc = mpi->Comm_group(living, &some);
    if (!rc)
        rc = mpi->Group_size(mpi_read(mpi, &some), &left);
    memset(gone, 1, (size_t)g->size);
    for (*ranks = 0; !rc && *ranks < left; ++*ranks) {
        rc = mpi->Group_translate_ranks(mpi_read(mpi, &some), 1, ranks, mpi_read(mpi, &all), found);
        gone[*found] = 0;
    }
    if (some)
        mpi->Group_free(&some);
    if (all)
        mpi->Group_free(&all);
    mpi->Comm_free(&whole);
    return rc;
}

int acomm_mpi_part(struct acomm_group *parent, const int32_t *members, int size, const acomm_mpi_options *options,
                   struct acomm_group **out, acomm_failure *failure)
{
    acomm_mpi *mpi = parent->mpi;
    uint64_t all = 0, some = 0, whole = 0, made = 0;
    struct acomm_group *g = create(mpi, options);
    if (!g)
        return refuse(NULL, ACOMM_RESOURCE, 0, failure);
    int rc = leave_out_dead(parent, size, &whole);
    if (!rc)
        rc = mpi->Comm_group(parent->comm, &all);
    if (!rc)
        rc = mpi->Group_incl(mpi_read(mpi, &all), size, members, &some);
    if (!rc) /* the tag keeps apart groups that are made of overlapping ranks at one time */
        rc = mpi->Comm_create_group(whole ? mpi_read(mpi, &whole) : parent->comm, mpi_read(mpi, &some),
                                    (int)(options->id % TAG_LAST), &made);
    if (some)
        mpi->Group_free(&some);
    if (all)
        mpi->Group_free(&all);
    if (whole)
        mpi->Comm_free(&whole);
    if (rc)
        refuse(g, rc < 0 ? rc : ACOMM_LIBRARY, rc < 0 ? 0 : rc, failure);
    if (rc > 0 && mpi_tells_of_death(mpi, rc))
        failure->code = ACOMM_LOST, failure->culprit = dead_rank(parent);
    if (rc == ACOMM_ARGUMENT)
        snprintf(failure->text, sizeof failure->text, "%d rank(s) have died: a new group needs all others",
                 count_dead(parent));
    g->met = true;
    return rc ? failure->code : begin(g, made, out, failure);
}

void acomm_mpi_settle(struct acomm_group *g, int crowded, int check)
{
    g->crowded = crowded;
    g->check = check;
    g->met = true;
}

int acomm_mpi_rank(struct acomm_group *g)
{
    return g->rank;
}

int acomm_mpi_size(struct acomm_group *g)
{
    return g->size;
}

int acomm_mpi_missing(struct acomm_group *g, char *text)
{
    acomm_failure failure;
    int rank = messages_missing(g);
    if (rank >= 0)
        snprintf(text, 192, "it has closed the group");
    else if (acomm_mpi_failure(g, &failure) && failure.code == ACOMM_LOST)
        rank = failure.culprit, memcpy(text, failure.text, sizeof failure.text);
    return rank;
}

int acomm_mpi_stuck(struct acomm_group *g)
{
    return atomic_load(&g->stuck);
}

/* ---- the end ---- */

static void stop_worker(struct acomm_group *g)
{
    pthread_mutex_lock(&g->lock);
    bool works = g->works;
    g->stops = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (works)
        pthread_join(g->worker, NULL);
}

int acomm_mpi_stop(struct acomm_group *g, const char *why)
{
    bool orderly = !atomic_load(&g->poisoned) && !(why && *why);
    acomm_failure failure = {.code = ACOMM_LOST, .culprit = g->rank, .origin = g->rank};
    acomm_failure closed = {.code = ACOMM_CLOSED, .culprit = -1, .origin = g->rank};
    if (group_was_forked(g))
        return 0;
    messages_progress(g);
    bool flying = messages_under_way(g); /* and not what is asked now */
    bool ended = atomic_load(&g->poisoned) == ACOMM_CLOSED; /* by the end of MPI */
    int code = ended || (why && *why) ? 0 : ahead_settle(g);
    orderly = orderly && !atomic_load(&g->poisoned);
    /* What a cut operation has sent may still lie somewhere. */
    bool cut = atomic_load(&g->pending) || atomic_load(&g->inside) || flying;
    if (why && *why) {
        snprintf(failure.text, sizeof failure.text, "%s", why);
        messages_spread(g, &failure);
    }
    mpi_poison(g, &closed);
    stop_worker(g);
    messages_end(g);
    while (atomic_load(&g->inside)) /* they look at the poison every few microseconds */
        sched_yield();
    if (orderly)
        messages_goodbye(g, cut || code); /* code: of a wait for who has not come to a broadcast of ours yet */
    if (!orderly || cut || code)
        g->failed = true;
    int64_t end = clock_now() + FAREWELL_NS;
    while (messages_flying(g) && clock_now() < end) {
        messages_progress(g);
        sched_yield();
    }
    return code;
}

void group_free(struct acomm_group *g)
{
    uint64_t comm = 0;
    memcpy(&comm, &g->comm, g->mpi->handle_bytes);
    drain_end(g);
    messages_free(g);
    g->mpi->Comm_free(&comm);
    release(g);
}

/* The communicator of a group that has failed, or whose operations were cut, stays for good on every rank where messages may still
 * come for it or lie unreceived: MPI would give them to the next one of its number, of other ranks too, as it knows a sender by its
 * rank there. It gives no number away that one of the ranks still has. */
void acomm_mpi_close(struct acomm_group *g)
{
    if (group_was_forked(g))
        return;
    seats_free(g); /* MPI knows nothing of it */
    pace_close(g);
}
