/* Counts the processes made by fork since the engine came into use. */
#include "base/forks.h"

#include <pthread.h>

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
