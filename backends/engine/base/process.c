/* Starts threads, waits for conditions, checks whether a waiting thread must stop for a signal, and counts forks. */
#include "base/process.h"

#include <errno.h>
#include <signal.h>

#include "acomm.h"

int thread_start(pthread_t *thread, size_t stack, void *(*run)(void *), void *with)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    if (stack)
        pthread_attr_setstacksize(&attributes, stack);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, &attributes, run, with);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    errno = error;
    return error ? ACOMM_RESOURCE : 0;
}

int thread_detached(void *(*run)(void *), void *with)
{
    pthread_t thread;
    int rc = thread_start(&thread, 0, run, with);
    if (!rc)
        pthread_detach(thread);
    return rc;
}

void condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void condition_await(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until)
{
    struct timespec t = {until / 1000000000, until % 1000000000};
    pthread_cond_timedwait(condition, lock, &t);
}

static int (*interrupt_check)(void);

void acomm_set_interrupt(int (*check)(void))
{
    interrupt_check = check;
}

bool interrupt_pending(void)
{
    return interrupt_check && interrupt_check();
}

_Atomic unsigned forks_made;

static void forks_count(void)
{
    atomic_fetch_add(&forks_made, 1);
}

static void forks_install(void)
{
    pthread_atfork(NULL, NULL, forks_count);
}

void forks_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, forks_install);
}
