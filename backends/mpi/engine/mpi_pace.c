/* Progress while nobody calls. MPI moves only inside its functions: a message may lie in its sender's hands though the send has
 * ended, and what peers tell lies unread. A thread of the process looks at all groups a few hundred times a second, and frees
 * closed ones whose peers have said goodbye. MPI has nothing to sleep on, so it sleeps by the clock. */
#include <sched.h>
#include <signal.h>

#include "clock.h"
#include "mpi_group.h"
#include "mpi_messages.h"

#define PACE_NS 2000000
#define PATIENCE_NS 1000000000 /* for a look that is under way when MPI ends */

static struct {
    pthread_mutex_t lock; /* the list; not the groups */
    struct acomm_group *groups;
    bool runs;
    _Atomic bool stops, ended;
    pthread_t thread;
} pace = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void free_closed(void)
{
    for (struct acomm_group **at = &pace.groups; *at;) {
        struct acomm_group *g = *at;
        if (!g->closed || g->failed || !messages_over(g)) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        group_free(g);
    }
}

static void *keep(void *unused)
{
    while (!atomic_load(&pace.stops)) {
        bool more = false;
        pthread_mutex_lock(&pace.lock);
        for (struct acomm_group *g = pace.groups; g; g = g->next) {
            group_enter(g);
            if (!g->closed)
                more = messages_keep(g) || more;
            drain(g);
        }
        free_closed();
        pthread_mutex_unlock(&pace.lock);
        if (more)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, PACE_NS}, NULL);
    }
    atomic_store(&pace.ended, true);
    return unused;
}

int pace_thread(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t all, before; /* signals are for the caller's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? ACOMM_RESOURCE : ACOMM_OK;
}

int pace_add(struct acomm_group *g)
{
    pthread_mutex_lock(&pace.lock);
    int rc = pace.runs ? 0 : pace_thread(&pace.thread, keep, NULL);
    pace.runs = !rc;
    if (!rc) {
        g->next = pace.groups;
        pace.groups = g;
    }
    pthread_mutex_unlock(&pace.lock);
    return rc;
}

void pace_close(struct acomm_group *g)
{
    pthread_mutex_lock(&pace.lock);
    g->closed = true;
    free_closed();
    pthread_mutex_unlock(&pace.lock);
}

/* ---- the end of MPI ---- */

static void let_go(void)
{
    int64_t end = clock_now() + PATIENCE_NS;
    if (atomic_exchange(&pace.stops, true))
        return;
    while (pace.runs && !atomic_load(&pace.ended) && clock_now() < end)
        sched_yield();
    for (struct acomm_group *g = pace.groups; g; g = g->next) {
        mpi_poison(g, &(acomm_failure){.code = ACOMM_CLOSED, .culprit = -1, .origin = g->rank});
        drain_end(g);
        messages_silence(g); /* or MPI_Finalize would find a receive under way */
    }
    pace.groups = NULL;
}

static int copy_none(mpi_handle comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *flag = 0;
    return 0;
}

static int leave(mpi_handle comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    let_go();
    return 0;
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else. */
int pace_watch_end(acomm_mpi *mpi)
{
    int key, rc = mpi->Comm_create_keyval(copy_none, leave, &key, NULL);
    return rc ? rc : mpi->Comm_set_attr(mpi->self, key, mpi);
}

void acomm_mpi_end(acomm_mpi *mpi, int finalizes)
{
    let_go();
    if (finalizes)
        mpi->Finalize();
}
