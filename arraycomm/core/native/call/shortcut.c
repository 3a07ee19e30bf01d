/* The fast path from arrays to the engine: a plain operation in one native call.
 *
 * It takes packed host arrays in the plain forms (call.h), and declines everything else by returning NotImplemented: then the
 * method's Python code takes the slow path, which is the reference, handles the rest and explains what is wrong. Ranks may take
 * different paths in one call; the engine sees no difference. The backend passes its entry points as an address. */
#include "call.h"

#define ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1)) /* of PEP 590, part of the stable ABI since 3.12 only */

/* One call on the fast path. */
struct trip {
    struct shortcut *s;
    const acomm_operation *about;
    PyObject **given;
    PyObject *model;       /* the array that determines shape, dtype and library; borrowed */
    bool gives, gets;      /* this rank */
    bool begins;           /* it returns a Work at once */
    PyObject *owners[2];   /* of the memory in use then; borrowed */
    int array;             /* how it is divided, from the model to the result */
    acomm_call call;
};

static PyObject *declined(void)
{
    return Py_NewRef(Py_NotImplemented);
}

/* ---- arguments ---- */

static int role_of(const struct form *form, PyObject *name)
{
    for (int i = 0; i < form->parameters; i++)
        if (form->roles[i] < ROLES && forms_names[form->roles[i]] == name)
            return form->roles[i];
    return ROLES;
}

static bool forms_take(PyObject **given, int role, PyObject *value)
{
    bool async = role == ROLE_ASYNC && value == Py_True;
    bool other = role >= ROLE_ASYNC && role < ROLES && value != forms_defaults[role] && !async;
    if (role == ROLES || given[role] || (role == ROLE_TAG && value == Py_None) || other)
        return false;
    given[role] = value;
    return true;
}

/* Sorts the arguments of a call by role; NULL if not given, or if None, which means the same except as a tag. False: they are not
 * those of the plain form. */
static bool forms_sort(const struct form *form, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject **given)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    bool plain = positional <= form->positional;
    for (Py_ssize_t i = 0; i < positional && plain; i++)
        plain = forms_take(given, form->roles[i], args[i]);
    for (Py_ssize_t i = 0; i < named && plain; i++)
        plain = forms_take(given, role_of(form, PyTuple_GetItem(names, i)), args[positional + i]);
    if (!plain || given[ROLE_TAG] == Py_None)
        return false;
    for (int role = 0; role < ROLE_ASYNC; role++)
        if (given[role] == Py_None)
            given[role] = NULL;
    return true;
}

/* Leaves *out alone where nothing was given. */
static bool read_integer(PyObject *value, int64_t least, int64_t most, int64_t *out)
{
    if (!value)
        return true;
    int overflow = 0;
    int64_t n = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : least - 1;
    *out = n;
    return !overflow && n >= least && n <= most;
}

static bool read_rank(const struct shortcut *s, PyObject *value, int32_t *rank)
{
    int64_t n = *rank;
    bool good = read_integer(value, 0, s->size - 1, &n);
    *rank = (int32_t)n;
    return good;
}

static bool read_timeout(PyObject *value, int64_t *ns)
{
    if (!value)
        return true;
    double seconds = PyFloat_CheckExact(value) ? PyFloat_AsDouble(value) : -1;
    *ns = (int64_t)(seconds * 1e9);
    return seconds >= 0 && seconds < 4e9; /* unusual values are for the slow path */
}

static bool read_op(PyObject *op, int32_t *redop)
{
    static PyObject *codes; /* arraycomm.core.arrays.types.CODES */
    if (!op)
        return true;
    if (!codes && !(codes = refuse_call("codes", NULL, NULL)))
        return false;
    PyObject *code = PyDict_GetItemWithError(codes, op);
    *redop = code ? (int32_t)PyLong_AsLong(code) : -1;
    PyErr_Clear();
    return *redop >= 0;
}

/* False; with an exception, unless it is a refusal. */
static bool read_numbers(struct trip *t)
{
    acomm_call *c = &t->call;
    PyObject **given = t->given;
    bool rooted = t->about->gives == ACOMM_ROOT || t->about->gets == ACOMM_ROOT;
    c->root = rooted ? 0 : -1;
    PyObject *rank = given[ROLE_ROOT] ? given[ROLE_ROOT] : given[ROLE_DEST] ? given[ROLE_DEST] : given[ROLE_SOURCE];
    return read_op(given[ROLE_OP], &c->redop) && read_rank(t->s, rank, &c->root)
        && read_integer(given[ROLE_TAG], 0, INT64_MAX, &c->tag) && read_timeout(given[ROLE_TIMEOUT], &c->timeout)
        && (c->kind != ACOMM_SEND || c->root >= 0);
}

/* ---- shapes ---- */

/* The shape of x's result if arrays are divided so (operations.def); returns the number of dimensions. */
static int forms_shape(int array, const struct view *x, int size, int64_t *lengths)
{
    for (int i = 0; i < x->ndim; i++)
        lengths[i] = x->shape[i];
    if (array == ACOMM_JOINS) {
        lengths[0] = x->ndim ? lengths[0] * size : size;
        return x->ndim ? x->ndim : 1;
    }
    if (array == ACOMM_CUTS)
        lengths[0] /= size;
    return x->ndim;
}

/* 32 bits that differ where shapes differ, and are never 0: ranks compare them. */
static uint32_t forms_layout(int ndim, const int64_t *lengths)
{
    uint64_t mixed = 14695981039346656037u ^ (uint64_t)ndim; /* FNV-1a's start */
    for (int i = 0; i < ndim; i++)
        mixed = mixed * 0x9E3779B97F4A7C15u ^ (uint64_t)lengths[i];
    return (uint32_t)(mixed * 0x9E3779B97F4A7C15u >> 32) | 1;
}

PyObject *forms_layout_of(PyObject *Py_UNUSED(module), PyObject *shape)
{
    int64_t lengths[NATIVE_MAX_DIMS];
    if (buffer_count(shape, ACOMM_UINT8) < 0)
        return NULL;
    int ndim = (int)PyTuple_Size(shape);
    for (int i = 0; i < ndim; i++)
        lengths[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    return PyLong_FromUnsignedLong(forms_layout(ndim, lengths));
}

/* Whether the input's and the result's memory may be used together. */
static bool may_overlap(const struct trip *t, const char *in, int64_t ins, const char *out, int64_t outs)
{
    if (in + ins <= out || out + outs <= in)
        return true;
    switch (t->array) {
    case ACOMM_JOINS:
        return in == out + t->s->rank * ins;
    case ACOMM_CUTS:
        return t->about->reduces && out == in + t->s->rank * outs;
    case ACOMM_EXCHANGES:
        return false;
    }
    return in == out && ins == outs;
}

/* Whether the result can be written there as it is: right shape and type, packed, writable. */
static bool shortcut_fits(const struct trip *t, const struct view *x, const struct view *out)
{
    int64_t lengths[NATIVE_MAX_DIMS + 1];
    int ndim = forms_shape(t->array, x, t->s->size, lengths);
    if (out->readonly || out->derived || out->device_type != DL_CPU || out->dtype != x->dtype || out->ndim != ndim
        || !view_packed(out))
        return false;
    for (int i = 0; i < ndim; i++)
        if (out->shape[i] != lengths[i])
            return false;
    int64_t width = dtype_rows[x->dtype].width;
    return out->data && may_overlap(t, x->data, view_count(x) * width, out->data, view_count(out) * width);
}

/* ---- the call ---- */

/* The Operation, as run(). */
static PyObject *shortcut_begin(struct trip *t)
{
    int code;
    struct shortcut *s = t->s;
    acomm_op *op;
    operation_reap(s);
    acomm_group *group = s->group; /* after calls that may have run Python code, which may have closed it */
    if (!group)
        return declined();
    s->calling++;
    Py_BEGIN_ALLOW_THREADS
    code = s->entries->start(group, &t->call, &op);
    Py_END_ALLOW_THREADS
    s->calling--;
    if (code == ACOMM_UNSUPPORTED || code == ACOMM_ARGUMENT)
        return declined();
    return code ? refuse_raise(operation_error(s, code, NULL)) : operation_new(s, op, t->owners[0], t->owners[1]);
}

/* The GIL; lock: where to keep the thread's state. */
static void release_lock(void *lock)
{
    *(PyThreadState **)lock = PyEval_SaveThread();
}

/* None on success, or the begun Operation; NotImplemented, or NULL with an exception. */
static PyObject *shortcut_run(struct trip *t)
{
    int code;
    acomm_group *group = t->s->group;
    acomm_failure failure;
    failure.code = 0;
    t->call.failure = &failure;
    PyThreadState *thread = NULL;
    t->call.lock = &thread;
    t->s->calling++;
    uint64_t held = t->s->entries->held;
    if (held && t->call.count * (uint64_t)dtype_rows[t->call.dtype].width <= held)
        t->call.release_lock = release_lock;
    else
        release_lock(&thread);
    code = t->s->entries->run(group, &t->call);
    if (thread)
        PyEval_RestoreThread(thread);
    t->s->calling--;
    if (code == ACOMM_UNSUPPORTED || code == ACOMM_ARGUMENT)
        return declined();
    return code ? refuse_raise(operation_error(t->s, code, &failure)) : Py_NewRef(Py_None);
}

/* The method's result: the array, or the array with its source and tag. */
static PyObject *made(const struct trip *t, enum work_makes makes, PyObject *make)
{
    PyObject *array = work_array(makes, make, t->model);
    if (!array || t->call.kind != ACOMM_RECV)
        return array;
    return work_received(array, t->call.root, t->call.tag);
}

/* Runs, and returns the result of `make`; or a Work for it. */
static PyObject *shortcut_answer(struct trip *t, enum work_makes makes, PyObject *make)
{
    PyObject *done = !t->s->group ? declined() : t->begins ? shortcut_begin(t) : shortcut_run(t), *result;
    if (!done || done == Py_NotImplemented)
        return done;
    if (t->begins)
        result = work_new(done, makes, make, makes == WORK_WRAPS ? t->model : NULL, t->call.kind == ACOMM_RECV);
    else
        result = made(t, makes, make);
    Py_DECREF(done);
    return result;
}

static PyObject *into_new(struct trip *t, const struct view *view)
{
    int64_t lengths[NATIVE_MAX_DIMS + 1], count = 1;
    int ndim = forms_shape(t->array, view, t->s->size, lengths);
    for (int i = 0; i < ndim; i++)
        count *= lengths[i];
    PyObject *shape = buffer_shape(ndim, lengths);
    struct buffer *to = shape ? buffer_allocate(t->call.dtype, count, shape) : NULL;
    Py_XDECREF(shape);
    if (!to)
        return NULL;
    t->call.out = (void *)(uintptr_t)to->address;
    t->owners[1] = (PyObject *)to;
    PyObject *result = shortcut_answer(t, WORK_WRAPS, (PyObject *)to);
    Py_DECREF(to);
    return result;
}

/* An asynchronous call ends later: it must hold the array's memory. */
static int open_view(const struct trip *t, struct view *view, PyObject *array)
{
    return view_open(view, array, t->begins ? VIEW_HOST : VIEW_BORROW);
}

/* Arrays outside host memory, other objects, and dtypes without reductions: clears the error, the slow path repeats and explains
 * it. An exception with a traceback was raised by Python code, a signal's handler for example, not by refuse(). */
static bool refused(void)
{
    PyObject *type, *value, *traceback;
    if (!PyErr_Occurred())
        return true;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return false;
    PyErr_Fetch(&type, &value, &traceback);
    bool raised = traceback != NULL;
    PyErr_Restore(type, value, traceback);
    if (!raised)
        PyErr_Clear();
    return !raised;
}

static PyObject *into_other(struct trip *t, const struct view *view, PyObject *out)
{
    struct view to;
    if (open_view(t, &to, out))
        return refused() ? declined() : NULL;
    t->call.out = to.data;
    t->owners[1] = to.owner;
    PyObject *result = shortcut_fits(t, view, &to) ? shortcut_answer(t, WORK_GIVES, out) : declined();
    if (result == Py_NotImplemented)
        view_hand_on(&to, out);
    view_close(&to);
    return result;
}

static PyObject *in_place(struct trip *t, const struct view *view, PyObject *x)
{
    t->call.out = view->data;
    bool same = t->array == ACOMM_WHOLE || t->array == ACOMM_MESSAGE;
    return same && !view->readonly && !view->derived ? shortcut_answer(t, WORK_GIVES, x) : declined();
}

/* Ranks compare the model's shape, or, where only the root knows it, that of the part. */
static uint32_t layout_of(const struct trip *t, const struct view *view)
{
    int64_t lengths[NATIVE_MAX_DIMS + 1];
    if (t->array == ACOMM_MESSAGE)
        return 0;
    if (t->array == ACOMM_WHOLE || t->about->gives != ACOMM_ROOT)
        return forms_layout(view->ndim, view->shape);
    return forms_layout(forms_shape(t->array, view, t->s->size, lengths), lengths);
}

/* Input and number of elements; false where the view has no plain form. */
static bool shortcut_describe(struct trip *t, const struct view *view)
{
    int64_t elements = view_count(view), size = t->s->size;
    bool divides = t->array & ACOMM_CUTS;
    if (elements < 0)
        PyErr_Clear(); /* the slow path raises it again */
    if (elements < 0 || view->device_type != DL_CPU || !view_packed(view) || (!view->data && elements)
        || elements >= INT64_MAX / 16 / size || (divides && (!view->ndim || view->shape[0] % size)))
        return false;
    t->call.in = t->gives ? view->data : NULL;
    t->call.count = (uint64_t)(divides ? elements / size : elements);
    t->call.dtype = view->dtype;
    t->call.layout = layout_of(t, view);
    return true;
}

static PyObject *with_array(struct trip *t)
{
    struct view view;
    PyObject *result, *out = t->given[ROLE_OUT];
    if (open_view(t, &view, t->model))
        return refused() ? declined() : NULL;
    t->owners[0] = view.owner;
    if (!shortcut_describe(t, &view))
        result = declined();
    else
        result = !t->gets ? shortcut_answer(t, WORK_GIVES, Py_None) : !out ? into_new(t, &view)
               : out == t->model ? in_place(t, &view, out) : into_other(t, &view, out);
    if (result == Py_NotImplemented)
        view_hand_on(&view, t->model);
    view_close(&view);
    return result;
}

/* The result, or NotImplemented; a Work at once where it `begins` only. `given`: arguments by role, see call.h.
 * Out of line: its frame is large, and calls that are declined need none. */
static __attribute__((noinline)) PyObject *take(PyObject *self, const struct shortcut_method *m, bool begins, PyObject **given)
{
    int kind = m->kind;
    const acomm_operation *about = &acomm_operations[kind];
    struct trip t = {.s = (struct shortcut *)self, .about = about, .given = given, .array = about->array, .begins = begins,
                     .call = {.factor = 1, .kind = kind, .timeout = -1}};
    if (Py_TYPE(self) != shortcut_type || !t.s->group || !read_numbers(&t))
        return PyErr_Occurred() ? NULL : declined();
    if (kind == ACOMM_BARRIER)
        return shortcut_answer(&t, WORK_GIVES, Py_None);
    bool root = t.call.root == t.s->rank;
    t.gives = about->gives == ACOMM_ALL || (about->gives == ACOMM_ROOT && root);
    t.gets = about->gets == ACOMM_ALL || (about->gets == ACOMM_ROOT && root);
    t.model = given[ROLE_X] || kind != ACOMM_BROADCAST ? given[ROLE_X] : given[ROLE_OUT];
    if (kind == ACOMM_RECV && given[ROLE_LIKE] && given[ROLE_OUT])
        return declined();
    if (kind == ACOMM_RECV || (kind == ACOMM_SCATTER && !root)) {
        t.model = given[ROLE_LIKE] ? given[ROLE_LIKE] : given[ROLE_OUT];
        t.array = kind == ACOMM_RECV ? ACOMM_MESSAGE : ACOMM_WHOLE;
    }
    return t.model ? with_array(&t) : declined();
}

/* ---- the call ---- */

/* NotImplemented: for the slow path. */
static PyObject *short_way(const struct shortcut_method *m, struct shortcut_base *base, PyObject **given)
{
    bool message = acomm_operations[m->kind].array == ACOMM_MESSAGE, batched = message && base->batch && PyList_Check(base->batch);
    bool begins = m->begins || batched || given[ROLE_ASYNC] == Py_True;
    if (!base->shortcut)
        return declined();
    PyObject *result = take(base->shortcut, m, begins, given);
    if (batched && result && result != Py_NotImplemented && PyList_Append(base->batch, result))
        Py_CLEAR(result);
    return result;
}

PyObject *shortcut_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    struct shortcut_method *m = (struct shortcut_method *)self;
    Py_ssize_t nargs = (Py_ssize_t)(nargsf & ~ARGUMENTS_OFFSET);
    PyObject *given[ROLES] = {NULL};
    if (nargs && PyObject_TypeCheck(args[0], shortcut_base_type)
        && forms_sort(&m->form, args + 1, nargs - 1, names, given)) {
        PyObject *result = short_way(m, (struct shortcut_base *)args[0], given);
        if (result != Py_NotImplemented)
            return result;
        Py_DECREF(result);
    }
    PyObject *result = shortcut_slow(m, args, nargs, names);
    view_forget();
    return result;
}
