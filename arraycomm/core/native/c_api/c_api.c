/* The C API (arraycomm.h): its table, and its parts that need Python. */
#include "c_api.h"

static int group_place(int64_t number, int32_t *rank, int32_t *size)
{
    const struct handle *handle = handle_find(number);
    if (!handle)
        return c_api_say(number, ACOMM_ARGUMENT, "no group of this process has this handle");
    *rank = handle->rank;
    *size = handle->size;
    return 0;
}

/* Acquires the GIL. Returns the Group, to be passed to python_answer(); NULL: refused, the GIL is released. */
static PyObject *python_ask(int64_t number, PyGILState_STATE *state)
{
    *state = PyGILState_Ensure();
    const struct handle *handle = handle_find(number);
    PyObject *owner = handle ? Py_XNewRef(handle->owner) : NULL;
    if (!owner) {
        c_api_say(number, handle ? ACOMM_CLOSED : ACOMM_ARGUMENT,
                  handle ? "the group is closed" : "no group of this process has this handle");
        PyGILState_Release(*state);
    }
    return owner;
}

static int python_failed(int64_t number)
{
    bool ours = PyErr_ExceptionMatches(PyExc_Exception);
    PyObject *error = refuse_take();
    c_api_say(number, ours ? ACOMM_PYTHON : ACOMM_INTERRUPTED, "an exception of Python's");
    c_api_say_exception(error);
    if (!ours)
        interrupt_keep(error);
    Py_XDECREF(error);
    return c_api_last.code;
}

/* Takes ownership of the method's result and the Group; releases the GIL. out: NULL, or where the handle of a new group goes. */
static int python_answer(int64_t number, PyObject *owner, PyObject *result, int64_t *out, PyGILState_STATE state)
{
    int code = 0;
    PyObject *handle = result && out && result != Py_None ? PyObject_CallMethod(result, "handle", NULL) : NULL;
    if (out && result)
        *out = handle ? PyLong_AsLongLong(handle) : 0;
    if (PyErr_Occurred())
        code = python_failed(number);
    Py_XDECREF(handle);
    Py_XDECREF(result);
    Py_DECREF(owner);
    PyGILState_Release(state);
    return code;
}

static int group_split(int64_t number, int32_t color, int32_t key, int64_t *out)
{
    PyGILState_STATE state;
    PyObject *owner = python_ask(number, &state);
    if (!owner)
        return c_api_last.code;
    PyObject *made = color < 0 ? PyObject_CallMethod(owner, "split", "Oi", Py_None, key)
                               : PyObject_CallMethod(owner, "split", "ii", color, key);
    return python_answer(number, owner, made, out, state);
}

static int group_subgroup(int64_t number, const int32_t *members, int32_t count, const char *name, int64_t *out)
{
    PyGILState_STATE state;
    PyObject *owner = python_ask(number, &state);
    if (!owner)
        return c_api_last.code;
    PyObject *list = PyList_New(count), *made = NULL;
    for (int i = 0; list && i < count; i++) {
        PyObject *rank = PyLong_FromLong(members[i]);
        if (!rank || PyList_SetItem(list, i, rank))
            Py_CLEAR(list);
    }
    if (list)
        made = PyObject_CallMethod(owner, "subgroup", "Os", list, name);
    Py_XDECREF(list);
    return python_answer(number, owner, made, out, state);
}

static int group_end(int64_t number, const char *method, const char *reason)
{
    PyGILState_STATE state;
    PyObject *owner = python_ask(number, &state);
    if (!owner)
        return c_api_last.code;
    return python_answer(number, owner, PyObject_CallMethod(owner, method, "s", reason ? reason : ""), NULL, state);
}

static int group_abort(int64_t number, const char *reason)
{
    return group_end(number, "abort", reason);
}

static int group_close(int64_t number, const char *reason)
{
    return group_end(number, "close", reason);
}

const acomm_api c_api = {
    .version = ACOMM_API_VERSION, .bytes = sizeof c_api, .place = group_place, .run = c_api_run, .exchange = c_api_exchange,
    .start = c_api_start, .wait = c_api_wait, .received = c_api_received, .finish = c_api_finish, .free = c_api_free,
    .error = c_api_error, .split = group_split, .subgroup = group_subgroup, .abort = group_abort, .close = group_close,
};

__attribute__((visibility("default"))) const acomm_api *arraycomm_api(uint32_t version)
{
    return version && version <= ACOMM_API_VERSION ? &c_api : NULL;
}
