/* What a receive gives: arraycomm.core.work.Received, a named tuple. */
#include "native.h"

static PyObject *received_type;

/* (array, source, tag); NULL with an exception. */
static PyObject *fields_of(PyObject *array, int source, int64_t tag)
{
    PyObject *from = PyLong_FromLong(source), *label = PyLong_FromLongLong(tag);
    PyObject *fields = from && label ? PyTuple_Pack(3, array, from, label) : NULL;
    Py_XDECREF(from);
    Py_XDECREF(label);
    return fields;
}

PyObject *received_new(PyObject *array, int source, int64_t tag)
{
    if (!received_type)
        received_type = refuse_call("received", NULL, NULL);
    /* tuple.__new__, which is what the class would call in the end, from Python and six times slower. */
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *fields = received_type ? fields_of(array, source, tag) : NULL;
    PyObject *arguments = fields ? PyTuple_Pack(1, fields) : NULL;
    PyObject *result = arguments ? make((PyTypeObject *)received_type, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    Py_DECREF(array);
    return result;
}
