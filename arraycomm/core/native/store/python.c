/* The stores' interface for Python: a table, and a server. */
#include "native.h"
#include "store.h"

#define TABLE "arraycomm.store_table"
#define SERVER "arraycomm.store_server"

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

static PyObject *run_request(struct store_table *table, const char *data, size_t size)
{
    struct store_request request = {.member = true};
    struct store_buffer answer = {0};
    struct store_bytes missing;
    PyObject *result;
    if (store_request_read(&request, data, size) <= 0 || request.size != size || request.op == STORE_WILL)
        return PyErr_Format(PyExc_ValueError, "a request whose lengths do not add up");
    enum store_result state = store_request_run(table, &request, data, &answer, &missing);
    if (state == STORE_DONE)
        result = PyBytes_FromStringAndSize(answer.data, (Py_ssize_t)answer.size);
    else
        result = state == STORE_WAITS ? Py_NewRef(Py_None) : PyErr_NoMemory();
    store_buffer_free(&answer);
    return result;
}

/* store_apply(table, request) -> the answer, or None for one that has to wait; ValueError for an invalid request */
PyObject *store_python_apply(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *request;
    char *data;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OS", &capsule, &request) || PyBytes_AsStringAndSize(request, &data, &size))
        return NULL;
    struct store_table *table = PyCapsule_GetPointer(capsule, TABLE);
    return table ? run_request(table, data, (size_t)size) : NULL;
}

/* ---- a server ---- */

/* store_serve() -> server; OSError */
PyObject *store_python_serve(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    struct store_server *server = store_server_new();
    return server ? PyCapsule_New(server, SERVER, NULL) : PyErr_SetFromErrno(PyExc_OSError);
}

/* store_admit(server, descriptor[, complaints]): the server owns it from here on; OSError. With complaints the client is of
 * torch's kind; when it is disconnected a line is written to them, a pipe that does not block. */
PyObject *store_python_admit(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    int fd, complaints = STORE_MEMBER;
    if (!PyArg_ParseTuple(args, "Oi|i", &capsule, &fd, &complaints))
        return NULL;
    struct store_server *server = PyCapsule_GetPointer(capsule, SERVER);
    if (server && !store_server_admit(server, fd, complaints))
        return Py_NewRef(Py_None);
    return server ? PyErr_SetFromErrno(PyExc_OSError) : NULL;
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
