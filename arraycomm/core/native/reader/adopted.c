/* Memory of another allocator in a Buffer. Memory of devices is freed by a thread of its own, because cudaFree waits for the
 * whole device: the last reference may be dropped in a garbage collection, while locks are held, and only the thread that watches
 * it can end an operation that hangs on the device. */
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

enum { THREAD_LOCAL = 1 }; /* cudaStreamCaptureModeThreadLocal: otherwise freeing memory ends a capture of another thread */

static void give(struct memory *memory)
{
    int mode = THREAD_LOCAL;
    memory->enter(memory->device); /* first: what needs a device makes a context on the current one */
    atomic_load(&waiting.apart)(&mode);
    memory->release(memory->context);
    free(memory);
}

static void *adopted_run(void *Py_UNUSED(unused))
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

bool adopted_release(struct memory *memory)
{
    pid_t me = getpid(), process = atomic_load(&waiting.process);
    if (process && process != me)
        return true; /* a forked child: the device is its parent's */
    pthread_mutex_lock(&waiting.mutex);
    bool running = atomic_load(&waiting.process) || !thread_detached(adopted_run, NULL);
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

/* give_back(): returns when all memory adopted until now has been freed. */
PyObject *adopted_give_back(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
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

/* ---- adoption ---- */

/* One reference; `release` may be called from any thread, without the GIL. NULL: memory is out. */
static struct memory *adopted_new(char *data, size_t bytes, void (*release)(void *), void *context)
{
    struct memory *memory = malloc(sizeof *memory);
    if (!memory)
        return NULL;
    *memory = (struct memory){.data = data, .bytes = bytes, .release = release, .context = context};
    atomic_init(&memory->references, 1);
    return memory;
}

/* Frees memory that could not be adopted; the pending exception stays. */
static PyObject *adopted_refuse(void (*release)(void *), void *context)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    release(context);
    PyErr_Restore(type, value, trace);
    return NULL;
}

/* adopt(shape, dtype, address, release, context[, device type, device index, stream[, enter, apart]]): memory of another
 * allocator, as if from allocate(); `release` is the address of a function void (void *) that gives it back, called with
 * `context` when nothing refers to it any more, or at once where this raises. enter, apart: those of cudaSetDevice() and
 * cudaThreadExchangeStreamCaptureMode(), where giving back waits for the device: all are called in a thread for such. */
PyObject *adopted_adopt(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *shape;
    int dtype, device_type = DL_CPU, device_index = 0;
    unsigned long long address, release, context, stream = 0, enter = 0, apart = 0;
    if (!PyArg_ParseTuple(args, "O!iKKK|iiKKK:adopt", &PyTuple_Type, &shape, &dtype, &address, &release, &context,
                          &device_type, &device_index, &stream, &enter, &apart))
        return NULL;
    int64_t count = buffer_count(shape, dtype);
    void (*back)(void *) = (void (*)(void *))(uintptr_t)release;
    struct memory *memory = count < 0 ? NULL : adopted_new((char *)(uintptr_t)address,
                                                            (size_t)count * (size_t)dtype_rows[dtype].width, back,
                                                            (void *)(uintptr_t)context);
    if (!memory && count >= 0)
        PyErr_NoMemory();
    if (!memory) /* memory that waits for a device cannot be freed here, with the GIL held */
        return enter ? NULL : adopted_refuse(back, (void *)(uintptr_t)context);
    memory->enter = (int (*)(int))(uintptr_t)enter;
    if (enter)
        atomic_store(&waiting.apart, (int (*)(int *))(uintptr_t)apart);
    memory->device = device_index;
    struct buffer *b = buffer_new(memory->data, count, dtype, Py_NewRef(shape), Py_None, memory);
    memory_release(memory);
    return (PyObject *)buffer_place(b, device_type, device_index, stream, false, false);
}
