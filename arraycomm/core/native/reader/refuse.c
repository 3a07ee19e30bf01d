/* Calls of arraycomm.core.arrays.arrays, which has the rare cases: explanations of errors, and other libraries' importers. */
#include "native.h"

PyObject *refuse_call(const char *function, PyObject *first, PyObject *second)
{
    PyObject *module = PyImport_ImportModule("arraycomm.core.arrays.arrays");
    PyObject *callable = module ? PyObject_GetAttrString(module, function) : NULL;
    PyObject *result = callable ? PyObject_CallFunctionObjArgs(callable, first, second, NULL) : NULL;
    Py_XDECREF(callable);
    Py_XDECREF(module);
    return result;
}

PyObject *refuse_take(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

PyObject *refuse_raise(PyObject *error)
{
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

int refuse_forget(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

int refuse(const char *function, PyObject *first, PyObject *second)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return -1; /* Ctrl-C, for example: it does not concern the array */
    PyObject *cause = refuse_take();
    PyObject *error = refuse_call(function, first, second ? second : cause ? cause : Py_None);
    if (error && cause)
        PyException_SetCause(error, Py_NewRef(cause));
    refuse_raise(error);
    Py_XDECREF(cause);
    return -1;
}

int refuse_dlpack_dtype(PyObject *object, struct dl_dtype dtype)
{
    PyObject *told = PyUnicode_FromFormat("of DLPack's code %d, %d bits, %d lanes", dtype.code, dtype.bits, dtype.lanes);
    int rc = told ? refuse("bad_dlpack_dtype", object, told) : -1;
    Py_XDECREF(told);
    return rc;
}
