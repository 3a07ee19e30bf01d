/* The process that the engine runs in: threads of the engine's own beside the program's, the program's signals, and forks. */
#ifndef ACOMM_PROCESS_H
#define ACOMM_PROCESS_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Signals stay with the program's threads: Python's handlers must not run in a thread unknown to Python. stack: bytes; 0: as many
 * as usual. 0, or ACOMM_RESOURCE with errno set. */
int thread_start(pthread_t *thread, size_t stack, void *(*run)(void *), void *with);
/* The same, detached. */
int thread_detached(void *(*run)(void *), void *with);
/* A condition whose times are those of clock_now(), and a wait for it until such a time. The wait releases the lock meanwhile. */
void condition_init(pthread_cond_t *condition);
void condition_await(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until);

/* Whether the caller's signal handlers raised: asks what acomm_set_interrupt() installed. Only for threads of the caller. */
bool interrupt_pending(void);

/* Number of forks that made this process, counted in each child from the first call on. A group compares it with its own to find
 * that a parent made the group. */
void forks_watch(void);
extern _Atomic unsigned forks_made;
static inline unsigned forks_now(void)
{
    return atomic_load_explicit(&forks_made, memory_order_relaxed);
}
#endif
