/* The table of handles: written with the GIL, read without. */
#include "call.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Few and small, and never freed: a program may use a number after its group has ended. */
enum { CHUNK = 256 };
static struct chunk { struct handle *handles[CHUNK]; struct chunk *_Atomic next; } first;
static struct chunk *last = &first;
static _Atomic int64_t opened;

static int64_t handle_add(struct handle *handle)
{
    int64_t at = atomic_load(&opened);
    if (at && at % CHUNK == 0) {
        struct chunk *more = calloc(1, sizeof *more);
        if (!more)
            return -1;
        atomic_store(&last->next, more);
        last = more;
    }
    last->handles[at % CHUNK] = handle;
    atomic_store(&opened, at + 1);
    return at + 1;
}

int64_t handle_open(struct shortcut *s, PyObject *owner)
{
    if (s->handle)
        return s->number;
    struct handle *handle = calloc(1, sizeof *handle);
    s->number = handle ? handle_add(handle) : -1;
    if (s->number < 0) {
        free(handle);
        PyErr_NoMemory();
        return -1;
    }
    handle->entries = s->entries;
    handle->rank = s->rank;
    handle->size = s->size;
    pthread_mutex_init(&handle->lock, NULL);
    if (s->group) {
        handle->shortcut = (struct shortcut *)Py_NewRef((PyObject *)s);
        handle->owner = Py_NewRef(owner);
    }
    atomic_store(&handle->group, s->group);
    s->handle = handle;
    return s->number;
}

/* Callers inside only make their errors, with the GIL. */
void handle_end(struct handle *handle)
{
    atomic_store(&handle->ending, true); /* before the load: a thread that waits for an operation does both in the other order */
    while (atomic_load(&handle->inside)) {
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    c_api_settle(handle);
    struct shortcut *s = handle->shortcut;
    PyObject *owner = handle->owner;
    handle->shortcut = NULL;
    handle->owner = NULL;
    Py_XDECREF((PyObject *)s);
    Py_XDECREF(owner);
}

struct handle *handle_find(int64_t number)
{
    if (number < 1 || number > atomic_load(&opened))
        return NULL;
    struct chunk *chunk = &first;
    for (int64_t i = (number - 1) / CHUNK; i; i--)
        chunk = atomic_load(&chunk->next);
    return chunk->handles[(number - 1) % CHUNK];
}

struct handle *handle_enter(int64_t number, acomm_group **group)
{
    struct handle *handle = handle_find(number);
    if (!handle)
        return NULL;
    atomic_fetch_add(&handle->inside, 1); /* before the load: handle_end() does both in the other order */
    *group = atomic_load(&handle->group);
    return handle;
}

void handle_leave(struct handle *handle)
{
    atomic_fetch_sub(&handle->inside, 1);
}
