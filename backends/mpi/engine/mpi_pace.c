/* Progress while nobody calls. MPI moves only inside its functions: a message may lie in its sender's hands though the send has
 * ended, and what peers tell lies unread. A thread of the process looks at all groups a few hundred times a second, and frees
 * closed ones whose peers have said goodbye. MPI has nothing to sleep on, so it sleeps by the clock. */
#include <signal.h>
#include <string.h>

#include "mpi_group.h"
#include "mpi_messages.h"

#define PACE_NS 2000000

static struct {
    pthread_mutex_t lock; /* the list; not the groups */
    struct acomm_group *groups;
    bool runs;
    _Atomic bool stops;
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
        pthread_mutex_lock(&pace.lock);
        for (struct acomm_group *g = pace.groups; g; g = g->next)
            if (!g->closed)
                messages_progress(g);
        free_closed();
        pthread_mutex_unlock(&pace.lock);
        nanosleep(&(struct timespec){0, PACE_NS}, NULL);
    }
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

void acomm_mpi_end(acomm_mpi *mpi)
{
    atomic_store(&pace.stops, true);
    if (pace.runs)
        pthread_join(pace.thread, NULL);
    for (struct acomm_group *g = pace.groups; g; g = g->next)
        messages_free(g); /* or MPI_Finalize would find a receive under way */
    pace.groups = NULL;
    mpi->Finalize();
}
