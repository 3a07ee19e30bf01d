/* The fabric's communicator, and progress without a caller. MPI progresses only inside its functions: a chunk may still be unsent
 * after the send of the array has ended, and closed links have last chunks. One thread of the process progresses both, and sleeps
 * if there is neither. */
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/process.h"
#include "mpi_fabric.h"

#define PACE_NS 1000000       /* between two polls of the thread, */
#define LINGER 100            /* and so many without a send before it sleeps until a wake-up, */
#define SPARED 20             /* as many polls at most are left to operations that poll themselves, whose lock and core they would take */
#define DRAIN_NS 20000000     /* or for so long where links are closed here and not on the other side */
#define LEAVE_NS 1000000000   /* for sent data to leave before MPI ends */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct mpi_fabric *fabrics;
    bool runs, deep, ended;
    uintptr_t context;           /* of CUDA's; 0: none is needed */
    bool pushed;                 /* the thread that is inside has it */
    _Atomic uint32_t entered;    /* times, by operations and the thread */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

int (*acomm_mpi_push)(uintptr_t context), (*acomm_mpi_pop)(uintptr_t *context);

static void fabric_context(bool inside)
{
    uintptr_t popped;
    if (all.pushed)
        acomm_mpi_pop(&popped);
    all.pushed = inside && all.context && !acomm_mpi_push(all.context);
}

void fabric_use(uintptr_t context)
{
    all.context = context;
    fabric_context(true);
}

bool fabric_enter(void)
{
    pthread_mutex_lock(&all.lock);
    atomic_fetch_add_explicit(&all.entered, 1, memory_order_relaxed);
    if (!all.ended) {
        fabric_context(true);
        return true;
    }
    pthread_mutex_unlock(&all.lock);
    return false;
}

void fabric_leave(void)
{
    fabric_context(false);
    pthread_mutex_unlock(&all.lock);
}

void fabric_wake(void)
{
    if (all.deep)
        pthread_cond_signal(&all.work);
}

/* ---- the thread ---- */

static void fabric_free(struct mpi_fabric *fabric)
{
    fabric->mpi->Comm_free(&fabric->comm); /* an int is the low half, which comes first */
    free(fabric->tags);
    free(fabric);
}

static enum link_state fabric_look(struct mpi_fabric *fabric)
{
    enum link_state most = LINK_IDLE;
    for (struct link_mpi *link = fabric->links, *next; link; link = next) {
        next = link_mpi_next(link);
        enum link_state state = link_mpi_look(link);
        most = state > most ? state : most;
    }
    return most;
}

/* The busiest link's state. Closed fabrics are freed when nothing is under way. */
static enum link_state fabrics_look(void)
{
    enum link_state most = LINK_IDLE;
    for (struct mpi_fabric **at = &all.fabrics; *at;) {
        struct mpi_fabric *fabric = *at;
        enum link_state state = fabric_look(fabric);
        most = state > most ? state : most;
        if (fabric->closed && !fabric->links && !fabric->receives) {
            *at = fabric->next;
            fabric_free(fabric);
        } else {
            at = &fabric->next;
        }
    }
    return most;
}

static uint32_t fabric_entered(void)
{
    return atomic_load_explicit(&all.entered, memory_order_relaxed);
}

/* Outside: until nobody has polled for a while. */
static void fabric_linger(void)
{
    uint32_t before = fabric_entered() - 1;
    for (int spared = 0; spared < SPARED && before != fabric_entered(); spared++) {
        before = fabric_entered();
        nanosleep(&(struct timespec){0, PACE_NS}, NULL);
    }
}

/* Inside, and outside meanwhile: until the next poll. A sender wakes the thread only from a long sleep. */
static void fabric_rest(enum link_state state, bool lingers)
{
    if (lingers) {
        pthread_mutex_unlock(&all.lock);
        fabric_linger();
        pthread_mutex_lock(&all.lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += DRAIN_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    all.deep = true;
    if (state == LINK_DRAINS)
        pthread_cond_timedwait(&all.work, &all.lock, &until);
    else
        pthread_cond_wait(&all.work, &all.lock);
    all.deep = false;
}

static void *fabric_keep(void *unused)
{
    int idle = 0;
    pthread_mutex_lock(&all.lock);
    while (!all.ended) {
        fabric_context(true);
        enum link_state state = fabrics_look();
        fabric_context(false);
        idle = state == LINK_SENDS ? 0 : idle < LINGER ? idle + 1 : idle;
        fabric_rest(state, idle < LINGER);
    }
    pthread_mutex_unlock(&all.lock);
    return unused;
}

int fabric_begin(struct mpi_fabric *fabric)
{
    if (!fabric_enter())
        return ACOMM_CLOSED;
    int rc = all.runs ? 0 : thread_detached(fabric_keep, NULL);
    if (!rc) {
        all.runs = true;
        fabric->next = all.fabrics;
        all.fabrics = fabric;
    }
    fabric_leave();
    return rc;
}

void acomm_fabric_close(acomm_fabric *base)
{
    if (!fabric_enter())
        return;
    ((struct mpi_fabric *)base)->closed = true;
    fabric_wake();
    fabric_leave();
}

/* ---- the end of MPI ---- */

static void fabrics_let_go(void)
{
    int64_t end = clock_now() + LEAVE_NS;
    if (!fabric_enter())
        return;
    while (fabrics_look() == LINK_SENDS && clock_now() < end) {
        fabric_leave();
        sched_yield();
        pthread_mutex_lock(&all.lock);
    }
    all.ended = true;
    for (struct mpi_fabric *fabric = all.fabrics; fabric; fabric = fabric->next) { /* or MPI_Finalize would find a receive under way */
        for (struct link_mpi *link = fabric->links; link; link = link_mpi_next(link))
            link_mpi_cancel(link);
        mpi_message_cancel(fabric);
    }
    pthread_cond_signal(&all.work);
    fabric_leave();
}

static int copy_none(mpi_handle comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *flag = 0;
    return 0;
}

static int fabric_on_delete(mpi_handle comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    fabrics_let_go();
    return 0;
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else. */
int fabric_watch_end(acomm_mpi *mpi)
{
    int key, rc = mpi->Comm_create_keyval(copy_none, fabric_on_delete, &key, NULL);
    return rc ? rc : mpi->Comm_set_attr(mpi->self, key, mpi);
}

_Atomic int fabric_inside;

void acomm_mpi_end(acomm_mpi *mpi, int finalizes)
{
    fabrics_let_go();
    if (finalizes && !fabric_inside)
        mpi->Finalize();
}
