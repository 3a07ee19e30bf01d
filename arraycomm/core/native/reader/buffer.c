/* The type Buffer: a backend's view of an array. Plain numbers, so that making one costs little. It takes no part in garbage
 * collection: it points to an array, and arrays do not point to it. And the memory of results, which Buffers share. */
#include "native.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <sys/mman.h>

/* ---- memory: aligned, of the host. Small blocks come from malloc; large ones are mapped, and a few of them are kept
 * when freed: touching fresh pages costs more than reducing into them (0.25 us per 4 KiB page).
 * Kept blocks are marked MADV_FREE, so the kernel reclaims them as soon as memory is short. ---- */

#define ALIGNMENT 64
#define MAPPED_BYTES (128u << 10) /* from here on blocks are mapped and kept */
#define HUGE_BYTES (2u << 20)     /* size and alignment of a huge page on x86-64 and AArch64 with 4 KiB pages */
#define KEPT_BLOCKS 16
#define KEPT_BYTES (512ul << 20)

static struct {
    pthread_mutex_t mutex;
    struct memory *blocks[KEPT_BLOCKS];
    int count;
    size_t bytes;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static size_t memory_round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

static struct memory *take_block(int index)
{
    struct memory *memory = kept.blocks[index];
    kept.count--;
    memmove(&kept.blocks[index], &kept.blocks[index + 1], (size_t)(kept.count - index) * sizeof memory);
    kept.bytes -= memory->bytes;
    return memory;
}

/* A kept block of at least `bytes`, at most a quarter larger. trylock: after a fork the lock's holder may not exist. */
static struct memory *reuse(size_t bytes)
{
    struct memory *found = NULL;
    if (pthread_mutex_trylock(&kept.mutex))
        return NULL;
    for (int i = kept.count - 1; i >= 0 && !found; i--)
        if (kept.blocks[i]->bytes >= bytes && kept.blocks[i]->bytes - bytes <= bytes / 4)
            found = take_block(i);
    pthread_mutex_unlock(&kept.mutex);
    return found;
}

static void unmap(struct memory *memory)
{
    munmap(memory->data, memory->bytes);
    free(memory);
}

/* Oldest blocks go first, so that a program that changes sizes does not keep the old ones. */
static void memory_keep(struct memory *memory)
{
    struct memory *evicted[KEPT_BLOCKS];
    int count = 0;
    if (memory->bytes > KEPT_BYTES || pthread_mutex_trylock(&kept.mutex)) {
        unmap(memory);
        return;
    }
    while (kept.count == KEPT_BLOCKS || kept.bytes + memory->bytes > KEPT_BYTES)
        evicted[count++] = take_block(0);
    kept.blocks[kept.count++] = memory;
    kept.bytes += memory->bytes;
    /* Below a huge page the walk over small pages costs more than the memory is worth. */
    if (memory->bytes >= HUGE_BYTES)
        madvise(memory->data, memory->bytes, MADV_FREE);
    pthread_mutex_unlock(&kept.mutex);
    while (count > 0)
        unmap(evicted[--count]);
}

/* From a huge page on aligned to one: maps more and cuts the ends off. */
static char *map_memory(size_t bytes)
{
    size_t whole = bytes >= HUGE_BYTES ? bytes + HUGE_BYTES : bytes;
    char *raw = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    if (whole == bytes)
        return raw;
    char *data = (char *)memory_round_up((size_t)raw, HUGE_BYTES);
    if (data > raw)
        munmap(raw, (size_t)(data - raw));
    munmap(data + bytes, (size_t)(raw + whole - (data + bytes)));
    madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

static struct memory *map_block(size_t bytes)
{
    struct memory *memory = malloc(sizeof *memory);
    if (!memory)
        return NULL;
    *memory = (struct memory){.mapped = true, .bytes = memory_round_up(bytes, bytes >= HUGE_BYTES ? HUGE_BYTES : 4096)};
    memory->data = map_memory(memory->bytes);
    if (!memory->data) {
        free(memory);
        return NULL;
    }
    return memory;
}

/* The record lies in the cache line before its data. Aligned by hand: malloc caches freed blocks for the next call, aligned_alloc
 * does not (glibc 2.36: 0.1 us more). */
static struct memory *small_block(size_t bytes)
{
    _Static_assert(sizeof(struct memory) <= ALIGNMENT, "the record fits its line");
    char *block = malloc(bytes + 2 * ALIGNMENT);
    if (!block)
        return NULL;
    char *line = (char *)memory_round_up((size_t)block, ALIGNMENT);
    struct memory *memory = (struct memory *)line;
    *memory = (struct memory){.data = line + ALIGNMENT, .bytes = bytes, .skipped = (unsigned char)(line - block)};
    return memory;
}

struct memory *memory_new(size_t bytes)
{
    struct memory *memory;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    if (bytes < MAPPED_BYTES)
        memory = small_block(bytes);
    else if (!(memory = reuse(bytes)))
        memory = map_block(bytes);
    if (!memory)
        return NULL;
    atomic_init(&memory->references, 1);
    return memory;
}

struct memory *memory_retain(struct memory *memory)
{
    if (memory)
        atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
    return memory;
}

void memory_release(struct memory *memory)
{
    if (!memory || atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1)
        return;
    if (memory->enter && adopted_release(memory))
        return;
    if (memory->release)
        memory->release(memory->context);
    if (memory->mapped)
        memory_keep(memory);
    else
        free((char *)memory - memory->skipped);
}

/* ---- Buffers ---- */

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

int64_t buffer_count(PyObject *shape, long dtype)
{
    int64_t count = 1, bytes;
    bool possible = true;
    if (dtype < 0 || dtype >= ACOMM_DTYPES) {
        PyErr_Format(PyExc_ValueError, "there is no dtype number %ld", dtype);
        return -1;
    }
    if (!PyTuple_Check(shape) || PyTuple_Size(shape) > NATIVE_MAX_DIMS) {
        PyErr_Format(PyExc_TypeError, "a shape is a tuple of at most %d ints, got %R", NATIVE_MAX_DIMS, shape);
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(shape) && possible; i++) {
        int64_t length = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (length == -1 && PyErr_Occurred())
            return -1;
        possible = length >= 0 && !__builtin_mul_overflow(count, length, &count);
    }
    if (!possible || __builtin_mul_overflow(count, dtype_rows[dtype].width, &bytes)) {
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
    int64_t fitting = buffer_count(shape, dtype);
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
    int64_t count = buffer_count(args[0], dtype);
    return count < 0 ? NULL : (PyObject *)buffer_allocate((int)dtype, count, args[0]);
}

/* part(start, shape): the elements from `start` on, as a Buffer of this shape over the same memory. */
static PyObject *part(PyObject *self, PyObject *args)
{
    struct buffer *b = (struct buffer *)self;
    long long start;
    PyObject *shape;
    if (!PyArg_ParseTuple(args, "LO:part", &start, &shape))
        return NULL;
    int64_t count = buffer_count(shape, b->dtype);
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

void buffer_lengths(const struct buffer *b, int64_t unit, int64_t *shape, int64_t *strides)
{
    for (int i = (int)PyTuple_Size(b->shape) - 1; i >= 0; i--) {
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(b->shape, i));
        strides[i] = unit;
        unit *= shape[i];
    }
}

/* Shape and strides in bytes, in one block that release() frees. */
static int fill_shape(Py_buffer *view, struct buffer *b)
{
    int ndim = (int)PyTuple_Size(b->shape);
    int64_t *lengths = PyMem_Malloc((size_t)(2 * ndim + 1) * sizeof *lengths);
    if (!lengths) {
        PyErr_NoMemory();
        return -1;
    }
    view->ndim = ndim;
    view->internal = lengths;
    view->shape = (Py_ssize_t *)lengths;
    view->strides = (Py_ssize_t *)lengths + ndim;
    buffer_lengths(b, view->itemsize, lengths, lengths + ndim);
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
