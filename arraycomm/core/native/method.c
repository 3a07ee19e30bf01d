/* Methods of a group that try the short way before their Python code, and the base class that leads them there.
 *
 *     class Group(Shortcuts):
 *         @shortcut(kind)                 ShortcutMethod(kind, function, begins, watched)
 *         def all_reduce(self, ...): the long way
 *
 * A method is called by vectorcall, so a call makes no frame, tuple or dict until it goes the long way. */
#include "flight.h"
#include <stddef.h>
#include <structmember.h>

/* The vector call protocol (PEP 590) is part of the stable ABI since 3.12 only, but the flag and the member by which a type
 * takes part have been the same since 3.8. */
#define HAVE_VECTORCALL (1ul << 11)
#define ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))

/* ---- Shortcuts: the base class ---- */

struct base {
    PyObject_HEAD
    PyObject *shortcut; /* a Shortcut, or anything else: none */
    PyObject *batch;    /* a list: messages are begun, and their Works listed here; anything else: none */
    PyObject *flight;   /* a Flight, where it is the group's only watcher (core/watch.py); anything else: none */
    int row;            /* the group's on the flight's board */
    long long count;    /* of watched collectives */
};
static PyTypeObject *base_type;

static int base_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct base *)self)->shortcut);
    Py_VISIT(((struct base *)self)->batch);
    Py_VISIT(((struct base *)self)->flight);
    return 0;
}

static int base_clear(PyObject *self)
{
    Py_CLEAR(((struct base *)self)->shortcut);
    Py_CLEAR(((struct base *)self)->batch);
    Py_CLEAR(((struct base *)self)->flight);
    return 0;
}

static void base_dealloc(PyObject *self)
{
    native_dealloc(self, base_clear);
}

static PyMemberDef base_members[] = {
    {"_shortcut", T_OBJECT, offsetof(struct base, shortcut), 0, "where short methods go first, or None"},
    {"_batch", T_OBJECT, offsetof(struct base, batch), 0, "the Works of a batch of messages, or None"},
    {"_flight", T_OBJECT, offsetof(struct base, flight), 0, "the Flight that is told of short calls of a watched group, or None"},
    {"_row", T_INT, offsetof(struct base, row), 0, "of the group on that flight's board"},
    {"_count", T_LONGLONG, offsetof(struct base, count), 0, "how many collectives were watched"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot base_slots[] = {
    {Py_tp_doc, "Base of a class with methods that try the short way first."},
    {Py_tp_members, base_members},
    {Py_tp_traverse, base_traverse},
    {Py_tp_clear, base_clear},
    {Py_tp_dealloc, base_dealloc},
    {0, NULL},
};
static PyType_Spec base_spec = {"arraycomm._engine.Shortcuts", sizeof(struct base), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, base_slots};

/* ---- ShortcutMethod: a method ---- */

typedef PyObject *(*vector_call)(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names);
struct method {
    PyObject_HEAD
    vector_call call;
    PyObject *function; /* the long way */
    int kind;
    bool begins;        /* returns a Work at once */
    bool watched;       /* of a watched group: the short way is open where that is told by a flight */
};
static PyTypeObject *method_type;
static PyObject *bound_type; /* types.MethodType */

static PyObject *long_way(PyObject *function, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *positional = PyTuple_New(nargs), *named = names ? PyDict_New() : NULL, *result = NULL;
    bool good = positional && (!names || named);
    for (Py_ssize_t i = 0; good && i < nargs; i++)
        good = !PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; good && names && i < PyTuple_Size(names); i++)
        good = !PyDict_SetItem(named, PyTuple_GetItem(names, i), args[nargs + i]);
    if (good)
        result = PyObject_Call(function, positional, named);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

/* NotImplemented: it is the long way's. */
static PyObject *short_way(const struct method *m, struct base *base, PyObject **given)
{
    bool batched = m->kind >= ACOMM_SEND && base->batch && PyList_Check(base->batch);
    bool begins = m->begins || batched || given[ROLE_ASYNC] == Py_True;
    struct flight *flight = m->watched && flight_check(base->flight) ? (struct flight *)base->flight : NULL;
    if (!base->shortcut || (m->watched && !flight))
        return Py_NewRef(Py_NotImplemented);
    Py_XINCREF((PyObject *)flight); /* the group may let go of it meanwhile: detach() by another thread, or by an array's __dlpack__ */
    PyObject *result = shortcut_take(base->shortcut, m->kind, begins, given, flight, base->row);
    Py_XDECREF((PyObject *)flight);
    if (flight && result != Py_NotImplemented && m->kind <= ACOMM_BARRIER)
        base->count++;
    if (batched && result && result != Py_NotImplemented && PyList_Append(base->batch, result))
        Py_CLEAR(result);
    return result;
}

static PyObject *call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    struct method *m = (struct method *)self;
    Py_ssize_t nargs = (Py_ssize_t)(nargsf & ~ARGUMENTS_OFFSET);
    PyObject *given[ROLES] = {NULL};
    if (nargs && PyObject_TypeCheck(args[0], base_type)
        && forms_sort(&forms[m->kind], args + 1, nargs - 1, names, given)) {
        PyObject *result = short_way(m, (struct base *)args[0], given);
        if (result != Py_NotImplemented)
            return result;
        Py_DECREF(result);
    }
    return long_way(m->function, args, nargs, names);
}

/* Only for callers that do not know vectorcall. */
static PyObject *call_by_tuple(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return PyObject_Call(((struct method *)self)->function, args, kwargs);
}

static PyObject *bind(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    return object ? PyObject_CallFunctionObjArgs(bound_type, self, object, NULL) : Py_NewRef(self);
}

/* ShortcutMethod(kind, function, begins, watched) */
static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int kind, begins, watched;
    PyObject *function;
    (void)kwargs, (void)type;
    if (!PyArg_ParseTuple(args, "iOpp:ShortcutMethod", &kind, &function, &begins, &watched))
        return NULL;
    if (kind < 0 || kind >= ACOMM_KINDS) {
        PyErr_Format(PyExc_ValueError, "there is no operation number %d", kind);
        return NULL;
    }
    struct method *m = (struct method *)PyType_GenericAlloc(method_type, 0);
    if (!m)
        return NULL;
    m->call = call;
    m->function = Py_NewRef(function);
    m->kind = kind;
    m->begins = begins;
    m->watched = watched;
    return (PyObject *)m;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct method *)self)->function);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((struct method *)self)->function);
    return 0;
}

static void dealloc(PyObject *self)
{
    native_dealloc(self, clear);
}

/* Name, documentation and signature are the function's. */
static PyObject *forward(PyObject *self, void *name)
{
    return PyObject_GetAttrString(((struct method *)self)->function, name);
}

static PyMemberDef members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(struct method, function), READONLY, NULL},
    {"kind", T_INT, offsetof(struct method, kind), READONLY, "as in acomm.h"},
    {"begins", T_BOOL, offsetof(struct method, begins), READONLY, "whether it gives a Work at once"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct method, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef forwarded[] = {
    {"__doc__", forward, NULL, NULL, "__doc__"},
    {"__name__", forward, NULL, NULL, "__name__"},
    {"__qualname__", forward, NULL, NULL, "__qualname__"},
    {"__module__", forward, NULL, NULL, "__module__"},
    {"__annotations__", forward, NULL, NULL, "__annotations__"},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, construct},
    {Py_tp_call, call_by_tuple},
    {Py_tp_descr_get, bind},
    {Py_tp_members, members},
    {Py_tp_getset, forwarded},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {0, NULL},
};
static PyType_Spec spec = {"arraycomm._engine.ShortcutMethod", sizeof(struct method), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR | HAVE_VECTORCALL,
                           slots};

int method_init(PyObject *module)
{
    PyObject *types = PyImport_ImportModule("types");
    bound_type = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
    Py_XDECREF(types);
    base_type = bound_type ? native_type(module, &base_spec) : NULL;
    method_type = base_type ? native_type(module, &spec) : NULL;
    return method_type ? 0 : -1;
}
