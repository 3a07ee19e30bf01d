/* What Python sees of stores: a table, a server, and a client's request on a connected socket. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include "native.h"
#include "store.h"

#define TABLE "arraycomm.store_table"
#define SERVER "arraycomm.store_server"
#define SMALL (16 << 10)  /* bytes taken from the socket at once */
#define POLL_NS 20000     /* about what sleeping and being woken cost */
#define MOST_SKIPPED 256

/* ---- frames to and from Python's objects ---- */

/* A request of `strings`, a list or tuple of bytes. -1 with an exception. */
static int encode(struct store_buffer *b, int code, PyObject *strings, uint32_t milliseconds)
{
    Py_ssize_t count = PySequence_Size(strings);
    if (count < 0)
        return -1;
    store_frame_begin(b, code, milliseconds, (uint32_t)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *string = PySequence_GetItem(strings, i);
        char *data;
        Py_ssize_t size;
        int failed = !string || PyBytes_AsStringAndSize(string, &data, &size);
        if (!failed)
            store_frame_put(b, (uint32_t)i, data, (size_t)size);
        Py_XDECREF(string);
        if (failed)
            return -1;
    }
    store_frame_end(b);
    if (b->failed)
        PyErr_Format(PyExc_ValueError, "a request of more than %lld bytes, or memory ran out", STORE_MAX_FRAME);
    return b->failed ? -1 : 0;
}

/* (code, [bytes, ...], goodbye) of an answer. */
static PyObject *decode(const char *data, size_t size, bool goodbye)
{
    struct store_frame frame;
    if (!store_frame_parse(&frame, data, size)) {
        PyErr_SetString(PyExc_ValueError, "a frame whose lengths do not add up");
        return NULL;
    }
    PyObject *list = PyList_New(frame.count);
    struct store_cursor cursor = store_frame_strings(&frame);
    for (struct store_bytes string; list && store_frame_next(&cursor, &string);) {
        PyObject *item = PyBytes_FromStringAndSize(string.data, string.size);
        if (!item || PyList_SetItem(list, cursor.index - 1, item)) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list ? Py_BuildValue("(iNO)", frame.code, list, goodbye ? Py_True : Py_False) : NULL;
}

/* ---- a table in this process ---- */

static void free_table(PyObject *capsule)
{
    store_table_free(PyCapsule_GetPointer(capsule, TABLE));
}

PyObject *store_python_table(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    struct store_table *table = store_table_new();
    return table ? PyCapsule_New(table, TABLE, free_table) : PyErr_NoMemory();
}

static PyObject *apply(struct store_table *table, const struct store_buffer *request)
{
    struct store_buffer answer = {0};
    struct store_frame frame;
    struct store_bytes missing;
    PyObject *result;
    store_frame_parse(&frame, request->data, request->size);
    if (store_table_apply(table, &frame, &answer, &missing))
        result = PyBytes_FromStringAndSize(missing.data, missing.size);
    else
        result = decode(answer.data, answer.size, false);
    store_buffer_free(&answer);
    return result;
}

/* store_apply(table, op, strings) -> (code, strings, False), or the bytes of the key that is missing */
PyObject *store_python_apply(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *strings;
    int op;
    if (!PyArg_ParseTuple(args, "OiO", &capsule, &op, &strings))
        return NULL;
    struct store_table *table = PyCapsule_GetPointer(capsule, TABLE);
    struct store_buffer request = {0};
    PyObject *result = NULL;
    if (table && !encode(&request, op, strings, 0))
        result = apply(table, &request);
    store_buffer_free(&request);
    return result;
}

/* ---- a server ---- */

/* store_serve() -> server; OSError */
PyObject *store_python_serve(PyObject *module, PyObject *none)
{
    (void)module, (void)none;
    struct store_server *server = store_server_new();
    return server ? PyCapsule_New(server, SERVER, NULL) : PyErr_SetFromErrno(PyExc_OSError);
}

/* store_admit(server, descriptor): the server owns it from here on; OSError */
PyObject *store_python_admit(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    int fd;
    if (!PyArg_ParseTuple(args, "Oi", &capsule, &fd))
        return NULL;
    struct store_server *server = PyCapsule_GetPointer(capsule, SERVER);
    if (!server)
        return NULL;
    return store_server_admit(server, fd) ? PyErr_SetFromErrno(PyExc_OSError) : Py_NewRef(Py_None);
}

/* store_counts(server) -> (clients, requests that wait) */
PyObject *store_python_counts(PyObject *module, PyObject *capsule)
{
    (void)module;
    struct store_server *server = PyCapsule_GetPointer(capsule, SERVER);
    int clients, waiting;
    if (!server)
        return NULL;
    store_server_counts(server, &clients, &waiting);
    return Py_BuildValue("(ii)", clients, waiting);
}

/* store_end(server, seconds): the server must not be used afterwards */
PyObject *store_python_end(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    double linger;
    if (!PyArg_ParseTuple(args, "Od", &capsule, &linger))
        return NULL;
    struct store_server *server = PyCapsule_GetPointer(capsule, SERVER);
    if (!server)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    store_server_end(server, (int64_t)(linger * 1e9));
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

/* ---- a client's request ---- */

struct exchange {
    int fd;
    bool posted;
    int64_t end;                 /* CLOCK_MONOTONIC, ns */
    struct store_buffer request, answer;
    size_t sent;
};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Below: 0, or an errno. After EINTR they go on where they were. No GIL. */

static int put(struct exchange *x)
{
    while (x->sent < x->request.size) {
        ssize_t sent = send(x->fd, x->request.data + x->sent, x->request.size - x->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return errno;
        if (sent < 0 && now() >= x->end)
            return ETIMEDOUT;
        x->sent += sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

/* Whether the whole answer is there: 0, EAGAIN when not, or another errno. */
static int whole(const struct exchange *x)
{
    int64_t size = store_frame_size(x->answer.data, x->answer.size);
    if (size < 0)
        return EPROTO;
    return size && (size_t)size <= x->answer.size ? 0 : EAGAIN; /* more of it: the goodbye follows */
}

/* Polling saves the wake-ups, which cost more than all the rest where the processor is virtual. It pays only while the
 * server runs beside us: after a poll in vain, that many requests go without. Of the process; races do no harm. */
static _Atomic int skip, next_skip = 1;

static ssize_t poll_answer(int fd, char *data, size_t room)
{
    if (skip > 0) {
        skip--;
        return -1;
    }
    for (int64_t until = now() + POLL_NS; now() < until;) {
        ssize_t size = recv(fd, data, room, MSG_DONTWAIT);
        if (size >= 0 || errno != EAGAIN) {
            next_skip = 1;
            return size;
        }
    }
    skip = next_skip;
    next_skip = next_skip < MOST_SKIPPED ? 4 * next_skip : MOST_SKIPPED;
    errno = EAGAIN;
    return -1;
}

static int get(struct exchange *x)
{
    char data[SMALL];
    int state = EAGAIN;
    errno = EAGAIN;
    ssize_t size = poll_answer(x->fd, data, sizeof data);
    while (true) {
        if (!size)
            return ECONNRESET;
        if (size < 0 && errno != EAGAIN)
            return errno;
        if (size < 0 && now() >= x->end)
            return ETIMEDOUT;
        if (size > 0 && !store_buffer_append(&x->answer, data, (size_t)size))
            return ENOMEM;
        state = size > 0 ? whole(x) : EAGAIN;
        if (state != EAGAIN)
            return state;
        size = recv(x->fd, data, sizeof data, 0); /* its timeout is short: see above */
    }
}

/* A posted request would not notice that the server went: its end of the connection tells, or the goodbye that lies there. */
static int exchange(struct exchange *x)
{
    char byte;
    ssize_t size = x->posted && !x->sent ? recv(x->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : -1;
    if (size > 0)
        x->posted = false;
    int failed = size < 0 ? put(x) : size ? 0 : ECONNRESET;
    if (failed == EPIPE || failed == ECONNRESET)
        return get(x) ? failed : 0;
    return failed || x->posted ? failed : get(x);
}

static PyObject *run(struct exchange *x)
{
    int failed;
    do {
        Py_BEGIN_ALLOW_THREADS
        failed = exchange(x);
        Py_END_ALLOW_THREADS
        if (failed == EINTR && PyErr_CheckSignals())
            return NULL;
    } while (failed == EINTR);
    if (!failed && x->posted)
        return Py_BuildValue("(i[]O)", STORE_OK, Py_False);
    if (!failed) {
        size_t size = (size_t)store_frame_size(x->answer.data, x->answer.size);
        return decode(x->answer.data, size, size < x->answer.size || x->answer.data[4] == STORE_CLOSED);
    }
    errno = failed;
    return failed == ENOMEM ? PyErr_NoMemory() : PyErr_SetFromErrno(PyExc_OSError);
}

/* store_request(descriptor, code, strings, milliseconds, grace) -> (code, strings, whether the server says goodbye, with the
 * answer or behind it): sends a request on a socket and waits for its answer, `grace` seconds longer than the request may wait in the server. The socket blocks, with timeouts
 * (SO_RCVTIMEO, SO_SNDTIMEO) of a second or less, after which the clock is looked at. OSError, ValueError. */
PyObject *store_python_request(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *strings, *result = NULL;
    unsigned int milliseconds;
    int code;
    double grace;
    struct exchange x = {0};
    if (!PyArg_ParseTuple(args, "iiOId", &x.fd, &code, &strings, &milliseconds, &grace))
        return NULL;
    x.posted = code & STORE_POSTED;
    x.end = now() + milliseconds * 1000000ll + (int64_t)(grace * 1e9);
    if (!encode(&x.request, code, strings, milliseconds))
        result = run(&x);
    store_buffer_free(&x.request);
    store_buffer_free(&x.answer);
    return result;
}

/* ---- a posted SET, short, on a Unix socket ---- */

#define SHORT 1024 /* bytes of a frame that is made on the stack */

/* The UTF-8 of a str, or a bytes' own; false for anything else. */
static bool text_of(PyObject *object, struct store_bytes *out)
{
    Py_ssize_t size = 0;
    char *data = NULL;
    if (PyUnicode_Check(object))
        out->data = PyUnicode_AsUTF8AndSize(object, &size);
    else
        out->data = PyBytes_Check(object) && !PyBytes_AsStringAndSize(object, &data, &size) ? data : NULL;
    if (!out->data)
        PyErr_Clear();
    out->size = out->data && size < SHORT ? (uint32_t)size : SHORT;
    return out->data;
}

/* store_post(descriptor, key, value) -> whether it was sent. If not, the long way (store_request) does it or says why not.
 * Sending takes less than giving the GIL away, and does not block. On a Unix socket a short message is sent whole, and fails
 * where the other end is closed. */
PyObject *store_python_post(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    struct store_bytes key, value;
    char data[SHORT];
    if (count != 3 || !PyUnicode_Check(args[1]) || !text_of(args[1], &key) || !text_of(args[2], &value)
        || !key.size || !key.data[0] || STORE_HEAD + 8 + key.size + value.size > SHORT)
        return Py_NewRef(Py_False);
    int fd = (int)PyLong_AsLong(args[0]);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    struct store_buffer frame = {.data = data, .room = sizeof data};
    store_frame_begin(&frame, STORE_SET | STORE_POSTED, 0, 2);
    store_frame_put(&frame, 0, key.data, key.size);
    store_frame_put(&frame, 1, value.data, value.size);
    store_frame_end(&frame);
    ssize_t sent = send(fd, frame.data, frame.size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0 && sent < (ssize_t)frame.size)
        shutdown(fd, SHUT_RDWR); /* a frame of which a part is missing: nothing may follow */
    return Py_NewRef(sent == (ssize_t)frame.size ? Py_True : Py_False);
}
