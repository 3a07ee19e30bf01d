/* What a receive gives: arraycomm.core.work.Received, a named tuple. */
#include "native.h"

static PyObject *received_type;

PyObject *received_new(PyObject *array, int source, int64_t tag)
{
    if (!received_type)
        received_type = refuse_call("received", NULL, NULL);
    /* tuple.__new__, which is what the class would call in the end, from Python and six times slower. */
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *fields = received_type ? Py_BuildValue("((OiL))", array, source, (long long)tag) : NULL;
    PyObject *result = fields ? make((PyTypeObject *)received_type, fields, NULL) : NULL;
    Py_XDECREF(fields);
    Py_DECREF(array);
    return result;
}
