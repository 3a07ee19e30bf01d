/* The short way from arrays to the engine: a plain synchronous collective in one native call.
 *
 * It takes packed host arrays of one shape rule each, and declines everything else by returning NotImplemented: then
 * Group goes the long way, which is the reference, handles the rest and explains what is wrong. Ranks may go different
 * ways in one call; the engine cannot tell. The backend lends the entry point as an address, so nothing here knows it. */
#include "native.h"
#include <structmember.h>

struct shortcut {
    PyObject_HEAD
    int (*run)(acomm_group *, const acomm_call *);
    acomm_group *group; /* NULL: closed */
    int rank, size;
    PyObject *error;    /* error(code) -> exception */
};
static PyTypeObject *shortcut_type;

/* Elements per rank as the engine counts them; -1 where the kind has no plain form for this shape. */
static int64_t count_for(int kind, const struct view *x, int64_t elements, int size)
{
    switch (kind) {
    case ACOMM_ALL_REDUCE:
    case ACOMM_BROADCAST:
    case ACOMM_ALL_GATHER:
        return elements;
    case ACOMM_REDUCE_SCATTER:
    case ACOMM_ALL_TO_ALL:
        return x->ndim && x->shape[0] % size == 0 ? elements / size : -1;
    }
    return -1;
}

/* x's own shape, with its first dimension changed where the kind changes it. Returns the number of dimensions. */
static int result_shape(int kind, const struct view *x, int size, int64_t *shape)
{
    for (int i = 0; i < x->ndim; i++)
        shape[i] = x->shape[i];
    if (kind == ACOMM_ALL_GATHER) {
        shape[0] = x->ndim ? shape[0] * size : size;
        return x->ndim ? x->ndim : 1;
    }
    if (kind == ACOMM_REDUCE_SCATTER)
        shape[0] /= size;
    return x->ndim;
}

/* As shapes.layout() in Python: ranks that went the long way compare with it. */
static int layout_of(const struct view *x, uint32_t *layout)
{
    PyObject *shape = buffer_shape(x->ndim, x->shape);
    Py_hash_t hash = shape ? PyObject_Hash(shape) : -1;
    Py_XDECREF(shape);
    *layout = (uint32_t)hash | 1;
    return hash == -1 ? -1 : 0;
}

static PyObject *declined(void)
{
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

static PyObject *failed(struct shortcut *s, int code)
{
    PyObject *error = PyObject_CallFunction(s->error, "i", code);
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

/* Runs it; the result is `out`, or a new array like x when `to` is given. */
static PyObject *run(struct shortcut *s, const acomm_call *call, struct buffer *to, PyObject *x, PyObject *out)
{
    int code;
    acomm_group *group = s->group;
    Py_BEGIN_ALLOW_THREADS
    code = s->run(group, call);
    Py_END_ALLOW_THREADS
    if (code == ACOMM_UNSUPPORTED || code == ACOMM_ARGUMENT)
        return declined();
    if (code)
        return failed(s, code);
    if (!to)
        return Py_NewRef(out);
    PyObject *both[] = {(PyObject *)to, x};
    return wrap_array(NULL, both, 2);
}

static PyObject *into_new(struct shortcut *s, acomm_call *call, const struct view *view, PyObject *x)
{
    int64_t lengths[NATIVE_MAX_DIMS + 1];
    PyObject *shape = buffer_shape(result_shape(call->kind, view, s->size, lengths), lengths);
    bool joined = call->kind == ACOMM_ALL_GATHER || call->kind == ACOMM_ALL_TO_ALL;
    int64_t elements = (int64_t)call->count * (joined ? s->size : 1);
    struct buffer *to = shape ? buffer_allocate(call->dtype, elements, shape) : NULL;
    Py_XDECREF(shape);
    if (!to)
        return NULL;
    call->out = (uintptr_t)to->address;
    PyObject *result = run(s, call, to, x, NULL);
    Py_DECREF(to);
    return result;
}

/* Whether the result can be written there as it is: right shape and type, packed, writable, and apart from x. */
static bool fits(const struct shortcut *s, int kind, const struct view *x, const struct view *out)
{
    int64_t lengths[NATIVE_MAX_DIMS + 1];
    int ndim = result_shape(kind, x, s->size, lengths);
    if (out->readonly || out->derived || out->device_type != DL_CPU || out->dtype != x->dtype || out->ndim != ndim
        || !view_packed(out))
        return false;
    for (int i = 0; i < ndim; i++)
        if (out->shape[i] != lengths[i])
            return false;
    int64_t width = dtype_rows[x->dtype].width, ins = view_count(x) * width, outs = view_count(out) * width;
    return out->data && (x->data + ins <= out->data || out->data + outs <= x->data);
}

static PyObject *into_other(struct shortcut *s, acomm_call *call, const struct view *view, PyObject *x, PyObject *out)
{
    struct view to;
    if (view_open(&to, out))
        return NULL;
    call->out = (uintptr_t)to.data;
    PyObject *result = fits(s, call->kind, view, &to) ? run(s, call, NULL, x, out) : declined();
    view_close(&to);
    return result;
}

static PyObject *in_place(struct shortcut *s, acomm_call *call, const struct view *view, PyObject *x)
{
    bool same = call->kind == ACOMM_ALL_REDUCE || call->kind == ACOMM_BROADCAST;
    return same && !view->readonly && !view->derived ? run(s, call, NULL, x, x) : declined();
}

static PyObject *dispatch(struct shortcut *s, int kind, PyObject *x, PyObject *out, int redop, int root)
{
    struct view view;
    PyObject *result = NULL;
    if (view_open(&view, x))
        return NULL;
    int64_t elements = view_count(&view), count = elements < 0 ? -1 : count_for(kind, &view, elements, s->size);
    bool plain = view.device_type == DL_CPU && view_packed(&view) && count >= 0 && (view.data || !elements)
              && elements < INT64_MAX / 16 / s->size;
    acomm_call call = {.in = (uintptr_t)view.data, .out = (uintptr_t)view.data, .count = (uint64_t)count, .factor = 1,
                       .kind = kind, .dtype = view.dtype, .redop = redop, .root = root};
    if (kind == ACOMM_BROADCAST && s->rank != root)
        call.in = 0;
    if (elements >= 0 && !plain)
        result = declined();
    else if (elements >= 0 && !layout_of(&view, &call.layout))
        result = out == Py_None ? into_new(s, &call, &view, x)
               : out == x       ? in_place(s, &call, &view, x)
                                : into_other(s, &call, &view, x, out);
    view_close(&view);
    return result;
}

/* call(kind, x, out, redop, root) */
static PyObject *shortcut_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct shortcut *s = (struct shortcut *)self;
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "call(kind, x, out, redop, root) takes five arguments");
        return NULL;
    }
    long kind = PyLong_AsLong(args[0]), redop = PyLong_AsLong(args[3]), root = PyLong_AsLong(args[4]);
    if (PyErr_Occurred())
        return NULL;
    if (!s->group || redop < 0 || root < (kind == ACOMM_BROADCAST ? 0 : -1) || root >= s->size)
        return declined();
    return dispatch(s, (int)kind, args[1], args[2], (int)redop, (int)root);
}

static PyObject *shortcut_close(PyObject *self, PyObject *none)
{
    (void)none;
    ((struct shortcut *)self)->group = NULL;
    Py_INCREF(Py_None);
    return Py_None;
}

/* Shortcut(run, group, rank, size, error): the first two are addresses. */
static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long run, group;
    int rank, size;
    PyObject *error;
    (void)kwargs, (void)type;
    if (!PyArg_ParseTuple(args, "KKiiO:Shortcut", &run, &group, &rank, &size, &error))
        return NULL;
    struct shortcut *s = (struct shortcut *)PyType_GenericAlloc(shortcut_type, 0);
    if (!s)
        return NULL;
    s->run = (int (*)(acomm_group *, const acomm_call *))(uintptr_t)run;
    s->group = (acomm_group *)(uintptr_t)group;
    s->rank = rank;
    s->size = size;
    s->error = Py_NewRef(error);
    return (PyObject *)s;
}

/* `error` is a method of the communicator that holds this object: only the cycle collector frees the two. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct shortcut *)self)->error);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((struct shortcut *)self)->error);
    return 0;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))shortcut_call, METH_FASTCALL,
     "call(kind, x, out, redop, root) -> the result, or NotImplemented"},
    {"close", shortcut_close, METH_NOARGS, "From now on everything is declined."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Shortcut(run, group, rank, size, error): plain collectives of one communicator in one native call."},
    {Py_tp_new, construct},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};
static PyType_Spec spec = {"arraycomm._engine.Shortcut", sizeof(struct shortcut), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

int shortcut_init(PyObject *module)
{
    shortcut_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return shortcut_type ? PyModule_AddObjectRef(module, "Shortcut", (PyObject *)shortcut_type) : -1;
}
