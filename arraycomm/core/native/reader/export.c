/* Results as DLPack tensors. The consumer's reference is on the memory, not on a Python object: deleters may be called
 * from any thread, with or without the GIL, and after the interpreter has ended. */
#include "native.h"
#include <stdlib.h>

/* Both forms begin in the same block; shape and strides follow it. */
struct exported {
    union {
        struct dl_managed managed;
        struct dl_legacy legacy;
    };
    struct memory *memory;
    int64_t lengths[]; /* shape, then strides */
};

static void export_forget(struct exported *e)
{
    memory_release(e->memory);
    free(e);
}

static void delete_managed(struct dl_managed *self)
{
    export_forget(self->context);
}

static void delete_legacy(struct dl_legacy *self)
{
    export_forget(self->context);
}

static struct exported *export_new(struct buffer *b)
{
    size_t ndim = (size_t)PyTuple_Size(b->shape);
    if (!b->memory) {
        PyErr_SetString(PyExc_BufferError, "only memory that arraycomm allocated is exported");
        return NULL;
    }
    struct exported *e = malloc(sizeof *e + 2 * ndim * sizeof(int64_t));
    if (!e) {
        PyErr_NoMemory();
        return NULL;
    }
    *e = (struct exported){.memory = memory_retain(b->memory)};
    return e;
}

static void fill_tensor(struct dl_tensor *tensor, struct buffer *b, struct exported *e)
{
    int64_t stride = 1;
    tensor->ndim = (int32_t)PyTuple_Size(b->shape);
    tensor->data = (void *)(uintptr_t)b->address;
    tensor->device = (struct dl_device){b->device_type, b->device_index};
    tensor->dtype = dtype_rows[b->dtype].dl;
    tensor->shape = e->lengths;
    tensor->strides = e->lengths + tensor->ndim;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        tensor->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(b->shape, i));
        tensor->strides[i] = stride;
        stride *= tensor->shape[i];
    }
}

struct dl_managed *export_managed(struct buffer *b)
{
    struct exported *e = export_new(b);
    if (!e)
        return NULL;
    e->managed.version = (struct dl_version){DL_MAJOR, DL_MINOR};
    e->managed.context = e;
    e->managed.deleter = delete_managed;
    e->managed.flags = b->readonly ? DL_READ_ONLY : 0;
    fill_tensor(&e->managed.tensor, b, e);
    return &e->managed;
}

static struct dl_legacy *export_legacy(struct buffer *b)
{
    struct exported *e = export_new(b);
    if (!e)
        return NULL;
    e->legacy.context = e;
    e->legacy.deleter = delete_legacy;
    fill_tensor(&e->legacy.tensor, b, e);
    return &e->legacy;
}

/* A capsule that was consumed has another name. */
static void drop_managed(PyObject *capsule)
{
    struct dl_managed *managed;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned") && (managed = PyCapsule_GetPointer(capsule, "dltensor_versioned")))
        managed->deleter(managed);
}

static void drop_legacy(PyObject *capsule)
{
    struct dl_legacy *legacy;
    if (PyCapsule_IsValid(capsule, "dltensor") && (legacy = PyCapsule_GetPointer(capsule, "dltensor")))
        legacy->deleter(legacy);
}

static PyObject *versioned_capsule(struct buffer *b)
{
    struct dl_managed *managed = export_managed(b);
    PyObject *capsule = managed ? PyCapsule_New(managed, "dltensor_versioned", drop_managed) : NULL;
    if (managed && !capsule)
        managed->deleter(managed);
    return capsule;
}

static PyObject *legacy_capsule(struct buffer *b)
{
    struct dl_legacy *legacy = export_legacy(b);
    PyObject *capsule = legacy ? PyCapsule_New(legacy, "dltensor", drop_legacy) : NULL;
    if (legacy && !capsule)
        legacy->deleter(legacy);
    return capsule;
}

/* The stream of the consumer is made to wait for what is under way on ours (arraycomm.core.arrays.arrays knows how). */
static int order_consumer(PyObject *self, PyObject *stream)
{
    if (((struct buffer *)self)->device_type == DL_CPU)
        return 0; /* a stream means nothing */
    PyObject *done = refuse_call("order_consumer", self, stream ? stream : Py_None);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Another device or a copy is not offered. */
PyObject *export_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = NULL, *version = Py_None, *device = NULL, *copy = Py_None;
    int major = 0, minor = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OOO:__dlpack__", names, &stream, &version, &device, &copy))
        return NULL;
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "a Buffer is exported without a copy only");
        return NULL;
    }
    if (version != Py_None && !PyArg_ParseTuple(version, "ii:max_version", &major, &minor))
        return NULL;
    if (order_consumer(self, stream))
        return NULL;
    struct buffer *b = (struct buffer *)self;
    return major >= DL_MAJOR ? versioned_capsule(b) : legacy_capsule(b);
}

PyObject *export_device(PyObject *self, PyObject *none)
{
    struct buffer *b = (struct buffer *)self;
    (void)none;
    return Py_BuildValue("(ii)", b->device_type, b->device_index);
}
