/* What a receive gives: arraycomm.core.group.work.Received, a named tuple. */
#include "native.h"

#if PY_VERSION_HEX < 0x030B0000
#define Py_Version PY_VERSION_HEX
#endif
#define HASHES_SINCE 0x030E0000 /* a tuple keeps its hash in a field of its own, in which zeros are one: tuple.__new__ sets it */

static PyObject *received_type;

/* Takes over the fields. NULL with an exception. */
static PyObject *of_class(PyObject *fields)
{
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = PyTuple_Pack(1, fields);
    PyObject *result = arguments ? make((PyTypeObject *)received_type, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_DECREF(fields);
    return result;
}

PyObject *received_new(PyObject *array, int source, int64_t tag)
{
    bool hashes = Py_Version >= HASHES_SINCE;
    if (!received_type)
        received_type = refuse_call("received", NULL, NULL);
    /* Its fields are set as those of any new tuple: the class, called from Python, takes twenty times as long. */
    PyObject *result = !received_type ? NULL : hashes ? PyTuple_New(3) : PyType_GenericAlloc((PyTypeObject *)received_type, 3);
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
    return hashes ? of_class(result) : result;
}
