/* Results as DLPack tensors of other libraries. The consumer's reference is on the
 * memory, not on a Python object: deleters may be called from any thread, with or without the GIL, and after the interpreter has ended. */
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

/* What a tensor's deleter gets lies at the beginning of the block. */
static void export_forget(void *tensor)
{
    struct exported *e = tensor;
    memory_release(e->memory);
    free(e);
}

static void delete_managed(struct dl_managed *self)
{
    export_forget(self);
}

static void delete_legacy(struct dl_legacy *self)
{
    export_forget(self);
}

static void fill_tensor(struct dl_tensor *tensor, struct buffer *b, struct exported *e)
{
    tensor->ndim = (int32_t)PyTuple_Size(b->shape);
    tensor->data = (void *)(uintptr_t)b->address;
    tensor->device = (struct dl_device){b->device_type, b->device_index};
    tensor->dtype = dtype_rows[b->dtype].dl;
    tensor->shape = e->lengths;
    tensor->strides = e->lengths + tensor->ndim;
    buffer_lengths(b, 1, tensor->shape, tensor->strides);
}

/* NULL with an exception. */
static struct exported *export_new(struct buffer *b, bool versioned)
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
    if (versioned)
        e->managed = (struct dl_managed){.version = {DL_MAJOR, DL_MINOR}, .deleter = delete_managed,
                                         .flags = b->readonly ? DL_READ_ONLY : 0};
    else
        e->legacy.deleter = delete_legacy;
    fill_tensor(versioned ? &e->managed.tensor : &e->legacy.tensor, b, e);
    return e;
}

static const char *const capsule_names[] = {"dltensor", "dltensor_versioned"};

/* A capsule that was consumed has another name. */
static void export_drop(PyObject *capsule)
{
    for (int versioned = 0; versioned < 2; versioned++)
        if (PyCapsule_IsValid(capsule, capsule_names[versioned]))
            export_forget(PyCapsule_GetPointer(capsule, capsule_names[versioned]));
}

static PyObject *export_capsule(struct buffer *b, bool versioned)
{
    struct exported *e = export_new(b, versioned);
    PyObject *capsule = e ? PyCapsule_New(e, capsule_names[versioned], export_drop) : NULL;
    if (e && !capsule)
        export_forget(e);
    return capsule;
}

/* The consumer's stream waits for the work that is enqueued on the Buffer's (arraycomm.core.arrays.arrays). */
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
    return export_capsule((struct buffer *)self, major >= DL_MAJOR);
}

PyObject *export_device(PyObject *self, PyObject *Py_UNUSED(none))
{
    struct buffer *b = (struct buffer *)self;
    return Py_BuildValue("(ii)", b->device_type, b->device_index);
}

PyObject *export_exchange(struct buffer *b, const struct dl_exchange *exchange)
{
    void *array = NULL;
    struct exported *e = export_new(b, true);
    if (!e || exchange->import_managed(&e->managed, &array))
        return NULL;
    return array;
}
