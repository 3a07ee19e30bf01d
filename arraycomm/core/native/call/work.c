/* Work: what an asynchronous call returns. Its operation is one of the engine's (operation.c), or any object that fulfils
 * arraycomm.core.interface.backend.Work; its result is made when it is first asked for. */
#include "operation.h"

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

/* ---- waiting ---- */

static int wait_elsewhere(struct work *w, PyObject *timeout)
{
    if (w->pending == Py_None)
        return 0;
    PyObject *none = PyObject_CallMethod(w->pending, "wait", "O", timeout ? timeout : Py_None);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

static int work_await(struct work *w, PyObject *timeout)
{
    int64_t ns;
    if (!operation_check(w->pending))
        return wait_elsewhere(w, timeout);
    if (!operation_timeout(timeout, &ns))
        return -1;
    int rc = operation_wait(w->pending, ns);
    if (rc == 1)
        operation_late(timeout);
    return rc ? -1 : 0;
}

static PyObject *work_wait_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *timeout;
    if (!operation_argument("wait", args, nargs, names, &timeout) || work_await((struct work *)self, timeout))
        return NULL;
    return Py_NewRef(Py_None);
}

static PyObject *work_done_method(PyObject *self, PyObject *none)
{
    struct work *w = (struct work *)self;
    (void)none;
    if (w->pending == Py_None)
        return Py_NewRef(Py_True);
    if (!operation_check(w->pending))
        return PyObject_CallMethod(w->pending, "done", NULL);
    return PyBool_FromLong(operation_done(w->pending));
}

/* ---- results ---- */

static PyObject *make_array(struct work *w)
{
    PyObject *both[] = {w->make, w->model};
    switch (w->makes) {
    case WORK_CALLS:
        return PyObject_CallFunctionObjArgs(w->make, NULL);
    case WORK_WRAPS:
        return wrap_array(NULL, both, 2);
    case WORK_GIVES:
        break;
    }
    return Py_NewRef(w->make);
}

static PyObject *make_result(struct work *w)
{
    int rank;
    int64_t tag;
    uint64_t bytes;
    PyObject *array = make_array(w);
    if (!array || !w->receives)
        return array;
    operation_source(w->pending, &rank, &tag, &bytes);
    return received_new(array, rank, tag);
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

static PyObject *work_source_method(PyObject *self, PyObject *none)
{
    struct work *w = (struct work *)self;
    (void)none;
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
static PyObject *work_construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *pending, *make;
    (void)kwargs, (void)type;
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

static void work_dealloc(PyObject *self)
{
    native_dealloc(self, work_clear);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function)
static PyMethodDef methods[] = {
    {"wait", FAST(work_wait_method), METH_FASTCALL | METH_KEYWORDS,
     "wait(timeout=None)\n\nBlocks until the operation has ended, and carries it on meanwhile.\n\n"
     "Raises TimeoutError when it has not after `timeout` seconds: it goes on then, and one may wait again.\n"
     "Raises the operation's own error (a DistError) when it failed."},
    {"result", FAST(result_method), METH_FASTCALL | METH_KEYWORDS,
     "result(timeout=None)\n\nWaits, then gives what the synchronous call would have returned. Errors as in wait()."},
    {"done", work_done_method, METH_NOARGS, "done()\n\nWhether the operation has ended, well or not."},
    {"source", work_source_method, METH_NOARGS,
     "source()\n\nAfter a receive: the rank it came from and its tag. Raises ValueError for other operations."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "The handle of an asynchronous operation.\n\n"
                "The arrays that take part stay alive until it has ended; do not write to them before."},
    {Py_tp_new, work_construct},
    {Py_tp_methods, methods},
    {Py_tp_traverse, work_traverse},
    {Py_tp_clear, work_clear},
    {Py_tp_dealloc, work_dealloc},
    {0, NULL},
};
static PyType_Spec spec = {"arraycomm.Work", sizeof(struct work), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int work_init(PyObject *module)
{
    work_type = native_type(module, &spec);
    return work_type ? 0 : -1;
}
