/* The flight recorder's types: Flight, and FlightEntry for operations that go the long way. */
#include "flight.h"
#include <stdlib.h>

static PyTypeObject *flight_type, *entry_type;

bool flight_check(PyObject *object)
{
    return object && Py_TYPE(object) == flight_type;
}

/* ---- FlightEntry: an operation that Python tells of ---- */

struct entry {
    PyObject_HEAD
    struct flight_entry entry;
};

/* begin(row, operation, peer, kind, nbytes) */
static PyObject *begin(PyObject *self, PyObject *args)
{
    struct flight_entry e = {0};
    unsigned long long kind, bytes;
    if (!PyArg_ParseTuple(args, "iiiKK:begin", &e.row, &e.operation, &e.peer, &kind, &bytes))
        return NULL;
    struct entry *made = (struct entry *)PyType_GenericAlloc(entry_type, 0);
    if (!made)
        return NULL;
    e.kind = kind;
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
    PyObject *flight = (PyObject *)((struct entry *)self)->entry.flight;
    ((struct entry *)self)->entry.flight = NULL;
    Py_XDECREF(flight);
    return 0;
}

static void entry_dealloc(PyObject *self)
{
    native_dealloc(self, entry_clear);
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
    {Py_tp_dealloc, entry_dealloc},
    {0, NULL},
};
static PyType_Spec entry_spec = {"arraycomm._engine.FlightEntry", sizeof(struct entry), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, entry_slots};

/* ---- Flight ---- */

struct layout { unsigned long long groups, counts, links, records, places, end; int classes, buckets; };

static int lay_out(struct flight *f, const struct layout *at)
{
    if (at->end > (size_t)f->memory.len || at->groups > at->counts || at->counts > at->links || at->links > at->records
        || at->records > at->end || !at->places) {
        PyErr_SetString(PyExc_ValueError, "the board is smaller than its parts");
        return -1;
    }
    char *memory = f->memory.buf;
    f->groups = (uint64_t *)(memory + at->groups);
    f->counts = (uint64_t *)(memory + at->counts);
    f->links = (uint64_t *)(memory + at->links);
    f->records = (uint64_t *)(memory + at->records);
    f->places = at->places;
    f->classes = at->classes;
    f->buckets = at->buckets;
    if (!(f->open = calloc(at->places, sizeof *f->open))) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* Flight(memory, (bytes before groups, counts, links, records, their end), records, classes, buckets, teller) */
static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct layout at;
    PyObject *memory, *teller;
    (void)kwargs, (void)type;
    if (!PyArg_ParseTuple(args, "O(KKKKK)KiiO:Flight", &memory, &at.groups, &at.counts, &at.links, &at.records, &at.end,
                          &at.places, &at.classes, &at.buckets, &teller))
        return NULL;
    struct flight *f = (struct flight *)PyType_GenericAlloc(flight_type, 0);
    if (!f)
        return NULL;
    if (PyObject_GetBuffer(memory, &f->memory, PyBUF_WRITABLE) || lay_out(f, &at)) {
        Py_DECREF((PyObject *)f);
        return NULL;
    }
    f->teller = Py_NewRef(teller);
    return (PyObject *)f;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct flight *)self)->teller);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((struct flight *)self)->teller);
    return 0;
}

static void dealloc(PyObject *self)
{
    struct flight *f = (struct flight *)self;
    PyBuffer_Release(&f->memory);
    free(f->open);
    native_dealloc(self, clear);
}

/* The board is another process's now, and locks of the teller's may be held by threads that are not here. */
static PyObject *leave(PyObject *self, PyObject *none)
{
    (void)none;
    ((struct flight *)self)->left = true;
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, "begin(row, operation, peer or -1, kind, nbytes) -> FlightEntry"},
    {"leave", leave, METH_NOARGS, "Nothing is written from now on, of what is under way neither: in a child of the rank."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Writes operations on a board (arraycomm.debug.board)."},
    {Py_tp_new, construct},
    {Py_tp_methods, methods},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {0, NULL},
};
static PyType_Spec spec = {"arraycomm._engine.Flight", sizeof(struct flight), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int flight_init(PyObject *module)
{
    flight_type = (PyTypeObject *)PyType_FromSpec(&spec);
    entry_type = (PyTypeObject *)PyType_FromSpec(&entry_spec);
    if (!flight_type || !entry_type || PyModule_AddObjectRef(module, "Flight", (PyObject *)flight_type))
        return -1;
    return PyModule_AddObjectRef(module, "FlightEntry", (PyObject *)entry_type);
}
