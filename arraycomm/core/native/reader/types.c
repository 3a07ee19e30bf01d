/* Element types in four languages (the engine's numbers, DLPack's codes, PEP 3118's letters, NumPy's names), and array types: how
 * the arrays of a class are read, found out once a class, and how a result becomes one of them. */
#include "native.h"
#include <string.h>

#define ROW(number, label, width, code, format) [number] = {label, width, {code, 8 * (width), 1}, format}
const struct dtype_row dtype_rows[ACOMM_DTYPES] = {
    ROW(ACOMM_BOOL, "bool", 1, DL_BOOL, "?"),
    ROW(ACOMM_INT8, "int8", 1, DL_INT, "b"),
    ROW(ACOMM_INT16, "int16", 2, DL_INT, "h"),
    ROW(ACOMM_INT32, "int32", 4, DL_INT, "i"),
    ROW(ACOMM_INT64, "int64", 8, DL_INT, "q"),
    ROW(ACOMM_UINT8, "uint8", 1, DL_UINT, "B"),
    ROW(ACOMM_UINT16, "uint16", 2, DL_UINT, "H"),
    ROW(ACOMM_UINT32, "uint32", 4, DL_UINT, "I"),
    ROW(ACOMM_UINT64, "uint64", 8, DL_UINT, "Q"),
    ROW(ACOMM_FLOAT16, "float16", 2, DL_FLOAT, "e"),
    ROW(ACOMM_BFLOAT16, "bfloat16", 2, DL_BFLOAT, NULL),
    ROW(ACOMM_FLOAT32, "float32", 4, DL_FLOAT, "f"),
    ROW(ACOMM_FLOAT64, "float64", 8, DL_FLOAT, "d"),
    ROW(ACOMM_COMPLEX64, "complex64", 8, DL_COMPLEX, "Zf"),
    ROW(ACOMM_COMPLEX128, "complex128", 16, DL_COMPLEX, "Zd"),
    ROW(ACOMM_FLOAT8_E3M4, "float8_e3m4", 1, DL_FLOAT8_E3M4, NULL),
    ROW(ACOMM_FLOAT8_E4M3, "float8_e4m3", 1, DL_FLOAT8_E4M3, NULL),
    ROW(ACOMM_FLOAT8_E4M3B11FNUZ, "float8_e4m3b11fnuz", 1, DL_FLOAT8_E4M3B11FNUZ, NULL),
    ROW(ACOMM_FLOAT8_E4M3FN, "float8_e4m3fn", 1, DL_FLOAT8_E4M3FN, NULL),
    ROW(ACOMM_FLOAT8_E4M3FNUZ, "float8_e4m3fnuz", 1, DL_FLOAT8_E4M3FNUZ, NULL),
    ROW(ACOMM_FLOAT8_E5M2, "float8_e5m2", 1, DL_FLOAT8_E5M2, NULL),
    ROW(ACOMM_FLOAT8_E5M2FNUZ, "float8_e5m2fnuz", 1, DL_FLOAT8_E5M2FNUZ, NULL),
    ROW(ACOMM_FLOAT8_E8M0FNU, "float8_e8m0fnu", 1, DL_FLOAT8_E8M0FNU, NULL),
};

/* NumPy's own dtype objects. Arrays may have any number of other ones (unpickled, with metadata, longlong): those are read each
 * time, and not cached. */
static PyObject *descrs[ACOMM_DTYPES];

int dtype_of_dlpack(struct dl_dtype dl)
{
    for (int i = 0; i < ACOMM_DTYPES; i++)
        if (!memcmp(&dtype_rows[i].dl, &dl, sizeof dl))
            return i;
    return -1;
}

static int of_label(const char *label)
{
    for (int i = 0; i < ACOMM_DTYPES; i++)
        if (!strcmp(dtype_rows[i].label, label))
            return i;
    return -1;
}

/* Letters whose size depends on the platform ('l', 'n') are decoded by their kind and the item's size. */
static int code_of_letter(const char *letter)
{
    if (letter[0] == 'Z')
        return letter[1] && !letter[2] && strchr("fd", letter[1]) ? DL_COMPLEX : -1;
    if (!letter[0] || letter[1])
        return -1;
    if (strchr("bhilqn", letter[0]))
        return DL_INT;
    if (strchr("BHILQN", letter[0]))
        return DL_UINT;
    if (strchr("efd", letter[0]))
        return DL_FLOAT;
    return letter[0] == '?' ? DL_BOOL : -1;
}

int dtype_of_format(const char *format, Py_ssize_t width)
{
    const char native = PY_LITTLE_ENDIAN ? '<' : '>';
    if (!format)
        return width == 1 ? ACOMM_UINT8 : -1;
    if (*format == '@' || *format == '=' || *format == native)
        format++;
    int code = code_of_letter(format);
    if (code < 0 || width < 1 || width > 16)
        return -1;
    return dtype_of_dlpack((struct dl_dtype){(uint8_t)code, (uint8_t)(8 * width), 1});
}

static int descr_of_object(PyObject *descr)
{
    PyObject *native = PyObject_GetAttrString(descr, "isnative"), *name = PyObject_GetAttrString(descr, "name");
    const char *label = native && name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    int dtype = label && native == Py_True ? of_label(label) : -1;
    Py_XDECREF(native);
    Py_XDECREF(name);
    return dtype;
}

int dtype_of_descr(PyObject *descr)
{
    for (int i = 0; i < ACOMM_DTYPES; i++)
        if (descrs[i] == descr)
            return i;
    int dtype = descr_of_object(descr);
    if (dtype >= 0) /* a result can be made: known now, as later it would be too late */
        return dtype_descr(dtype) ? dtype : -1;
    return PyErr_Occurred() ? -1 : refuse("bad_dtype", descr, NULL);
}

PyObject *dtype_descr(int dtype)
{
    if (descrs[dtype])
        return descrs[dtype];
    PyObject *label = PyUnicode_FromString(dtype_rows[dtype].label);
    PyObject *descr = label ? refuse_call("numpy_dtype", label, NULL) : NULL;
    Py_XDECREF(label);
    if (!descrs[dtype]) /* else found by another thread meanwhile */
        descrs[dtype] = Py_XNewRef(descr);
    Py_XDECREF(descr);
    return descrs[dtype];
}

/* ---- array types ---- */

#define TYPES 64

/* Types seen so far; each is kept alive, so that its address identifies it. A program has few array types. */
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
    static _Thread_local struct view_type stranger; /* once the table is full; per thread, as other threads may run in between */
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

/* ---- results in the library that the input came from ---- */

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

PyObject *types_wrap(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || Py_TYPE(args[0]) != buffer_type || !((struct buffer *)args[0])->memory) {
        PyErr_SetString(PyExc_TypeError, "wrap(buffer, template) takes a Buffer made by allocate() or pack(), and an array");
        return NULL;
    }
    struct buffer *b = (struct buffer *)args[0];
    const struct view_type *type = view_type(args[1]);
    if (type->kind == VIEW_NUMPY)
        return wrap_numpy(b);
    if (type->kind == VIEW_EXCHANGE && type->exchange->import_managed)
        return export_exchange(b, type->exchange);
    static PyObject *elsewhere; /* looking it up costs 0.5 us */
    if (!elsewhere)
        elsewhere = refuse_call("elsewhere", NULL, NULL);
    return elsewhere ? PyObject_CallFunctionObjArgs(elsewhere, args[0], args[1], NULL) : NULL;
}
