/* TraceFile: writes operations into a trace's file (arraycomm/core/diagnostics/trace.py), as JSON of the "Trace Event Format".
 * Lines are kept until a second has passed or there are many. What is the same for operations of one kind, and a group's name,
 * are texts of Python's. */
#include "flight.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "store/store.h"

#define INTERVAL_NS 1000000000u /* between writes */
#define MOST ((size_t)1 << 20)  /* bytes kept */
#define PART 160                /* bytes that an event's keys and numbers take at most, between texts */

struct trace {
    struct flight flight;
    int fd;                  /* -1: closed, or it failed */
    pid_t pid;
    PyObject *heads;         /* a tuple of texts: an operation's name, category and rank */
    PyObject **names;        /* of groups, by row */
    int rows;
    uint64_t asynchronous;   /* how many of these were told */
    uint64_t due;
    struct store_buffer kept; /* lines */
    pthread_mutex_t writing; /* the file; never waited for with the GIL */
};

/* ---- lines ---- */

/* Room for so much more. */
static bool reserve(struct trace *t, size_t bytes)
{
    t->kept.failed = false;
    return store_buffer_reserve(&t->kept, bytes);
}

static char *flight_trace_put(char *to, const char *text, size_t bytes)
{
    memcpy(to, text, bytes);
    return to + bytes;
}

#define PUT(to, text) flight_trace_put(to, text, sizeof text - 1)

static char *flight_trace_put_number(char *to, uint64_t n)
{
    char digits[20], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + n % 10);
    while (n /= 10);
    return flight_trace_put(to, at, (size_t)(digits + sizeof digits - at));
}

/* Nanoseconds, as microseconds with three places. */
static char *put_time(char *to, uint64_t ns)
{
    to = flight_trace_put_number(to, ns / 1000);
    *to++ = '.';
    for (uint64_t scale = 100, rest = ns % 1000; scale; scale /= 10)
        *to++ = (char)('0' + rest / scale % 10);
    return to;
}

struct text { char *at; size_t bytes; };

static struct text flight_trace_text_of(PyObject *bytes)
{
    Py_ssize_t n = 0;
    char *at = NULL;
    if (!bytes || !PyBytes_Check(bytes) || PyBytes_AsStringAndSize(bytes, &at, &n))
        return (struct text){(char *)"", 0};
    return (struct text){at, (size_t)n};
}

static char *put_text(char *to, struct text text)
{
    return flight_trace_put(to, text.at, text.bytes);
}

/* ---- events ---- */

static char *put_begin(char *to, const struct flight_entry *e, struct text head, char phase)
{
    to = PUT(to, ",\n{\"ph\":\"");
    *to++ = phase;
    to = PUT(to, "\",");
    to = put_text(to, head);
    to = PUT(to, ",\"tid\":");
    to = flight_trace_put_number(to, (uint32_t)e->thread);
    if (phase != 'X') { /* local: shown with the rank's other tracks */
        to = PUT(to, ",\"id2\":{\"local\":\"");
        to = flight_trace_put_number(to, e->number);
        to = PUT(to, "\"}");
    }
    return PUT(to, ",\"ts\":");
}

static char *put_about(char *to, const struct flight_entry *e, struct text group, struct text kind, struct text error)
{
    to = PUT(to, ",\"args\":{\"group\":");
    to = put_text(to, group);
    if (e->sequence) {
        to = PUT(to, ",\"sequence\":");
        to = flight_trace_put_number(to, e->sequence);
    }
    if (e->called) {
        to = PUT(to, ",\"called_us\":");
        to = put_time(to, e->called - e->begun);
    }
    to = put_text(to, kind);
    to = put_text(to, error);
    return PUT(to, "}}");
}

/* A complete event, or both ends of an asynchronous one. */
static void flight_trace_tell(struct trace *t, struct flight_entry *e, uint64_t now, struct text error)
{
    struct text head = flight_trace_text_of(PyTuple_GetItem(t->heads, e->operation)), group = flight_trace_text_of(t->names[e->row]), kind = flight_trace_text_of(e->kind);
    if (!reserve(t, 3 * PART + 2 * head.bytes + group.bytes + kind.bytes + error.bytes)) {
        PyErr_NoMemory();
        PyErr_WriteUnraisable((PyObject *)t);
        return;
    }
    char *to = t->kept.data + t->kept.size;
    if (e->called)
        e->number = ++t->asynchronous;
    to = put_begin(to, e, head, e->called ? 'b' : 'X');
    to = put_time(to, e->begun);
    if (!e->called) {
        to = PUT(to, ",\"dur\":");
        to = put_time(to, now - e->begun);
    }
    to = put_about(to, e, group, kind, error);
    if (e->called) {
        to = put_begin(to, e, head, 'e');
        to = put_time(to, now);
        to = PUT(to, ",\"args\":{}}");
    }
    t->kept.size = (size_t)(to - t->kept.data);
}

/* ---- the file ---- */

/* No GIL. 0 or errno. */
static int write_all(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno != EINTR)
            return errno;
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static void let_go(struct trace *t)
{
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

/* last: what ends the file, or NULL. Other threads may run, and append: they write after us, and nothing after the end. Nothing in
 * a forked child: what it has is its parent's to write. */
static void flush(struct trace *t, const struct text *last)
{
    int errnum = 0;
    t->due = (uint64_t)clock_now() + INTERVAL_NS;
    if (t->fd < 0 || getpid() != t->pid) {
        t->kept.size = 0;
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&t->writing);
    Py_END_ALLOW_THREADS
    struct store_buffer mine = t->kept;
    t->kept = (struct store_buffer){0};
    Py_BEGIN_ALLOW_THREADS
    errnum = t->fd < 0 ? 0 : write_all(t->fd, mine.data, mine.size);
    if (!errnum && last && t->fd >= 0)
        errnum = write_all(t->fd, last->at, last->bytes);
    if (errnum || last)
        let_go(t);
    pthread_mutex_unlock(&t->writing);
    Py_END_ALLOW_THREADS
    mine.size = 0;
    if (t->kept.data)
        free(mine.data);
    else
        t->kept = mine;
    if (errnum && t->flight.teller) /* it says that the file ends here: the program goes on */
        Py_XDECREF(flight_answer(PyObject_CallMethod(t->flight.teller, "failed", "i", errnum), t->flight.teller));
}

/* ---- operations ---- */

static void flight_trace_end(struct flight_entry *e, uint64_t now, PyObject *error, PyObject *text)
{
    static char unknown[] = ",\"error\":\"unknown: nobody asked for it\"";
    struct trace *t = (struct trace *)e->flight;
    if (t->fd < 0)
        return;
    struct text none = {unknown, error ? sizeof unknown - 1 : 0};
    flight_trace_tell(t, e, now, text ? flight_trace_text_of(text) : none);
    if (now > t->due || t->kept.size > MOST)
        flush(t, NULL);
}

static const struct flight_writer writer = {.end = flight_trace_end};

/* ---- the type ---- */

/* TraceFile(descriptor, heads, teller): the descriptor is this object's from here on. */
static PyObject *flight_trace_construct(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    int fd;
    PyObject *heads, *teller;
    if (!PyArg_ParseTuple(args, "iOO:TraceFile", &fd, &heads, &teller))
        return NULL;
    if (!PyTuple_Check(heads) || PyTuple_Size(heads) != FLIGHT_OPERATIONS) {
        PyErr_Format(PyExc_ValueError, "there are %d operations", FLIGHT_OPERATIONS);
        return NULL;
    }
    struct trace *t = (struct trace *)PyType_GenericAlloc(type, 0);
    if (!t)
        return NULL;
    pthread_mutex_init(&t->writing, NULL);
    t->flight.writer = &writer;
    t->flight.teller = Py_NewRef(teller);
    t->heads = Py_NewRef(heads);
    t->pid = getpid();
    t->fd = fd;
    return (PyObject *)t;
}

static void flight_trace_dealloc(PyObject *self)
{
    struct trace *t = (struct trace *)self;
    Py_XDECREF(t->heads);
    for (int row = 0; row < t->rows; row++)
        Py_DECREF(t->names[row]);
    let_go(t);
    free(t->names);
    free(t->flight.groups);
    free(t->kept.data);
    pthread_mutex_destroy(&t->writing);
    native_dealloc(self);
}

static PyObject *add_group(PyObject *self, PyObject *name)
{
    struct trace *t = (struct trace *)self;
    size_t rows = (size_t)t->rows + 1;
    PyObject **names = realloc(t->names, rows * sizeof *names);
    t->names = names ? names : t->names;
    struct flight_group *groups = names ? realloc(t->flight.groups, rows * sizeof *groups) : NULL;
    if (!groups)
        return PyErr_NoMemory();
    t->flight.groups = groups;
    names[t->rows] = Py_NewRef(name);
    groups[t->rows] = (struct flight_group){0};
    return PyLong_FromLong(t->rows++);
}

static PyObject *flight_trace_append(PyObject *self, PyObject *line)
{
    struct trace *t = (struct trace *)self;
    struct text text = flight_trace_text_of(line);
    if (!reserve(t, text.bytes))
        return PyErr_NoMemory();
    t->kept.size = (size_t)(put_text(t->kept.data + t->kept.size, text) - t->kept.data);
    return Py_NewRef(Py_None);
}

static PyObject *flush_method(PyObject *self, PyObject *Py_UNUSED(none))
{
    flush((struct trace *)self, NULL);
    return Py_NewRef(Py_None);
}

static PyObject *close_method(PyObject *self, PyObject *last)
{
    struct text text = flight_trace_text_of(last);
    flush((struct trace *)self, &text);
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"begin", flight_begin_method, METH_VARARGS, "begin(row, operation, peer, kind, nbytes) -> FlightEntry"},
    {"add_group", add_group, METH_O, "add_group(name, as JSON) -> its row"},
    {"append", flight_trace_append, METH_O, "append(text)"},
    {"flush", flush_method, METH_NOARGS, "Writes what is kept."},
    {"close", close_method, METH_O, "close(text): writes what is kept and this, and nothing afterwards."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Writes operations into a trace's file (arraycomm.core.diagnostics.trace)."},
    {Py_tp_new, flight_trace_construct},
    {Py_tp_methods, methods},
    {Py_tp_traverse, flight_traverse},
    {Py_tp_clear, flight_clear},
    {Py_tp_dealloc, flight_trace_dealloc},
    {0, NULL},
};
PyType_Spec flight_trace_spec = {"arraycomm._engine.TraceFile", sizeof(struct trace), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
