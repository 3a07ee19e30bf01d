/* An operation under way in the engine: the handle, the memory that it uses, and how it ended. It implements
 * arraycomm.core.interface.backend.Work for backends with native entry points. */
#include "call.h"
#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>

struct operation {
    PyObject_HEAD
    struct operation_links links;
    struct shortcut *shortcut;
    acomm_op *op;          /* NULL once freed */
    int waiters;           /* threads that are in the engine with `op` */
    bool ended;
    int code, source;      /* from here on valid once ended */
    int64_t tag;
    uint64_t bytes;
    acomm_failure *failure; /* NULL: success */
    PyObject *error;        /* made when first raised */
    PyObject *owners[2];
};
static PyTypeObject *operation_type;

static struct operation *of_links(struct operation_links *links)
{
    return (struct operation *)((char *)links - offsetof(struct operation, links));
}

static void drop_owners(struct operation *o)
{
    Py_CLEAR(o->owners[0]);
    Py_CLEAR(o->owners[1]);
}

/* ---- the end ---- */

static void operation_give_back(struct operation *o)
{
    acomm_op *op = o->op;
    o->op = NULL;
    if (op)
        o->shortcut->entries->free(op);
}

/* Drops the list's reference: the caller has another one. */
static void leave_list(struct operation *o)
{
    if (!o->links.next)
        return;
    o->links.prev->next = o->links.next;
    o->links.next->prev = o->links.prev;
    o->links.next = NULL;
    Py_DECREF((PyObject *)o);
}

PyObject *operation_error(const struct shortcut *s, int code, const acomm_failure *failure)
{
    static const acomm_failure unknown;
    return PyObject_CallFunction(s->error, "iK", code, (unsigned long long)(uintptr_t)(failure ? failure : &unknown));
}

/* Copies its result. No Python code runs here before all is consistent. */
static void settle(struct operation *o, int code)
{
    const acomm_entries *entries = o->shortcut->entries;
    o->ended = true;
    o->code = code;
    if (code && (o->failure = malloc(sizeof *o->failure))) {
        o->failure->code = 0;
        entries->failure(o->op, o->failure);
    }
    entries->source(o->op, &o->source, &o->tag, &o->bytes);
    if (!o->waiters)
        operation_give_back(o);
    leave_list(o);
    drop_owners(o);
}

static bool at_end(struct operation *o)
{
    return operation_over(o->shortcut->entries, o->op);
}

/* As the engine's wait. */
static int operation_look(struct operation *o, int64_t ns)
{
    int code;
    acomm_op *op = o->op;
    const acomm_entries *entries = o->shortcut->entries;
    if (at_end(o))
        return entries->wait(op, 0);
    o->waiters++;
    Py_BEGIN_ALLOW_THREADS
    code = entries->wait(op, ns);
    Py_END_ALLOW_THREADS
    o->waiters--;
    return code;
}

static int raise(struct operation *o)
{
    PyObject *error = o->error ? Py_NewRef(o->error) : operation_error(o->shortcut, o->code, o->failure);
    if (error && !o->error)
        o->error = Py_NewRef(error);
    refuse_raise(error);
    return -1;
}

/* A signal's handler raised while we waited; false: in another thread's call. */
static bool interrupted(struct operation *o)
{
    PyObject *error = operation_error(o->shortcut, ACOMM_INTERRUPTED, NULL);
    Py_XDECREF(error);
    return !error;
}

/* 0 when it has succeeded, 1 when it has not ended within `ns` (below 0: no limit), -1 with an exception. */
static int operation_wait(PyObject *self, int64_t ns)
{
    struct operation *o = (struct operation *)self;
    while (!o->ended) {
        int code = operation_look(o, ns);
        if (o->ended) /* by another thread meanwhile, or by close() */
            break;
        if (code == 1)
            return 1;
        if (code != ACOMM_INTERRUPTED || at_end(o))
            settle(o, code);
        else if (interrupted(o))
            return -1;
    }
    if (!o->waiters)
        operation_give_back(o);
    return o->code ? raise(o) : 0;
}

bool operation_done(PyObject *self)
{
    struct operation *o = (struct operation *)self;
    int code = o->ended ? 1 : operation_look(o, 0);
    if (!o->ended && code != 1 && at_end(o))
        settle(o, code);
    return o->ended;
}

void operation_source(PyObject *self, int *rank, int64_t *tag)
{
    struct operation *o = (struct operation *)self;
    *rank = o->source;
    *tag = o->tag;
}

/* ---- all of them ---- */

void operation_reap(struct shortcut *s)
{
    for (int i = 0; i < 2; i++) { /* one is added, at most two are removed: dropped operations cannot make the list grow */
        struct operation_links *oldest = s->under_way.prev;
        struct operation *o = of_links(oldest);
        if (oldest == &s->under_way || Py_REFCNT((PyObject *)o) > 1 || !at_end(o))
            return;
        Py_INCREF((PyObject *)o);
        settle(o, s->entries->wait(o->op, 0));
        Py_DECREF((PyObject *)o);
    }
}

void operation_end_all(struct shortcut *s)
{
    while (s->calling) { /* those threads will return from the engine soon, and may add to the list */
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    while (s->under_way.next != &s->under_way) {
        struct operation *o = of_links(s->under_way.next);
        Py_INCREF((PyObject *)o);
        o->waiters = 0; /* no thread is in the engine any more */
        settle(o, s->entries->wait(o->op, -1));
        Py_DECREF((PyObject *)o);
    }
}

void operation_forget_all(struct shortcut *s)
{
    while (s->under_way.next != &s->under_way)
        leave_list(of_links(s->under_way.next));
}

int operation_traverse_all(struct shortcut *s, visitproc visit, void *arg)
{
    for (struct operation_links *at = s->under_way.next; at && at != &s->under_way; at = at->next)
        Py_VISIT((PyObject *)of_links(at));
    return 0;
}

PyObject *operation_new(struct shortcut *s, acomm_op *op, PyObject *first, PyObject *second)
{
    struct operation *o = (struct operation *)PyType_GenericAlloc(operation_type, 0);
    if (!o) {
        s->entries->free(op);
        return NULL;
    }
    o->shortcut = (struct shortcut *)Py_NewRef((PyObject *)s);
    o->op = op;
    if (at_end(o)) {
        settle(o, s->entries->wait(op, 0));
        return (PyObject *)o;
    }
    o->owners[0] = Py_XNewRef(first);
    o->owners[1] = Py_XNewRef(second);
    o->links = (struct operation_links){&s->under_way, s->under_way.next};
    o->links.next->prev = o->links.prev->next = &o->links;
    return Py_NewRef((PyObject *)o); /* the other one is the list's */
}

bool operation_check(PyObject *object)
{
    return Py_TYPE(object) == operation_type;
}

/* ---- arguments ---- */

/* A timeout in seconds or None (NULL) as ns, -1 for none; false with an exception. */
static bool operation_timeout(PyObject *seconds, int64_t *ns)
{
    *ns = -1;
    if (!seconds || seconds == Py_None)
        return true;
    double value = PyBool_Check(seconds) ? -1 : PyFloat_AsDouble(seconds);
    if (PyBool_Check(seconds) || (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_TypeError)))
        PyErr_Format(PyExc_TypeError, "timeout must be a number of seconds, got %R", seconds);
    if (PyErr_Occurred())
        return false;
    if (isnan(value)) {
        PyErr_SetString(PyExc_ValueError, "timeout must be a number of seconds, got nan");
        return false;
    }
    *ns = value <= 0 ? 0 : value > 4e9 ? INT64_MAX / 4 : (int64_t)(value * 1e9);
    return true;
}

static void operation_late(PyObject *seconds)
{
    if (PyFloat_AsDouble(seconds) > 0)
        PyErr_Format(PyExc_TimeoutError, "the operation has not ended after %S s; it continues", seconds);
    else
        PyErr_SetString(PyExc_TimeoutError, "the operation has not ended yet; it continues");
}

int operation_await(PyObject *self, PyObject *timeout)
{
    int64_t ns;
    if (!operation_timeout(timeout, &ns))
        return -1;
    int rc = operation_wait(self, ns);
    if (rc == 1)
        operation_late(timeout);
    return rc ? -1 : 0;
}

bool operation_argument(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *names, PyObject **timeout)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    *timeout = nargs + named ? args[0] : NULL;
    if (nargs + named > 1 || (named && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "timeout"))) {
        PyErr_Format(PyExc_TypeError, "%s(timeout=None) takes no other arguments", method);
        return false;
    }
    return true;
}

/* ---- the type ---- */

static PyObject *operation_wait_method(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *timeout;
    if (!operation_argument("wait", args, nargs, names, &timeout) || operation_await(self, timeout))
        return NULL;
    return Py_NewRef(Py_None);
}

static PyObject *operation_done_method(PyObject *self, PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(operation_done(self));
}

static PyObject *operation_source_method(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct operation *o = (struct operation *)self;
    if (operation_wait(self, -1))
        return NULL;
    return Py_BuildValue("(iLK)", o->source, (long long)o->tag, (unsigned long long)o->bytes);
}

static int operation_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct operation *o = (struct operation *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)o->shortcut);
    Py_VISIT(o->error);
    Py_VISIT(o->owners[0]);
    Py_VISIT(o->owners[1]);
    return 0;
}

static int operation_clear(PyObject *self)
{
    struct operation *o = (struct operation *)self;
    Py_CLEAR(o->error);
    return 0;
}

/* Under way only if the group was dropped without a close: the engine may still use the memory, so it stays. */
static void operation_dealloc(PyObject *self)
{
    struct operation *o = (struct operation *)self;
    struct shortcut *s = o->shortcut;
    PyObject_GC_UnTrack(self);
    if (o->ended)
        drop_owners(o);
    operation_give_back(o);
    free(o->failure);
    native_dealloc(self);
    Py_XDECREF((PyObject *)s);
}

static PyMethodDef methods[] = {
    {"wait", FAST(operation_wait_method), METH_FASTCALL | METH_KEYWORDS, "wait(timeout=None): see arraycomm.core.interface.backend.Work"},
    {"done", operation_done_method, METH_NOARGS, "done() -> whether it has ended, well or not"},
    {"source", operation_source_method, METH_NOARGS, "source() -> (rank, tag, bytes) of a receive"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "An operation under way in a backend that lends its entry points."},
    {Py_tp_methods, methods},
    {Py_tp_traverse, operation_traverse},
    {Py_tp_clear, operation_clear},
    {Py_tp_dealloc, operation_dealloc},
    {0, NULL},
};
static PyType_Spec spec = {"arraycomm._engine.Operation", sizeof(struct operation), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int operation_init(PyObject *module)
{
    return native_type(module, &spec, &operation_type);
}
