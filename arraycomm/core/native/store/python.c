/* What Python sees of stores: a table, a server, and a client's requests on a connection. */
#include <errno.h>
#include <stdlib.h>
#include "base/clock.h"
#include "native.h"
#include "store.h"

#define TABLE "arraycomm.store_table"
#define SERVER "arraycomm.store_server"
#define LINE "arraycomm.store_line"
#define SHORT 1024 /* bytes of a frame that is made on the stack, less than PIPE_BUF; and of what is called a short key */

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
    if (b->failed && b->large)
        PyErr_Format(PyExc_ValueError, "a request of more than %lld bytes", STORE_MAX_FRAME);
    else if (b->failed)
        PyErr_NoMemory();
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

PyObject *store_python_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
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
    else if (answer.failed)
        result = PyErr_NoMemory();
    else
        result = decode(answer.data, answer.size, false);
    store_buffer_free(&answer);
    return result;
}

/* store_apply(table, op, strings) -> (code, strings, False), or the bytes of the key that is missing */
PyObject *store_python_apply(PyObject *Py_UNUSED(module), PyObject *args)
{
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
PyObject *store_python_serve(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    struct store_server *server = store_server_new();
    return server ? PyCapsule_New(server, SERVER, NULL) : PyErr_SetFromErrno(PyExc_OSError);
}

/* store_admit(server, descriptor[, world size, complaints]): the server owns it from here on; OSError. With the last two the client
 * speaks the protocol of torch's store; 0 is no world size. When it is disconnected a line is written to `complaints`, a pipe that
 * does not block. */
PyObject *store_python_admit(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    int fd, complaints = -1;
    long long world_size = 0;
    if (!PyArg_ParseTuple(args, "Oi|Li", &capsule, &fd, &world_size, &complaints))
        return NULL;
    struct store_server *server = PyCapsule_GetPointer(capsule, SERVER);
    struct store_torch *torch = server && complaints >= 0 ? store_torch_new(world_size, complaints) : NULL;
    if (complaints >= 0 && !torch)
        return server ? PyErr_NoMemory() : NULL;
    if (server && !store_server_admit(server, fd, torch))
        return Py_NewRef(Py_None);
    store_torch_free(torch);
    return server ? PyErr_SetFromErrno(PyExc_OSError) : NULL;
}

PyObject *store_python_waiting(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    struct store_server *server = PyCapsule_GetPointer(capsule, SERVER);
    return server ? PyLong_FromLong(store_server_waiting(server)) : NULL;
}

/* store_end(server, seconds): the server must not be used afterwards */
PyObject *store_python_end(PyObject *Py_UNUSED(module), PyObject *args)
{
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

/* ---- a client's end of a connection ---- */

static void free_line(PyObject *capsule)
{
    store_line_free(PyCapsule_GetPointer(capsule, LINE));
}

static int64_t after(double seconds)
{
    return clock_now() + (int64_t)(seconds * 1e9);
}

/* store_line(descriptor, seconds) -> line; the socket must live as long. With seconds above 0 a server on this host is asked
 * to go over to pipes, which takes that long at most. OSError. */
PyObject *store_python_line(PyObject *Py_UNUSED(module), PyObject *args)
{
    int sock, failed = 0;
    double seconds;
    if (!PyArg_ParseTuple(args, "id", &sock, &seconds))
        return NULL;
    struct store_line *line = store_line_new(sock);
    PyObject *capsule = line ? PyCapsule_New(line, LINE, free_line) : PyErr_NoMemory();
    if (!capsule) {
        free(line);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    if (seconds > 0)
        failed = store_line_offer(line, after(seconds));
    Py_END_ALLOW_THREADS
    if (!failed)
        return capsule;
    Py_DECREF(capsule);
    errno = failed;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *store_python_run(struct store_line *line, const struct store_exchange *x)
{
    int failed;
    do {
        Py_BEGIN_ALLOW_THREADS
        failed = store_line_exchange(line);
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

/* The UTF-8 of a str, or a bytes' own; false for anything else. */
static bool store_python_text_of(PyObject *object, struct store_bytes *out)
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

/* store_request(line, code, strings, milliseconds, grace) -> (code, strings, whether the server says goodbye, with the answer
 * or behind it): sends a request and waits for its answer, `grace` seconds longer than the request may wait in the server.
 * OSError, ValueError. */
PyObject *store_python_request(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *result = NULL;
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "5 arguments are needed, not %zd", count);
    struct store_line *line = PyCapsule_GetPointer(args[0], LINE);
    int code = (int)PyLong_AsLong(args[1]);
    uint32_t milliseconds = (uint32_t)PyLong_AsUnsignedLong(args[3]);
    double grace = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred())
        return NULL;
    struct store_exchange *x = store_line_begin(line, code & STORE_POSTED, after(milliseconds / 1000. + grace));
    if (!encode(&x->request, code, args[2], milliseconds))
        result = store_python_run(line, x);
    store_line_end(line);
    return result;
}

/* store_post(line, key, value) -> whether it was sent. If not, the slow path (store_request) does it or says why not.
 * Sending takes less than giving the GIL away, and does not block. */
PyObject *store_python_post(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    struct store_bytes key, value;
    char data[SHORT];
    if (count != 3 || !PyUnicode_Check(args[1]) || !store_python_text_of(args[1], &key) || !store_python_text_of(args[2], &value)
        || !key.size || !key.data[0] || STORE_HEAD + 8 + key.size + value.size > SHORT)
        return Py_NewRef(Py_False);
    struct store_line *line = PyCapsule_GetPointer(args[0], LINE);
    if (!line)
        return NULL;
    struct store_buffer frame = {.data = data, .room = sizeof data};
    store_frame_begin(&frame, STORE_SET | STORE_POSTED, 0, 2);
    store_frame_put(&frame, 0, key.data, key.size);
    store_frame_put(&frame, 1, value.data, value.size);
    store_frame_end(&frame);
    return Py_NewRef(store_line_post(line, frame.data, frame.size) ? Py_True : Py_False);
}
