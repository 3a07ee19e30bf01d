/* Address, shape, strides and dtype of one array. A Buffer has them as fields; otherwise one of four protocols, cheap ones first:
 * NumPy's buffer plus dtype object (its buffer has no letters for bfloat16 and float8), DLPack's exchange API (torch, whose
 * plain tensors its C functions read in a quarter of the time, torch.c),
 * the buffer protocol (JAX on the CPU, bytes, array.array, memoryview), and a DLPack capsule (everything else). */
#include "native.h"

static PyObject *name_of_dlpack, *name_of_dlpack_device, *name_of_dtype, *name_of_max_version;

/* ---- NumPy's arrays, by their fields ---- */

/* The fields of NumPy's arrays that its own macros read: its ABI promises them to every extension that was compiled for
 * NumPy 1 or 2. Read directly they cost 3 ns, by attribute and buffer protocol 80. */
struct ndarray {
    PyObject_HEAD
    char *data;
    int ndim;
    int64_t *shape, *strides;
    PyObject *base, *descr;
    int flags;
};
#define NDARRAY_WRITEABLE 0x0400

static void numpy_read_fields(struct view *view, const struct ndarray *a)
{
    view->data = a->data;
    view->ndim = a->ndim;
    view->shape = a->shape;
    view->strides = a->strides;
    view->unit = 1;
    view->device_type = DL_CPU;
    view->readonly = !(a->flags & NDARRAY_WRITEABLE);
}

/* Whether this NumPy keeps that promise: the fields of an array agree with its buffer. */
static bool fields_agree(PyObject *array)
{
    struct view view;
    Py_buffer buffer;
    PyObject *descr = PyObject_GetAttrString(array, "dtype");
    bool agree = descr && descr == ((struct ndarray *)array)->descr;
    Py_XDECREF(descr);
    if (!agree || PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES))
        return false;
    numpy_read_fields(&view, (struct ndarray *)array);
    agree = view.data == buffer.buf && view.ndim == buffer.ndim && view.readonly == (bool)buffer.readonly;
    for (int i = 0; agree && i < view.ndim; i++)
        agree = view.shape[i] == buffer.shape[i] && view.strides[i] == buffer.strides[i];
    PyBuffer_Release(&buffer);
    return agree;
}

bool numpy_fields(PyTypeObject *type)
{
    PyObject *ndarray = view_loaded("numpy", "ndarray");
    PyObject *array = (PyObject *)type == ndarray ? PyObject_CallFunction(ndarray, "((ii)s)", 2, 3, "f4") : NULL;
    bool yes = array && fields_agree(array);
    PyErr_Clear();
    Py_XDECREF(array);
    Py_XDECREF(ndarray);
    return yes;
}

static int numpy_read(struct view *view, PyObject *object)
{
    view->dtype = dtype_of_descr(((struct ndarray *)object)->descr);
    if (view->dtype < 0)
        return -1;
    numpy_read_fields(view, (struct ndarray *)object);
    return 0;
}

/* ---- the protocols ---- */

static void view_release(struct view *view)
{
    if (view->buffered)
        PyBuffer_Release(&view->buffer);
    view->buffered = false;
}

static int open_own(struct view *view, const struct buffer *b)
{
    view->ndim = (int)PyTuple_Size(b->shape); /* checked when it was made, as its elements */
    for (int i = 0; i < view->ndim; i++)
        view->lengths[i] = PyLong_AsLongLong(PyTuple_GetItem(b->shape, i));
    view->shape = view->lengths;
    view->data = (char *)(uintptr_t)b->address;
    view->dtype = b->dtype;
    view->device_type = b->device_type;
    view->device_index = b->device_index;
    view->stream = b->stream;
    view->fleeting = b->fleeting;
    view->readonly = b->readonly;
    view->owner = Py_NewRef((PyObject *)b);
    return 0;
}

/* Whether the exporter returned a shape that matches the length. */
static bool buffer_has_shape(const Py_buffer *b)
{
    int64_t bytes = b->itemsize;
    if (b->ndim < 0 || (b->ndim && !b->shape))
        return false;
    for (int i = 0; i < b->ndim; i++)
        if (__builtin_mul_overflow(bytes, b->shape[i], &bytes))
            return false;
    return bytes == b->len;
}

/* Exporters may omit the shape and its strides if strides are not requested (nanobind, of MLX, and pybind11 do): for those the
 * request is repeated with strides. false with an exception. */
static bool take_buffer(struct view *view, PyObject *object, int flags)
{
    if (PyObject_GetBuffer(object, &view->buffer, flags))
        return false;
    view->buffered = true;
    if (!buffer_has_shape(&view->buffer)) {
        view_release(view);
        if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
            return take_buffer(view, object, flags | PyBUF_STRIDES);
        PyErr_SetString(PyExc_BufferError, "the shape and the length that its buffer tells do not belong together");
        return false;
    }
    view->data = view->buffer.buf;
    view->ndim = view->buffer.ndim;
    view->shape = (const int64_t *)view->buffer.shape;
    view->strides = (const int64_t *)view->buffer.strides;
    view->unit = 1;
    view->device_type = DL_CPU;
    view->readonly = view->buffer.readonly;
    return true;
}

static int open_numpy(struct view *view, PyObject *object)
{
    PyObject *descr = PyObject_GetAttr(object, name_of_dtype);
    view->dtype = descr ? dtype_of_descr(descr) : -1;
    Py_XDECREF(descr);
    if (view->dtype < 0)
        return -1;
    if (!take_buffer(view, object, PyBUF_STRIDES))
        return refuse("unreadable", object, NULL);
    view->owner = Py_NewRef(object);
    return 0;
}

static int take_tensor(struct view *view, const struct dl_tensor *tensor, PyObject *object)
{
    view->dtype = dtype_of_dlpack(tensor->dtype);
    if (view->dtype < 0)
        return refuse_dlpack_dtype(object, tensor->dtype);
    if (tensor->ndim > 0 && !tensor->shape) {
        PyErr_SetString(PyExc_BufferError, "its DLPack tensor has no shape");
        return refuse("unreadable", object, NULL);
    }
    view->data = (char *)tensor->data + (tensor->data ? tensor->byte_offset : 0);
    view->ndim = tensor->ndim;
    view->shape = tensor->shape;
    view->strides = tensor->strides;
    view->unit = dtype_rows[view->dtype].width;
    bool host = tensor->device.type == DL_CPU || tensor->device.type == DL_CUDA_HOST || tensor->device.type == DL_ROCM_HOST;
    /* Pinned memory is host memory for reads and writes; JAX numbers the CPU's parts. */
    view->device_type = host ? DL_CPU : tensor->device.type;
    view->device_index = host ? 0 : tensor->device.index;
    return 0;
}

static bool is_cuda(int device_type)
{
    return device_type == DL_CUDA || device_type == DL_CUDA_MANAGED;
}

/* The exchange API hands arrays over as they are: their contents are in order on the library's current stream. */
static int exchange_stream(struct view *view, const struct dl_exchange *exchange, PyObject *object)
{
    void *stream = NULL;
    if (!is_cuda(view->device_type))
        return 0;
    if (exchange->current_stream && exchange->current_stream(view->device_type, view->device_index, &stream))
        return refuse("unreadable", object, NULL);
    view->stream = stream ? (uintptr_t)stream : DL_STREAM_LEGACY;
    return 0;
}

static int open_exchange(struct view *view, PyObject *object, const struct view_type *type)
{
    struct dl_tensor tensor;
    if (type->exchange->borrow(object, &tensor))
        return refuse("unreadable", object, NULL);
    if (take_tensor(view, &tensor, object) || exchange_stream(view, type->exchange, object))
        return -1;
    view->owner = Py_NewRef(object);
    return 0;
}

/* Whether the array lies on a CUDA device, and on which; -1 with an exception that is not its library's: Ctrl-C. An array without
 * __dlpack_device__ lies on the host. */
static int on_cuda(PyObject *object, int *index)
{
    int type = DL_CPU;
    PyObject *device = PyObject_CallMethodObjArgs(object, name_of_dlpack_device, NULL);
    bool told = device && PyArg_ParseTuple(device, "ii", &type, index);
    Py_XDECREF(device);
    return !told && refuse_forget() ? -1 : is_cuda(type);
}

/* The stream on which the array's library works: the producer makes it wait for its work on other streams. */
static int capsule_stream(struct view *view, PyObject *object, const struct view_type *type)
{
    int index = 0, cuda = on_cuda(object, &index);
    if (cuda <= 0)
        return cuda;
    PyObject *number = PyLong_FromLong(index), *stream = number ? refuse_call("cuda_stream", object, number) : NULL;
    view->stream = stream ? PyLong_AsUnsignedLongLong(stream) : 0;
    view->fleeting = !type->stream_ordered;
    Py_XDECREF(number);
    Py_XDECREF(stream);
    return PyErr_Occurred() ? -1 : 0;
}

/* The owner is a capsule that is never consumed: dropping it calls the producer's deleter. */
static PyObject *call_dlpack(PyObject *object, uint64_t stream)
{
    PyObject *method = PyObject_GetAttr(object, name_of_dlpack);
    PyObject *kwargs = method ? Py_BuildValue("{O(ii)}", name_of_max_version, DL_MAJOR, DL_MINOR) : NULL;
    PyObject *number = kwargs && stream ? PyLong_FromUnsignedLongLong(stream) : NULL;
    if (number && PyDict_SetItemString(kwargs, "stream", number))
        Py_CLEAR(kwargs);
    Py_XDECREF(number);
    PyObject *none = kwargs ? PyTuple_New(0) : NULL;
    PyObject *capsule = none ? PyObject_Call(method, none, kwargs) : NULL;
    /* Producers from before DLPack 1.0 do not know max_version. */
    if (none && !capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        PyDict_DelItem(kwargs, name_of_max_version);
        capsule = PyObject_Call(method, none, kwargs);
    }
    Py_XDECREF(none);
    Py_XDECREF(kwargs);
    Py_XDECREF(method);
    return capsule;
}

static int take_capsule(struct view *view, PyObject *capsule, PyObject *object, bool legacy_writable)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct dl_legacy *legacy = PyCapsule_GetPointer(capsule, "dltensor");
        view->readonly = view->unversioned = !legacy_writable;
        return take_tensor(view, &legacy->tensor, object);
    }
    if (!PyCapsule_IsValid(capsule, "dltensor_versioned"))
        return refuse("bad_capsule", object, capsule);
    struct dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->version.major != DL_MAJOR)
        return refuse("bad_capsule", object, capsule);
    view->readonly = managed->flags & DL_READ_ONLY;
    view->derived = managed->flags & DL_IS_COPIED;
    return take_tensor(view, &managed->tensor, object);
}

static int open_capsule(struct view *view, PyObject *object, const struct view_type *type, enum view_mode mode)
{
    if (capsule_stream(view, object, type))
        return -1;
    if ((mode == VIEW_HOST || mode == VIEW_BORROW) && view->stream)
        return 1;
    view->owner = call_dlpack(object, view->stream);
    if (!view->owner)
        return refuse("unreadable", object, NULL);
    return take_capsule(view, view->owner, object, type->legacy_writable || (mode == VIEW_WRITABLE && !type->jax));
}

/* The memoryview is the owner: while it lives a bytearray cannot be resized, nor a JAX array donated. */
static int open_buffer(struct view *view, PyObject *object, const struct view_type *type, enum view_mode mode)
{
    bool sound = take_buffer(view, object, PyBUF_STRIDES | PyBUF_FORMAT); /* a memoryview does not check its exporter */
    view_release(view);
    view->owner = sound ? PyMemoryView_FromObject(object) : NULL;
    if (view->owner && take_buffer(view, view->owner, PyBUF_STRIDES | PyBUF_FORMAT))
        view->dtype = dtype_of_format(view->buffer.format, view->buffer.itemsize);
    if (view->dtype >= 0)
        return 0;
    if (!type->capsule)
        return refuse("unreadable", object, NULL);
    /* JAX's buffers support neither bfloat16 nor float8, its capsules do. */
    PyErr_Clear();
    view_close(view);
    return open_capsule(view, object, type, mode);
}

/* ---- torch ---- */

/* torch computes conjugates and negatives lazily, by bits that its exporters do not show. */
static int open_resolved(struct view *view, PyObject *object, const struct view_type *type, enum view_mode mode)
{
    Py_CLEAR(view->owner);
    PyObject *plain = refuse_call("torch_resolved", object, NULL);
    int rc = !plain ? -1 : type->exchange ? open_exchange(view, plain, type) : open_capsule(view, plain, type, mode);
    Py_XDECREF(plain);
    view->derived = true;
    return rc;
}

static int check_torch(struct view *view, PyObject *object, const struct view_type *type, enum view_mode mode)
{
    int whole = torch_whole_bytes(object, view->dtype);
    if (whole <= 0)
        return whole ? -1 : refuse("bad_dlpack_dtype", object, NULL);
    int lazy = torch_lazy(object, view->dtype);
    if (lazy < 0)
        return refuse("unreadable", object, NULL);
    return lazy ? open_resolved(view, object, type, mode) : 0;
}

/* ---- */

static void view_clear(struct view *view)
{
    view->strides = NULL;
    view->owner = NULL;
    view->dtype = -1;
    view->device_index = 0;
    view->stream = 0;
    view->readonly = view->unversioned = view->derived = view->buffered = view->fleeting = false;
}

/* Packed, or refused: without strides JAX's buffer takes 0.05 us less. */
static bool borrow_buffer(struct view *view, PyObject *object)
{
    if (take_buffer(view, object, PyBUF_ND | PyBUF_FORMAT))
        view->dtype = dtype_of_format(view->buffer.format, view->buffer.itemsize);
    if (view->dtype >= 0)
        return true;
    PyErr_Clear();
    view_close(view);
    return false;
}

/* By what the type offers. */
static int view_open_by(struct view *view, PyObject *object, struct view_type type, enum view_mode mode)
{
    int rc = -1;
    switch (type.kind) {
    case VIEW_REFUSED: return refuse("not_an_array", object, NULL);
    case VIEW_OWN: return open_own(view, (struct buffer *)object);
    case VIEW_NUMPY: return open_numpy(view, object);
    case VIEW_EXCHANGE: rc = open_exchange(view, object, &type); break;
    case VIEW_BUFFER: return open_buffer(view, object, &type, mode);
    case VIEW_CAPSULE: rc = open_capsule(view, object, &type, mode); break;
    }
    return !rc && type.torch ? check_torch(view, object, &type, mode) : rc;
}

/* ---- views passed on: the input and the output of one call ---- */

static _Thread_local struct { PyObject *object; struct view view; } handed[2];

void view_hand_on(struct view *view, PyObject *object)
{
    int place = handed[0].object ? 1 : 0;
    if (!view->owner || !PyCapsule_CheckExact(view->owner) || handed[place].object)
        return; /* a view of another kind may point into itself */
    handed[place].object = object;
    handed[place].view = *view;
    view->owner = NULL;
}

static bool view_take_handed(struct view *view, PyObject *object)
{
    for (int i = 0; i < 2; i++)
        if (handed[i].object == object) {
            *view = handed[i].view;
            handed[i].object = NULL;
            return true;
        }
    return false;
}

void view_forget(void)
{
    for (int i = 0; i < 2; i++)
        if (handed[i].object) {
            handed[i].object = NULL;
            view_close(&handed[i].view);
        }
}

int view_open(struct view *view, PyObject *object, enum view_mode mode)
{
    const struct view_type *type = view_type(object);
    if (mode == VIEW_READ && view_take_handed(view, object))
        return 0;
    view_clear(view);
    if (mode == VIEW_BORROW && type->fields)
        return numpy_read(view, object);
    int read = type->tensor ? torch_read(view, object)
             : mode == VIEW_BORROW && type->kind == VIEW_BUFFER && borrow_buffer(view, object);
    if (read > 0 && mode != VIEW_BORROW)
        view->owner = Py_NewRef(object);
    if (read)
        return read < 0 ? -1 : 0;
    int rc = view_open_by(view, object, *type, mode);
    if (rc)
        view_close(view);
    return rc;
}

/* Dropping a capsule runs the producer's code, which must not see our pending exception. */
void view_close(struct view *view)
{
    PyObject *type, *value, *traceback;
    if (!view->buffered && !view->owner)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    view_release(view);
    Py_CLEAR(view->owner);
    PyErr_Restore(type, value, traceback);
}

int64_t view_count(const struct view *view)
{
    int64_t count = 1, bytes;
    bool wrong = false;
    if (view->ndim < 0 || view->ndim > NATIVE_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "an array of %d dimensions; at most %d are possible", view->ndim, NATIVE_MAX_DIMS);
        return -1;
    }
    for (int i = 0; i < view->ndim && !wrong; i++)
        wrong = view->shape[i] < 0 || __builtin_mul_overflow(count, view->shape[i], &count);
    if (wrong || __builtin_mul_overflow(count, dtype_rows[view->dtype].width, &bytes)) {
        PyErr_Format(PyExc_ValueError, "an array of %d dimensions with a shape that no memory can hold", view->ndim);
        return -1;
    }
    return count;
}

bool view_packed(const struct view *view)
{
    if (!view->strides)
        return true;
    int64_t expected = dtype_rows[view->dtype].width / view->unit;
    for (int i = view->ndim - 1; i >= 0; i--) {
        if (view->shape[i] > 1 && view->strides[i] != expected)
            return false;
        expected *= view->shape[i];
    }
    return true;
}

int view_init(void)
{
    name_of_dlpack = PyUnicode_InternFromString("__dlpack__");
    name_of_dlpack_device = PyUnicode_InternFromString("__dlpack_device__");
    name_of_dtype = PyUnicode_InternFromString("dtype");
    name_of_max_version = PyUnicode_InternFromString("max_version");
    return PyErr_Occurred() ? -1 : 0;
}
