/* The type Buffer: what a backend sees of an array. Plain numbers, so that making one costs little. It takes no part in
 * garbage collection: it points to an array, and arrays do not point to it. */
#include "native.h"
#include <stddef.h>
#include <structmember.h>

PyTypeObject *buffer_type;

struct buffer *buffer_place(struct buffer *b, int device_type, int device_index, uint64_t stream, bool readonly, bool fleeting)
{
    if (b) {
        b->device_type = device_type;
        b->device_index = device_index;
        b->stream = stream;
        b->readonly = readonly;
        b->fleeting = fleeting;
    }
    return b;
}

struct buffer *buffer_new(char *data, int64_t count, int dtype, PyObject *shape, PyObject *owner, struct memory *memory)
{
    struct buffer *b = PyObject_New(struct buffer, buffer_type);
    if (!b) {
        Py_DECREF(shape);
        return NULL;
    }
    b->address = (unsigned long long)(uintptr_t)data;
    b->count = count;
    b->bytes = (unsigned long long)count * (unsigned)dtype_rows[dtype].width;
    b->dtype = dtype;
    b->shape = shape;
    b->owner = Py_NewRef(owner);
    b->memory = memory_retain(memory);
    return buffer_place(b, DL_CPU, 0, 0, false, false);
}

struct buffer *buffer_allocate(int dtype, int64_t count, PyObject *shape)
{
    size_t bytes = (size_t)count * (size_t)dtype_rows[dtype].width;
    struct memory *memory = memory_new(bytes);
    if (!memory) {
        PyErr_Format(PyExc_MemoryError, "no memory for a result of %zu bytes", bytes);
        return NULL;
    }
    struct buffer *b = buffer_new(memory->data, count, dtype, Py_NewRef(shape), Py_None, memory);
    memory_release(memory);
    return b;
}

PyObject *buffer_shape(int ndim, const int64_t *shape)
{
    PyObject *tuple = PyTuple_New(ndim);
    for (int i = 0; tuple && i < ndim; i++) {
        PyObject *length = PyLong_FromLongLong(shape[i]);
        if (!length || PyTuple_SetItem(tuple, i, length))
            Py_CLEAR(tuple);
    }
    return tuple;
}

static void buffer_dealloc(PyObject *self)
{
    struct buffer *b = (struct buffer *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(b->shape);
    Py_XDECREF(b->owner);
    memory_release(b->memory);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Elements of a shape given as a tuple of ints; -1 with an exception. */
static int64_t count_of_shape(PyObject *shape, long dtype)
{
    int64_t count = 1, bytes;
    if (dtype < 0 || dtype >= ACOMM_DTYPES) {
        PyErr_Format(PyExc_ValueError, "there is no dtype number %ld", dtype);
        return -1;
    }
    if (!PyTuple_Check(shape) || PyTuple_Size(shape) > NATIVE_MAX_DIMS) {
        PyErr_Format(PyExc_TypeError, "a shape is a tuple of at most %d ints, got %R", NATIVE_MAX_DIMS, shape);
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(shape); i++) {
        int64_t length = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (length == -1 && PyErr_Occurred())
            return -1;
        if (length < 0 || __builtin_mul_overflow(count, length, &count)) {
            PyErr_Format(PyExc_ValueError, "impossible shape %R", shape);
            return -1;
        }
    }
    if (__builtin_mul_overflow(count, dtype_rows[dtype].width, &bytes)) {
        PyErr_Format(PyExc_ValueError, "impossible shape %R", shape);
        return -1;
    }
    return count;
}

static PyObject *buffer_construct(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "count", "dtype", "device_type", "device_index", "readonly", "shape", "owner", "stream",
                            "fleeting", NULL};
    unsigned long long address, stream = 0;
    long long count;
    int dtype, device_type, device_index, readonly, fleeting = 0;
    PyObject *shape, *owner;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KLiiipO!O|Kp:Buffer", names, &address, &count, &dtype, &device_type,
                                     &device_index, &readonly, &PyTuple_Type, &shape, &owner, &stream, &fleeting))
        return NULL;
    int64_t fitting = count_of_shape(shape, dtype);
    if (fitting != count)
        return fitting < 0 ? NULL : PyErr_Format(PyExc_ValueError, "a Buffer of %lld elements and shape %R", count, shape);
    struct buffer *b = buffer_new((char *)(uintptr_t)address, count, dtype, Py_NewRef(shape), owner, NULL);
    return (PyObject *)buffer_place(b, device_type, device_index, stream, readonly, fleeting);
}

static PyObject *represent(PyObject *self)
{
    struct buffer *b = (struct buffer *)self;
    return PyUnicode_FromFormat("<Buffer %R %s at %p, device %d:%d%s>", b->shape, dtype_rows[b->dtype].label,
                                (void *)(uintptr_t)b->address, b->device_type, b->device_index,
                                b->readonly ? ", read-only" : "");
}

PyObject *buffer_allocate_shape(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "allocate(shape, dtype) takes two arguments");
        return NULL;
    }
    long dtype = PyLong_AsLong(args[1]);
    if (dtype == -1 && PyErr_Occurred())
        return NULL;
    int64_t count = count_of_shape(args[0], dtype);
    return count < 0 ? NULL : (PyObject *)buffer_allocate((int)dtype, count, args[0]);
}

/* Of memory that could not be taken over, with the exception that says why. */
static PyObject *buffer_give_back(void (*release)(void *), void *context)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    release(context);
    PyErr_Restore(type, value, trace);
    return NULL;
}

/* adopt(shape, dtype, address, release, context[, device type, device index, stream[, enter, apart]]): memory that somebody else
 * made, as if allocate() had; `release` is the address of a function void (void *) that gives it back, called with `context`
 * when nothing refers to it any more, or at once where this raises. enter, apart: those of cudaSetDevice() and
 * cudaThreadExchangeStreamCaptureMode(), where giving back waits for the device: all are called in a thread for such. */
PyObject *buffer_adopt(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *shape;
    int dtype, device_type = DL_CPU, device_index = 0;
    unsigned long long address, release, context, stream = 0, enter = 0, apart = 0;
    if (!PyArg_ParseTuple(args, "O!iKKK|iiKKK:adopt", &PyTuple_Type, &shape, &dtype, &address, &release, &context,
                          &device_type, &device_index, &stream, &enter, &apart))
        return NULL;
    int64_t count = count_of_shape(shape, dtype);
    void (*back)(void *) = (void (*)(void *))(uintptr_t)release;
    struct memory *memory = count < 0 ? NULL : memory_adopt((char *)(uintptr_t)address,
                                                            (size_t)count * (size_t)dtype_rows[dtype].width, back,
                                                            (void *)(uintptr_t)context);
    if (!memory && count >= 0)
        PyErr_NoMemory();
    if (!memory) /* what waits for a device cannot be given back here, with the interpreter's lock held */
        return enter ? NULL : buffer_give_back(back, (void *)(uintptr_t)context);
    memory->enter = (int (*)(int))(uintptr_t)enter;
    if (enter)
        later_apart((int (*)(int *))(uintptr_t)apart);
    memory->device = device_index;
    struct buffer *b = buffer_new(memory->data, count, dtype, Py_NewRef(shape), Py_None, memory);
    memory_release(memory);
    return (PyObject *)buffer_place(b, device_type, device_index, stream, false, false);
}

/* part(start, shape): the elements from `start` on, as a Buffer of this shape over the same memory. */
static PyObject *part(PyObject *self, PyObject *args)
{
    struct buffer *b = (struct buffer *)self;
    long long start;
    PyObject *shape;
    if (!PyArg_ParseTuple(args, "LO:part", &start, &shape))
        return NULL;
    int64_t count = count_of_shape(shape, b->dtype);
    if (count < 0)
        return NULL;
    if (start < 0 || start > b->count || count > b->count - start) {
        PyErr_Format(PyExc_ValueError, "%R from element %lld does not lie within %lld elements", shape, start, b->count);
        return NULL;
    }
    char *data = (char *)(uintptr_t)b->address + start * dtype_rows[b->dtype].width;
    struct buffer *p = buffer_new(data, count, b->dtype, Py_NewRef(shape), b->owner, b->memory);
    return (PyObject *)buffer_place(p, b->device_type, b->device_index, b->stream, b->readonly, b->fleeting);
}

PyObject *buffer_overlaps(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || Py_TYPE(args[0]) != buffer_type || Py_TYPE(args[1]) != buffer_type) {
        PyErr_SetString(PyExc_TypeError, "overlaps(a, b) takes two Buffers");
        return NULL;
    }
    struct buffer *a = (struct buffer *)args[0], *b = (struct buffer *)args[1];
    bool same_device = a->device_type == b->device_type && a->device_index == b->device_index;
    return PyBool_FromLong(same_device && a->count && b->count && a->address < b->address + b->bytes &&
                           b->address < a->address + a->bytes);
}

/* ---- the buffer protocol, for numpy.ndarray(buffer=...) and memoryview ---- */

/* Shape and strides in bytes, in one block that release() frees. */
static int fill_shape(Py_buffer *view, struct buffer *b)
{
    int ndim = (int)PyTuple_Size(b->shape);
    Py_ssize_t *lengths = PyMem_Malloc((size_t)(2 * ndim + 1) * sizeof *lengths), stride = view->itemsize;
    if (!lengths) {
        PyErr_NoMemory();
        return -1;
    }
    view->ndim = ndim;
    view->internal = view->shape = lengths;
    view->strides = lengths + ndim;
    for (int i = ndim - 1; i >= 0; i--) {
        view->shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(b->shape, i));
        view->strides[i] = stride;
        stride *= view->shape[i];
    }
    return 0;
}

static int check_exportable(struct buffer *b, int flags)
{
    if (b->device_type != DL_CPU)
        PyErr_Format(PyExc_BufferError, "memory of device type %d cannot be read by the host", b->device_type);
    else if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE && b->readonly)
        PyErr_SetString(PyExc_BufferError, "this Buffer is read-only");
    else if ((flags & PyBUF_FORMAT) && !dtype_rows[b->dtype].format)
        PyErr_Format(PyExc_BufferError, "the buffer protocol has no letter for %s", dtype_rows[b->dtype].label);
    else
        return 0;
    return -1;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct buffer *b = (struct buffer *)self;
    view->obj = NULL;
    if (check_exportable(b, flags))
        return -1;
    view->buf = (void *)(uintptr_t)b->address;
    view->len = (Py_ssize_t)b->bytes;
    view->itemsize = dtype_rows[b->dtype].width;
    view->readonly = b->readonly;
    view->ndim = 1;
    view->format = flags & PyBUF_FORMAT ? (char *)dtype_rows[b->dtype].format : NULL;
    view->shape = view->strides = view->suboffsets = NULL;
    view->internal = NULL;
    if ((flags & PyBUF_ND) && fill_shape(view, b))
        return -1;
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
        view->strides = NULL;
    view->obj = Py_NewRef(self);
    return 0;
}

static void release_buffer(PyObject *Py_UNUSED(self), Py_buffer *view)
{
    PyMem_Free(view->internal);
}

/* ---- */

static PyMemberDef members[] = {
    {"address", T_ULONGLONG, offsetof(struct buffer, address), READONLY, "0 allowed when count is 0"},
    {"count", T_LONGLONG, offsetof(struct buffer, count), READONLY, "elements"},
    {"nbytes", T_ULONGLONG, offsetof(struct buffer, bytes), READONLY, "size in bytes"},
    {"dtype", T_INT, offsetof(struct buffer, dtype), READONLY, "DType's number"},
    {"device_type", T_INT, offsetof(struct buffer, device_type), READONLY, "DeviceType's number; 1 is the CPU"},
    {"device_index", T_INT, offsetof(struct buffer, device_index), READONLY, NULL},
    {"stream", T_ULONGLONG, offsetof(struct buffer, stream), READONLY, "DLPack's number; 0 in host memory"},
    {"readonly", T_BOOL, offsetof(struct buffer, readonly), READONLY, "results may not be written here"},
    {"fleeting", T_BOOL, offsetof(struct buffer, fleeting), READONLY,
     "what was enqueued on the stream must have ended before the owner goes"},
    {"shape", T_OBJECT, offsetof(struct buffer, shape), READONLY, NULL},
    {"owner", T_OBJECT, offsetof(struct buffer, owner), READONLY, "what must stay alive"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"part", part, METH_VARARGS, "part(start, shape): elements from start on, over the same memory"},
    {"__dlpack__", FAST(export_dlpack), METH_VARARGS | METH_KEYWORDS, "DLPack capsule"},
    {"__dlpack_device__", export_device, METH_NOARGS, "(device type, device index)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A packed (C-contiguous) run of elements in memory that `owner`, or the Buffer itself, keeps alive."},
    {Py_tp_new, buffer_construct},
    {Py_tp_dealloc, buffer_dealloc},
    {Py_tp_repr, represent},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {0, NULL},
};

static PyType_Spec spec = {"arraycomm._engine.Buffer", sizeof(struct buffer), 0, Py_TPFLAGS_DEFAULT, slots};

int buffer_init(PyObject *module)
{
    return native_type(module, &spec, &buffer_type);
}
