/* How arrays of a type are read: what its class says, asked once a type. */
#include "native.h"

#define TYPES 64

/* Types seen so far; each is kept alive, so that its address means it. A program has few array types. */
static struct view_type types[TYPES];
static int types_known;

PyObject *view_loaded(const char *module, const char *attribute)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *found = PyDict_GetItemString(modules, module);
    PyObject *value = found ? PyObject_GetAttrString(found, attribute) : NULL;
    PyErr_Clear();
    return value;
}

static bool derives(PyTypeObject *type, const char *module, const char *name)
{
    PyObject *base = view_loaded(module, name);
    bool yes = base && PyObject_IsSubclass((PyObject *)type, base) == 1;
    Py_XDECREF(base);
    PyErr_Clear();
    return yes;
}

static bool has(PyTypeObject *type, const char *name)
{
    PyObject *value = PyObject_GetAttrString((PyObject *)type, name);
    PyErr_Clear();
    Py_XDECREF(value);
    return value != NULL;
}

static const struct dl_exchange *find_exchange(PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const struct dl_exchange *api = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    PyErr_Clear();
    while (api && api->version.major != DL_MAJOR)
        api = api->previous;
    return api && api->borrow ? api : NULL;
}

static bool is_torch(PyTypeObject *type, const char *module, const char *name)
{
    PyObject *tensor = view_loaded(module, name);
    Py_XDECREF(tensor); /* its module keeps it */
    return tensor == (PyObject *)type;
}

static struct view_type classify(PyTypeObject *type)
{
    struct view_type t = {.type = type, .kind = VIEW_REFUSED, .torch = derives(type, "torch", "Tensor")};
    t.tensor = is_torch(type, "torch", "Tensor") || is_torch(type, "torch.nn", "Parameter");
    t.capsule = has(type, "__dlpack__");
    t.legacy_writable = t.stream_ordered = t.torch || derives(type, "cupy", "ndarray");
    t.jax = derives(type, "jax", "Array");
    if (type == buffer_type)
        t.kind = VIEW_OWN;
    if (type == buffer_type || derives(type, "numpy.ma", "MaskedArray") || derives(type, "torch.distributed.tensor", "DTensor")
        || derives(type, "torch.nn.parameter", "UninitializedTensorMixin"))
        return t;
    if (derives(type, "numpy", "ndarray") || derives(type, "numpy", "generic"))
        t.kind = VIEW_NUMPY;
    else if ((t.exchange = find_exchange(type)))
        t.kind = VIEW_EXCHANGE;
    else if (PyType_GetSlot(type, Py_bf_getbuffer))
        t.kind = VIEW_BUFFER;
    else if (t.capsule)
        t.kind = VIEW_CAPSULE;
    return t;
}

const struct view_type *view_type(PyObject *object)
{
    static _Thread_local struct view_type stranger; /* once the table is full; of each thread, as others may come in between */
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < types_known; i++)
        if (types[i].type == type)
            return &types[i];
    struct view_type fresh = classify(type);
    fresh.fields = numpy_fields(type);
    if (types_known == TYPES) {
        stranger = fresh;
        return &stranger;
    }
    Py_INCREF((PyObject *)type);
    types[types_known] = fresh;
    return &types[types_known++];
}
