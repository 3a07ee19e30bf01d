#include "door.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Doors are few and small, and never freed: a program that knows one's number may outlive its group. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct door **doors;
static int64_t opened;

static int64_t add(struct door *door)
{
    int64_t number = -1;
    pthread_mutex_lock(&lock);
    struct door **more = realloc(doors, (size_t)(opened + 1) * sizeof *more);
    if (more) {
        doors = more;
        doors[opened++] = door;
        number = opened;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

int64_t door_open(struct shortcut *s, PyObject *report, PyObject *enqueue)
{
    if (s->door)
        return s->number;
    struct door *door = calloc(1, sizeof *door);
    s->number = door ? add(door) : -1;
    if (s->number < 0) {
        free(door);
        PyErr_NoMemory();
        return -1;
    }
    door->entries = s->entries;
    door->rank = s->rank;
    door->size = s->size;
    door->report = Py_NewRef(report);
    door->enqueue = Py_NewRef(enqueue);
    if (s->group)
        door->shortcut = (struct shortcut *)Py_NewRef((PyObject *)s);
    atomic_store(&door->group, s->group);
    s->door = door;
    return s->number;
}

void door_close(struct door *door)
{
    atomic_store(&door->group, NULL);
}

/* The engine has ended their operations; what they still do is to make their errors, with the GIL. */
void door_end(struct door *door)
{
    while (atomic_load(&door->inside)) {
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    struct shortcut *s = door->shortcut;
    door->shortcut = NULL;
    Py_XDECREF((PyObject *)s);
}

struct door *door_enter(int64_t number, acomm_group **group)
{
    pthread_mutex_lock(&lock);
    struct door *door = number > 0 && number <= opened ? doors[number - 1] : NULL;
    pthread_mutex_unlock(&lock);
    if (!door)
        return NULL;
    atomic_fetch_add(&door->inside, 1); /* before the look: who closes looks the other way round */
    *group = atomic_load(&door->group);
    return door;
}

void door_leave(struct door *door)
{
    atomic_fetch_sub(&door->inside, 1);
}

/* The exception by the group's own error path; what that raises (Ctrl-C) is one too. */
static PyObject *exception_of(const struct door *door, int code, const acomm_failure *failure)
{
    PyObject *type, *value, *trace;
    value = PyObject_CallFunction(door->shortcut->error, "iK", code, (unsigned long long)(uintptr_t)failure);
    if (value)
        return value;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

char *door_explain(struct door *door, int64_t number, int64_t about, int code, const acomm_failure *failure, bool closed)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *error = closed ? Py_NewRef(Py_None) : exception_of(door, code, failure);
    PyObject *text = error ? PyObject_CallFunction(door->report, "LOL", (long long)number, error, (long long)about) : NULL;
    const char *words = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    char *copy = words ? strdup(words) : NULL;
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(door->report);
    Py_XDECREF(text);
    Py_XDECREF(error);
    PyGILState_Release(state);
    return copy;
}

static PyObject *tuple_of(const int64_t *fields, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *one = PyLong_FromLongLong(fields[i]);
        if (!one || PyTuple_SetItem(tuple, i, one))
            Py_CLEAR(tuple);
    }
    return tuple;
}

bool door_enqueue(struct door *door, const int64_t *fields, int count, const uintptr_t *places, char **text)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *tuple = tuple_of(fields, count);
    PyObject *said = tuple ? PyObject_CallFunction(door->enqueue, "OKKK", tuple, (unsigned long long)places[0],
                                                   (unsigned long long)places[1], (unsigned long long)places[2]) : NULL;
    bool well = said == Py_None;
    const char *words = said && !well ? PyUnicode_AsUTF8AndSize(said, NULL) : NULL;
    *text = words ? strdup(words) : NULL;
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(door->enqueue);
    Py_XDECREF(said);
    Py_XDECREF(tuple);
    PyGILState_Release(state);
    return well;
}
