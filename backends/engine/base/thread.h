/* Threads of the library. */
#ifndef ACOMM_THREAD_H
#define ACOMM_THREAD_H
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* As pthread_create(), of a thread that takes no signals: handlers of Python must not run in one that it does not know. */
static inline int thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, attributes, run, with);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
#endif
