/* Results: a Buffer that allocate() made, as an array of the library that the input came from. */
#include "native.h"

static PyObject *ndarray; /* numpy's, found when the first numpy array comes back */

static PyObject *wrap_numpy(struct buffer *b)
{
    PyObject *descr = dtype_descr(b->dtype);
    if (descr && !ndarray)
        ndarray = refuse_call("numpy_ndarray", NULL, NULL);
    if (!descr || !ndarray)
        return NULL;
    return PyObject_CallFunctionObjArgs(ndarray, b->shape, descr, (PyObject *)b, NULL);
}

static PyObject *wrap_exchange(struct buffer *b, const struct dl_exchange *exchange)
{
    void *array = NULL;
    struct dl_managed *managed = export_managed(b);
    if (!managed || exchange->import_managed(managed, &array))
        return NULL;
    return array;
}

/* wrap(buffer, template) */
PyObject *wrap_array(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 2 || Py_TYPE(args[0]) != buffer_type || !((struct buffer *)args[0])->memory) {
        PyErr_SetString(PyExc_TypeError, "wrap(buffer, template) takes a Buffer made by allocate() or pack(), and an array");
        return NULL;
    }
    struct buffer *b = (struct buffer *)args[0];
    const struct view_type *type = view_type(args[1]);
    if (type->kind == VIEW_NUMPY)
        return wrap_numpy(b);
    if (type->kind == VIEW_EXCHANGE && type->exchange->import_managed)
        return wrap_exchange(b, type->exchange);
    static PyObject *elsewhere; /* looking it up costs 0.5 us */
    if (!elsewhere)
        elsewhere = refuse_call("elsewhere", NULL, NULL);
    return elsewhere ? PyObject_CallFunctionObjArgs(elsewhere, args[0], args[1], NULL) : NULL;
}
