/* What a receive gives: arraycomm.core.work.Received, a named tuple. */
#include "native.h"

static PyObject *received_type;

PyObject *received_new(PyObject *array, int source, int64_t tag)
{
    if (!received_type)
        received_type = refuse_call("received", NULL, NULL);
    /* Its fields are set as those of any new tuple: the class, called from Python, takes twenty times as long. */
    PyObject *result = received_type ? PyType_GenericAlloc((PyTypeObject *)received_type, 3) : NULL;
    PyObject *from = PyLong_FromLong(source), *label = PyLong_FromLongLong(tag);
    if (!result || !from || !label) {
        Py_XDECREF(result);
        Py_XDECREF(from);
        Py_XDECREF(label);
        Py_DECREF(array);
        return NULL;
    }
    PyTuple_SetItem(result, 0, array);
    PyTuple_SetItem(result, 1, from);
    PyTuple_SetItem(result, 2, label);
    return result;
}
