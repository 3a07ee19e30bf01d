/* Work: what an asynchronous call returns. Its operation is one of the engine's (operation.c), or any object that fulfils
 * arraycomm.core.interface.backend.Work; its result is made when it is first asked for. */
#include "call.h"

struct work {
    PyObject_HEAD
    PyObject *pending; /* the operation; None: it has ended */
    PyObject *make;    /* see enum work_makes; NULL once the result is there */
    PyObject *model;
    PyObject *result;
    enum work_makes makes;
    bool receives;
};
static PyTypeObject *work_type;

PyObject *work_new(PyObject *pending, enum work_makes makes, PyObject *make, PyObject *model, bool receives)
{
    struct work *w = (struct work *)PyType_GenericAlloc(work_type, 0);
    if (!w)
        return NULL;
    w->pending = Py_NewRef(pending);
    w->make = Py_NewRef(make);
    w->model = Py_XNewRef(model);
    w->makes = makes;
    w->receives = receives;
    return (PyObject *)w;
}

/* ---- a receive's result: arraycomm.core.group.work.Received, a named tuple ---- */

#if PY_VERSION_HEX < 0x030B0000
#define Py_Version PY_VERSION_HEX
#endif
#define HASHES_SINCE 0x030E0000 /* a tuple keeps its hash in a field of its own, in which zeros are one: tuple.__new__ sets it */

static PyObject *received_type;

/* Takes over the fields. NULL with an exception. */
static PyObject *of_class(PyObject *fields)
{
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = PyTuple_Pack(1, fields);
    PyObject *result = arguments ? make((PyTypeObject *)received_type, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_DECREF(fields);
    return result;
}

/* The fields are set as those of any new tuple, except where tuples keep their hash: by tuple.__new__ a receive of 8 bytes takes 0.2 us
 * more, and by a call of the class several times as much. */
PyObject *work_received(PyObject *array, int source, int64_t tag)
{
    bool hashes = Py_Version >= HASHES_SINCE;
    if (!received_type)
        received_type = refuse_call("received", NULL, NULL);
    PyObject *result = !received_type ? NULL : hashes ? PyTuple_New(3) : PyType_GenericAlloc((PyTypeObject *)received_type, 3);
    PyObject *from = PyLong_FromLong(source), *label = PyLong_FromLongLong(tag);
    if (!result || !from || !label) {
        Py_XDECREF(result);
        Py_XDECREF(from);
        Py_XDECREF(label);
        Py_DECREF(array);
        return NULL;
    }
    PyTuple_SetItem(result, 0, array);
    PyTuple_SetItem(result, 1, from);
    PyTuple_SetItem(result, 2, label);
    return hashes ? of_class(result) : result;
}

/* ---- waiting ---- */

static int work_await(struct work *w, PyObject *timeout)
{
    if (operation_check(w->pending))
        return operation_await(w->pending, timeout);
    if (w->pending == Py_None)
        return 0;
    PyObject *none = PyObject_CallMethod(w->pending, "wait", "O", timeout ? timeout : Py_None);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

static PyObject *work_wait_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *timeout;
    if (!operation_argument("wait", args, nargs, names, &timeout) || work_await((struct work *)self, timeout))
        return NULL;
    return Py_NewRef(Py_None);
}

static PyObject *work_done_method(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct work *w = (struct work *)self;
    if (w->pending == Py_None)
        return Py_NewRef(Py_True);
    if (!operation_check(w->pending))
        return PyObject_CallMethod(w->pending, "done", NULL);
    return PyBool_FromLong(operation_done(w->pending));
}

/* ---- results ---- */

PyObject *work_array(enum work_makes makes, PyObject *make, PyObject *model)
{
    PyObject *both[] = {make, model};
    if (makes == WORK_CALLS)
        return PyObject_CallFunctionObjArgs(make, NULL);
    return makes == WORK_WRAPS ? types_wrap(NULL, both, 2) : Py_NewRef(make);
}

static PyObject *make_result(struct work *w)
{
    int rank;
    int64_t tag;
    PyObject *array = work_array(w->makes, w->make, w->model);
    if (!array || !w->receives)
        return array;
    operation_source(w->pending, &rank, &tag);
    return work_received(array, rank, tag);
}

static PyObject *result_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    struct work *w = (struct work *)self;
    PyObject *timeout;
    if (!operation_argument("result", args, nargs, names, &timeout) || work_await(w, timeout))
        return NULL;
    if (!w->result) {
        PyObject *result = make_result(w);
        if (!result)
            return NULL;
        if (w->result) /* another thread was faster: there is one result */
            Py_DECREF(result);
        else
            w->result = result;
    }
    return Py_NewRef(w->result);
}

static PyObject *work_source_method(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct work *w = (struct work *)self;
    if (w->pending == Py_None) {
        PyErr_SetString(PyExc_ValueError, "only a receive has a source");
        return NULL;
    }
    PyObject *all = PyObject_CallMethod(w->pending, "source", NULL);
    PyObject *both = all ? PySequence_GetSlice(all, 0, 2) : NULL;
    Py_XDECREF(all);
    return both;
}

/* ---- the type ---- */

/* Work(pending, make) */
static PyObject *work_construct(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *pending, *make;
    if (!PyArg_ParseTuple(args, "OO:Work", &pending, &make))
        return NULL;
    return work_new(pending, WORK_CALLS, make, NULL, false);
}

static int work_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct work *w = (struct work *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(w->pending);
    Py_VISIT(w->make);
    Py_VISIT(w->model);
    Py_VISIT(w->result);
    return 0;
}

static int work_clear(PyObject *self)
{
    struct work *w = (struct work *)self;
    Py_CLEAR(w->pending);
    Py_CLEAR(w->make);
    Py_CLEAR(w->model);
    Py_CLEAR(w->result);
    return 0;
}

static PyMethodDef methods[] = {
    {"wait", FAST(work_wait_method), METH_FASTCALL | METH_KEYWORDS,
     "wait(timeout=None)\n\nBlocks until the operation has ended, and carries it on meanwhile.\n\n"
     "Raises TimeoutError if it has not ended after `timeout` seconds; it continues, and the caller may wait again.\n"
     "Raises the operation's own error (a DistError) when it failed."},
    {"result", FAST(result_method), METH_FASTCALL | METH_KEYWORDS,
     "result(timeout=None)\n\nWaits, then gives what the synchronous call would have returned. Errors as in wait()."},
    {"done", work_done_method, METH_NOARGS, "done()\n\nWhether the operation has ended, well or not."},
    {"source", work_source_method, METH_NOARGS,
     "source()\n\nAfter a receive: the rank it came from and its tag. Raises ValueError for other operations."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Work[type of the result], for annotations."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "The handle of an asynchronous operation.\n\n"
                "The arrays that take part stay alive until it has ended; do not write to them before."},
    {Py_tp_new, work_construct},
    {Py_tp_methods, methods},
    {Py_tp_traverse, work_traverse},
    {Py_tp_clear, work_clear},
    {Py_tp_dealloc, native_dealloc},
    {0, NULL},
};
static PyType_Spec spec = {"arraycomm.Work", sizeof(struct work), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int work_init(PyObject *module)
{
    return native_type(module, &spec, &work_type);
}
