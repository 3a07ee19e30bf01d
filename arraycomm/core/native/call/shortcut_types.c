/* The types behind the fast path: Group's base class and methods, and a backend's entry points (shortcut.c handles the calls).
 *
 *     class Group(Shortcuts):
 *         @shortcut                       ShortcutMethod(kind, names, positional, function, begins, watched)
 *         def all_reduce(self, ...): the slow path
 *
 * A method is called by vectorcall, so a call makes no frame, tuple or dict until it takes the slow path. */
#include "call.h"
#include <stdatomic.h>
#include <stddef.h>
#include <structmember.h>

/* The vector call protocol (PEP 590) is part of the stable ABI since 3.12 only, but the flag and the member by which a type
 * takes part have been the same since 3.8. */
#define HAVE_VECTORCALL (1ul << 11)

/* ---- Shortcuts: the base class ---- */

PyTypeObject *shortcut_base_type, *shortcut_type;

static int base_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct shortcut_base *)self)->shortcut);
    Py_VISIT(((struct shortcut_base *)self)->batch);
    return 0;
}

static int base_clear(PyObject *self)
{
    Py_CLEAR(((struct shortcut_base *)self)->shortcut);
    Py_CLEAR(((struct shortcut_base *)self)->batch);
    return 0;
}

static void base_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self); /* a class that derives from this one: its own tp_clear is over */
    PyObject_GC_UnTrack(self);
    base_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef base_members[] = {
    {"_shortcut", T_OBJECT, offsetof(struct shortcut_base, shortcut), 0, "where short methods go first, or None"},
    {"_batch", T_OBJECT, offsetof(struct shortcut_base, batch), 0, "the Works of a batch of messages, or None"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot base_slots[] = {
    {Py_tp_doc, "Base of a class with methods that try the fast path first."},
    {Py_tp_members, base_members},
    {Py_tp_traverse, base_traverse},
    {Py_tp_clear, base_clear},
    {Py_tp_dealloc, base_dealloc},
    {0, NULL},
};
static PyType_Spec base_spec = {"arraycomm._engine.Shortcuts", sizeof(struct shortcut_base), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, base_slots};

/* ---- Shortcut: the backend's entry points for one group ---- */

static PyObject *shortcut_close(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct shortcut *s = (struct shortcut *)self;
    s->group = NULL;
    if (s->handle)
        atomic_store(&s->handle->group, NULL); /* no new callers enter */
    return Py_NewRef(Py_None);
}

static PyObject *shortcut_enter(PyObject *self, PyObject *Py_UNUSED(none))
{
    ((struct shortcut *)self)->calling++;
    interrupt_count(1);
    return Py_NewRef(self);
}

static PyObject *shortcut_leave(PyObject *self, PyObject *Py_UNUSED(error))
{
    ((struct shortcut *)self)->calling--;
    interrupt_count(-1);
    return Py_NewRef(Py_None);
}

static PyObject *shortcut_end(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct shortcut *s = (struct shortcut *)self;
    operation_end_all(s);
    if (s->handle)
        handle_end(s->handle);
    return Py_NewRef(Py_None);
}

static PyObject *shortcut_number(PyObject *self, PyObject *owner)
{
    int64_t number = handle_open((struct shortcut *)self, owner);
    return number < 0 ? NULL : PyLong_FromLongLong(number);
}

/* operation(handle, owners) */
static PyObject *shortcut_operation(PyObject *self, PyObject *args)
{
    unsigned long long handle;
    PyObject *owners;
    if (!PyArg_ParseTuple(args, "KO:operation", &handle, &owners))
        return NULL;
    operation_reap((struct shortcut *)self);
    return operation_new((struct shortcut *)self, (acomm_op *)(uintptr_t)handle, owners, NULL);
}

/* Shortcut(entries, group, rank, size, error): the first two are addresses. */
static PyObject *shortcut_construct(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    unsigned long long entries, group;
    int rank, size;
    PyObject *error;
    if (!PyArg_ParseTuple(args, "KKiiO:Shortcut", &entries, &group, &rank, &size, &error))
        return NULL;
    struct shortcut *s = (struct shortcut *)PyType_GenericAlloc(shortcut_type, 0);
    if (!s)
        return NULL;
    s->under_way = (struct operation_links){&s->under_way, &s->under_way};
    s->entries = (const acomm_entries *)(uintptr_t)entries;
    s->group = (acomm_group *)(uintptr_t)group;
    s->rank = rank;
    s->size = size;
    s->error = Py_NewRef(error);
    return (PyObject *)s;
}

/* `error` is a method of the communicator that holds this object: only the cycle collector frees the two. */
static int shortcut_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct shortcut *)self)->error);
    return operation_traverse_all((struct shortcut *)self, visit, arg);
}

static int shortcut_clear(PyObject *self)
{
    operation_forget_all((struct shortcut *)self);
    Py_CLEAR(((struct shortcut *)self)->error);
    return 0;
}

static PyMethodDef shortcut_methods[] = {
    {"close", shortcut_close, METH_NOARGS, "From now on everything is declined."},
    {"__enter__", shortcut_enter, METH_NOARGS, "Inside, a caller of the engine finds the group: end() waits."},
    {"__exit__", shortcut_leave, METH_VARARGS, NULL},
    {"end", shortcut_end, METH_NOARGS, "The engine has ended all operations: their handles are given back. Waits for all calls."},
    {"number", shortcut_number, METH_O, "number(group) -> the Group's handle for native callers, see call.h"},
    {"operation", shortcut_operation, METH_VARARGS,
     "operation(handle, owners) -> Operation for a handle at an address, with what its memory belongs to"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot shortcut_slots[] = {
    {Py_tp_doc, "Shortcut(entries, group, rank, size, error): plain operations of one communicator in one native call."},
    {Py_tp_new, shortcut_construct},
    {Py_tp_traverse, shortcut_traverse},
    {Py_tp_clear, shortcut_clear},
    {Py_tp_dealloc, native_dealloc},
    {Py_tp_methods, shortcut_methods},
    {0, NULL},
};
static PyType_Spec shortcut_spec = {"arraycomm._engine.Shortcut", sizeof(struct shortcut), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, shortcut_slots};

/* ---- a method's form ---- */

static const char *const NAMES[ROLES] = {
    "x", "like", "op", "root", "dest", "source", "tag", "out", "timeout",
    "async_op", "form", "uneven", "counts", "send_counts", "recv_counts",
};
PyObject *forms_names[ROLES], *forms_defaults[ROLES];

static int forms_init(void)
{
    for (int role = 0; role < ROLES; role++) {
        forms_names[role] = PyUnicode_InternFromString(NAMES[role]);
        forms_defaults[role] = Py_None;
    }
    forms_defaults[ROLE_ASYNC] = forms_defaults[ROLE_UNEVEN] = Py_False;
    forms_defaults[ROLE_FORM] = PyUnicode_InternFromString("concat");
    return PyErr_Occurred() ? -1 : 0;
}

/* From the names of a method's parameters, and the number of positional ones. -1 with an exception. */
static int forms_read(PyObject *names, int positional, struct form *form)
{
    Py_ssize_t parameters = PyTuple_Size(names);
    if (parameters > FORMS_MOST || positional > parameters) {
        PyErr_SetString(PyExc_ValueError, "a method has a few parameters, of which some can be given by position");
        return -1;
    }
    *form = (struct form){.positional = (uint8_t)positional, .parameters = (uint8_t)parameters};
    for (int i = 0; i < parameters; i++) {
        int role = 0;
        while (role < ROLES && PyUnicode_Compare(forms_names[role], PyTuple_GetItem(names, i)))
            role++;
        form->roles[i] = (uint8_t)role;
    }
    return 0;
}

/* ---- ShortcutMethod: a method ---- */

static PyTypeObject *method_type;
static PyObject *bound_type; /* types.MethodType */

PyObject *shortcut_slow(const struct shortcut_method *m, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    if (!m->function)
        return Py_NewRef(Py_NotImplemented);
    PyObject *positional = PyTuple_New(nargs), *named = names ? PyDict_New() : NULL, *result = NULL;
    bool good = positional && (!names || named);
    for (Py_ssize_t i = 0; good && i < nargs; i++)
        good = !PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; good && names && i < PyTuple_Size(names); i++)
        good = !PyDict_SetItem(named, PyTuple_GetItem(names, i), args[nargs + i]);
    if (good)
        result = PyObject_Call(m->function, positional, named);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

/* Only for callers without vectorcall. */
static PyObject *call_by_tuple(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *function = ((struct shortcut_method *)self)->function;
    return function ? PyObject_Call(function, args, kwargs) : Py_NewRef(Py_NotImplemented);
}

static PyObject *bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object ? PyObject_CallFunctionObjArgs(bound_type, self, object, NULL) : Py_NewRef(self);
}

/* ShortcutMethod(kind, names of the parameters, how many may be given by position, function or None, begins) */
static PyObject *shortcut_types_construct(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    int kind, positional, begins;
    PyObject *names, *function;
    struct form form;
    if (!PyArg_ParseTuple(args, "iO!iOp:ShortcutMethod", &kind, &PyTuple_Type, &names, &positional, &function, &begins))
        return NULL;
    if (kind < 0 || kind >= ACOMM_KINDS) {
        PyErr_Format(PyExc_ValueError, "there is no operation number %d", kind);
        return NULL;
    }
    if (forms_read(names, positional, &form))
        return NULL;
    struct shortcut_method *m = (struct shortcut_method *)PyType_GenericAlloc(method_type, 0);
    if (!m)
        return NULL;
    m->form = form;
    m->call = shortcut_call;
    m->function = function == Py_None ? NULL : Py_NewRef(function);
    m->kind = kind;
    m->begins = begins;
    return (PyObject *)m;
}

static int shortcut_types_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct shortcut_method *)self)->function);
    return 0;
}

static int shortcut_types_clear(PyObject *self)
{
    Py_CLEAR(((struct shortcut_method *)self)->function);
    return 0;
}

/* Name, documentation and signature are the function's. */
static PyObject *forward(PyObject *self, void *name)
{
    PyObject *function = ((struct shortcut_method *)self)->function;
    return PyObject_GetAttrString(function ? function : Py_None, name);
}

static PyMemberDef members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(struct shortcut_method, function), READONLY, NULL},
    {"kind", T_INT, offsetof(struct shortcut_method, kind), READONLY, "as in acomm.h"},
    {"begins", T_BOOL, offsetof(struct shortcut_method, begins), READONLY, "whether it gives a Work at once"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct shortcut_method, call), READONLY, NULL},
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
    {Py_tp_new, shortcut_types_construct},
    {Py_tp_call, call_by_tuple},
    {Py_tp_descr_get, bind},
    {Py_tp_members, members},
    {Py_tp_getset, forwarded},
    {Py_tp_traverse, shortcut_types_traverse},
    {Py_tp_clear, shortcut_types_clear},
    {Py_tp_dealloc, native_dealloc},
    {0, NULL},
};
static PyType_Spec spec = {"arraycomm._engine.ShortcutMethod", sizeof(struct shortcut_method), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR | HAVE_VECTORCALL,
                           slots};

int shortcut_init(PyObject *module)
{
    PyObject *types = PyImport_ImportModule("types");
    bound_type = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
    Py_XDECREF(types);
    return !bound_type || forms_init() || native_type(module, &base_spec, &shortcut_base_type)
        || native_type(module, &shortcut_spec, &shortcut_type) || native_type(module, &spec, &method_type) ? -1 : 0;
}
