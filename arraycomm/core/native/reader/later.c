/* Memory of devices, given back by a thread of its own: cudaFree waits for the whole device. The last reference goes anywhere, in
 * a garbage collection too, while locks are held; and where an operation hangs on the device only who watches it can end it. */
#include "native.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/process.h"

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct memory *first;
    unsigned long taken, given_back; /* blocks, since the start */
    _Atomic pid_t process;           /* whose thread runs; 0: none yet */
    int (*_Atomic apart)(int *mode);
} waiting = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum { THREAD_LOCAL = 1 }; /* cudaStreamCaptureModeThreadLocal: else to free memory ends a capture that another thread has begun */

static void give(struct memory *memory)
{
    int mode = THREAD_LOCAL;
    memory->enter(memory->device); /* first: what needs a device makes a context on the current one */
    atomic_load(&waiting.apart)(&mode);
    memory->release(memory->context);
    free(memory);
}

static void *later_run(void *Py_UNUSED(unused))
{
    pthread_mutex_lock(&waiting.mutex);
    for (;;) {
        while (!waiting.first)
            pthread_cond_wait(&waiting.changed, &waiting.mutex);
        struct memory *memory = waiting.first;
        waiting.first = memory->next;
        pthread_mutex_unlock(&waiting.mutex);
        give(memory);
        pthread_mutex_lock(&waiting.mutex);
        waiting.given_back++;
        pthread_cond_broadcast(&waiting.changed);
    }
    return NULL;
}

void later_apart(int (*apart)(int *mode))
{
    atomic_store(&waiting.apart, apart);
}

/* Under the mutex. */
static bool start(void)
{
    pthread_t thread;
    bool started = !thread_start(&thread, 0, later_run, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

bool later_release(struct memory *memory)
{
    pid_t me = getpid(), process = atomic_load(&waiting.process);
    if (process && process != me)
        return true; /* a forked child: the device is its parent's */
    pthread_mutex_lock(&waiting.mutex);
    bool running = atomic_load(&waiting.process) || start();
    if (running) {
        atomic_store(&waiting.process, me);
        memory->next = waiting.first;
        waiting.first = memory;
        waiting.taken++;
        pthread_cond_broadcast(&waiting.changed);
    }
    pthread_mutex_unlock(&waiting.mutex);
    return running;
}

/* give_back(): returns when all memory that was taken over until now has been given back. */
PyObject *later_give_back(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&waiting.mutex);
    unsigned long taken = waiting.taken;
    while (waiting.given_back < taken && atomic_load(&waiting.process) == getpid())
        pthread_cond_wait(&waiting.changed, &waiting.mutex);
    pthread_mutex_unlock(&waiting.mutex);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
