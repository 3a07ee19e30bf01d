/* Ctrl-C while a thread waits in the engine without the GIL: the engine calls this now and then. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "native.h"

/* The exception that a signal handler raised, kept until the engine's call has returned: a C function must not return
 * with an exception set. Guarded by the GIL; only the main thread runs signal handlers, so there is one at a time. */
static PyObject *pending;
enum { LOOK_MS = 50 }; /* as WAIT_LOOK_NS of the engine */
static int running; /* handlers that the engine has called, one inside the other */
static _Thread_local int calls; /* of this thread, which a close would wait for: see shortcut_enter() */

static int check_signals(void)
{
    /* Signal handlers run in the main thread. Another thread may be in the engine when the interpreter has ended, and must not
     * acquire its lock any more. */
    if (syscall(SYS_gettid) != getpid())
        return 0;
    PyGILState_STATE state = PyGILState_Ensure();
    running++;
    int raised = PyErr_CheckSignals() != 0;
    running--;
    if (raised) {
        PyObject *before = pending;
        pending = refuse_take();
        Py_XDECREF(before);
    }
    PyGILState_Release(state);
    return raised;
}

bool interrupt_between(void)
{
    static _Thread_local int64_t next;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now); /* a few ns; it moves every few ms */
    int64_t ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (ms < next)
        return false;
    next = ms + LOOK_MS;
    return check_signals();
}

void interrupt_keep(PyObject *error)
{
    Py_XDECREF(pending);
    pending = Py_NewRef(error);
    interrupt_raise_soon();
}

static int raise_pending(void *Py_UNUSED(none))
{
    PyObject *error = pending;
    pending = NULL;
    refuse_raise(error);
    return error ? -1 : 0;
}

void interrupt_raise_soon(void)
{
    Py_AddPendingCall(raise_pending, NULL);
}

void interrupt_init(void)
{
    acomm_set_interrupt(check_signals);
}

void interrupt_count(int call)
{
    calls += call;
}

/* interrupting() -> whether the caller is a signal handler that interrupted an operation: inside the engine, or on the way there
 * or back. */
PyObject *interrupt_runs(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(calls || (running && syscall(SYS_gettid) == getpid()));
}

/* interrupted() -> the exception of the last signal handler that raised inside the engine, or None; once. */
PyObject *interrupt_take(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *value = pending;
    pending = NULL;
    return value ? value : Py_NewRef(Py_None);
}
