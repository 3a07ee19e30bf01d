/* The way to arraycomm.core.arrays.arrays for what is rare and needs words: explanations and other libraries' importers. */
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

/* The pending exception as an object with its traceback, or None. */
static PyObject *take_cause(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!type)
        return Py_NewRef(Py_None);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value ? value : Py_NewRef(Py_None);
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
        return -1; /* Ctrl-C, say: it is nobody's fault here */
    PyObject *cause = take_cause();
    PyObject *error = second ? refuse_call(function, first, second) : refuse_call(function, first, cause);
    if (error) {
        if (cause != Py_None)
            PyException_SetCause(error, Py_NewRef(cause));
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    Py_DECREF(cause);
    return -1;
}

int refuse_dlpack_dtype(PyObject *object, struct dl_dtype dtype)
{
    PyObject *told = PyUnicode_FromFormat("of DLPack's code %d, %d bits, %d lanes", dtype.code, dtype.bits, dtype.lanes);
    int rc = told ? refuse("bad_dlpack_dtype", object, told) : -1;
    Py_XDECREF(told);
    return rc;
}
