/* FlightList: keeps operations for a trace (arraycomm/core/diagnostics/trace.py), and calls it once a second, or for many. */
#include "flight.h"
#include <stdlib.h>
#include "base/clock.h"

#define INTERVAL_NS 1000000000u
#define MOST 4096 /* operations */

struct trace {
    struct flight flight;
    PyObject *full;  /* called without arguments */
    PyObject *kept;  /* a list of tuples */
    uint64_t due;
    int rows;
};

static void flight_trace_end(struct flight_entry *e, uint64_t now, PyObject *error, PyObject *text)
{
    struct trace *t = (struct trace *)e->flight;
    PyObject *about = text ? text : error ? Py_False : Py_None; /* False: an error without a text */
    if (!t->kept)
        return;
    PyObject *told = Py_BuildValue("(iiiKKKKOO)", e->row, e->operation, e->thread, e->begun, e->called, now, e->sequence,
                                   e->kind ? e->kind : Py_None, about);
    if (!told || PyList_Append(t->kept, told))
        PyErr_WriteUnraisable((PyObject *)t);
    Py_XDECREF(told);
    if (now > t->due || PyList_Size(t->kept) >= MOST) {
        t->due = now + INTERVAL_NS;
        Py_XDECREF(flight_answer(PyObject_CallFunctionObjArgs(t->full, NULL), (PyObject *)t));
    }
}

static const struct flight_writer writer = {.end = flight_trace_end};

/* ---- the type ---- */

/* FlightList(teller, full) */
static PyObject *flight_trace_construct(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *teller, *full;
    if (!PyArg_ParseTuple(args, "OO:FlightList", &teller, &full))
        return NULL;
    struct trace *t = (struct trace *)PyType_GenericAlloc(type, 0);
    if (!t)
        return NULL;
    t->flight.writer = &writer;
    t->flight.teller = Py_NewRef(teller);
    t->full = Py_NewRef(full);
    t->kept = PyList_New(0);
    return (PyObject *)t;
}

static int flight_trace_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((struct trace *)self)->full);
    Py_VISIT(((struct trace *)self)->kept);
    return flight_traverse(self, visit, arg);
}

static int flight_trace_clear(PyObject *self)
{
    Py_CLEAR(((struct trace *)self)->full);
    Py_CLEAR(((struct trace *)self)->kept);
    return flight_clear(self);
}

static void flight_trace_dealloc(PyObject *self)
{
    free(((struct flight *)self)->groups);
    native_dealloc(self);
}

static PyObject *add_group(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct trace *t = (struct trace *)self;
    struct flight_group *groups = realloc(t->flight.groups, ((size_t)t->rows + 1) * sizeof *groups);
    if (!groups)
        return PyErr_NoMemory();
    t->flight.groups = groups;
    groups[t->rows] = (struct flight_group){0};
    return PyLong_FromLong(t->rows++);
}

static PyObject *flight_trace_take(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct trace *t = (struct trace *)self;
    PyObject *fresh = PyList_New(0), *kept = t->kept;
    if (!fresh)
        return NULL;
    t->kept = fresh;
    t->due = (uint64_t)clock_now() + INTERVAL_NS;
    return kept;
}

static PyMethodDef methods[] = {
    {"begin", flight_begin_method, METH_VARARGS, "begin(row, operation, peer, kind, nbytes) -> FlightEntry"},
    {"add_group", add_group, METH_NOARGS, "add_group() -> its row"},
    {"take", flight_trace_take, METH_NOARGS,
     "take() -> a list of (row, operation, thread, begun, called or 0, ended, sequence or 0, kind, error)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Keeps operations for a trace (arraycomm.core.diagnostics.trace)."},
    {Py_tp_new, flight_trace_construct},
    {Py_tp_methods, methods},
    {Py_tp_traverse, flight_trace_traverse},
    {Py_tp_clear, flight_trace_clear},
    {Py_tp_dealloc, flight_trace_dealloc},
    {0, NULL},
};
PyType_Spec flight_trace_spec = {"arraycomm._engine.FlightList", sizeof(struct trace), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
