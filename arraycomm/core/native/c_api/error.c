/* Errors of the C API: a code at once, and a text on request. */
#include "c_api.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

_Thread_local struct error c_api_last;

int c_api_fail(int64_t number, int code, const acomm_failure *failure)
{
    c_api_last.number = number;
    c_api_last.code = code;
    c_api_last.told = false;
    c_api_last.failure = *failure;
    if (code == ACOMM_INTERRUPTED)
        interrupt_raise_soon();
    return code;
}

int c_api_say(int64_t number, int code, const char *why)
{
    c_api_last.number = number;
    c_api_last.code = code;
    c_api_last.told = true;
    c_api_last.failure.code = 0;
    snprintf(c_api_last.text, sizeof c_api_last.text, "%s", why);
    return code;
}

/* While it is held, the group can still make errors; NULL: it can't any more. */
static struct handle *error_hold(void)
{
    acomm_group *group;
    struct handle *handle = handle_enter(c_api_last.number, &group);
    if (!handle || (handle->shortcut && !atomic_load(&handle->ending)))
        return handle;
    handle_leave(handle);
    return NULL;
}

/* The exception from the group's own error path; an exception that it raises (Ctrl-C) is returned too. */
static PyObject *error_exception(const struct handle *handle)
{
    PyObject *error = operation_error(handle->shortcut, c_api_last.code, &c_api_last.failure);
    return error ? error : refuse_take();
}

PyObject *c_api_exception(void)
{
    if (c_api_last.told && c_api_last.code != ACOMM_CLOSED)
        return PyObject_CallFunction(PyExc_RuntimeError, "s", c_api_last.text);
    struct handle *handle = c_api_last.told ? NULL : error_hold();
    if (!handle)
        return Py_NewRef(Py_None);
    PyObject *found = error_exception(handle);
    handle_leave(handle);
    return found;
}

void c_api_say_exception(PyObject *error)
{
    PyObject *text = PyObject_Str(error), *kind = PyObject_GetAttrString((PyObject *)Py_TYPE(error), "__name__");
    const char *words = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const char *name = kind ? PyUnicode_AsUTF8AndSize(kind, NULL) : NULL;
    if (words && name)
        snprintf(c_api_last.text, sizeof c_api_last.text, "%s: %s", name, words);
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(kind);
}

/* Without Python: if the group is closed, or memory is out. */
static void error_explain_plainly(void)
{
    const struct handle *h = handle_find(c_api_last.number);
    const char *more = c_api_last.failure.code ? c_api_last.failure.text : "";
    snprintf(c_api_last.text, sizeof c_api_last.text, "rank %d of %d: %s%s%.190s", h ? h->rank : -1, h ? h->size : 0,
             acomm_code_text(c_api_last.code), *more ? ": " : "", more);
}

static void error_explain(void)
{
    struct handle *handle = error_hold();
    error_explain_plainly();
    if (handle) {
        PyGILState_STATE state = PyGILState_Ensure();
        PyObject *error = error_exception(handle);
        if (error)
            c_api_say_exception(error);
        PyErr_Clear();
        Py_XDECREF(error);
        PyGILState_Release(state);
        handle_leave(handle);
    }
    c_api_last.told = true;
}

size_t c_api_error(char *text, size_t bytes, int32_t *rank)
{
    if (c_api_last.code && !c_api_last.told)
        error_explain();
    if (rank)
        *rank = c_api_last.failure.code && c_api_last.failure.culprit >= 0 ? c_api_last.failure.culprit : -1;
    if (bytes)
        snprintf(text, bytes, "%s", c_api_last.text);
    return strlen(c_api_last.text);
}
