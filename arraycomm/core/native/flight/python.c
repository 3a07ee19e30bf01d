/* Common parts of the flight recorder's types, and FlightEntry for operations that take the slow path. */
#include "flight.h"

static PyTypeObject *board_type, *trace_type, *entry_type;

bool flight_check(PyObject *object)
{
    return object && (Py_TYPE(object) == board_type || Py_TYPE(object) == trace_type);
}

int flight_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct flight *)self)->teller);
    return 0;
}

int flight_clear(PyObject *self)
{
    struct flight *f = (struct flight *)self;
    Py_CLEAR(f->teller);
    for (int i = 0; i < FLIGHT_KINDS; i++)
        Py_CLEAR(f->kinds[i].told);
    return 0;
}

/* ---- FlightEntry: an operation that Python records ---- */

struct entry {
    PyObject_HEAD
    struct flight_entry entry;
};

PyObject *flight_begin_method(PyObject *self, PyObject *args)
{
    struct flight_entry e = {0};
    unsigned long long bytes;
    if (!PyArg_ParseTuple(args, "iiiOK:begin", &e.row, &e.operation, &e.peer, &e.kind, &bytes))
        return NULL;
    struct entry *made = (struct entry *)PyType_GenericAlloc(entry_type, 0);
    if (!made)
        return NULL;
    Py_INCREF(e.kind);
    e.bytes = bytes;
    flight_begin((struct flight *)self, &e);
    made->entry = e;
    return (PyObject *)made;
}

static PyObject *entry_mark(PyObject *self, PyObject *state)
{
    long number = PyLong_AsLong(state);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    flight_mark(&((struct entry *)self)->entry, (enum flight_state)number);
    return Py_NewRef(Py_None);
}

static PyObject *entry_end(PyObject *self, PyObject *error)
{
    flight_end(&((struct entry *)self)->entry, error == Py_None ? NULL : error);
    return Py_NewRef(Py_None);
}

static int entry_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)((struct entry *)self)->entry.flight);
    return 0;
}

static int entry_clear(PyObject *self)
{
    flight_forget(&((struct entry *)self)->entry);
    return 0;
}

static PyMethodDef entry_methods[] = {
    {"mark", entry_mark, METH_O, "mark(state): it runs, or runs on behind the program"},
    {"end", entry_end, METH_O, "end(exception or None)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "An operation on the flight recorder."},
    {Py_tp_methods, entry_methods},
    {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, native_dealloc},
    {0, NULL},
};
static PyType_Spec entry_spec = {"arraycomm._engine.FlightEntry", sizeof(struct entry), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, entry_slots};

int flight_init(PyObject *module)
{
    return native_type(module, &flight_board_spec, &board_type) || native_type(module, &flight_trace_spec, &trace_type)
        || native_type(module, &entry_spec, &entry_type) ? -1 : 0;
}
