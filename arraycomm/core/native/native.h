/* From any array to a Buffer and back: what the files of this folder share. All of it runs under the GIL, except
 * where "no GIL" stands. Functions that return int give 0, or -1 with a Python exception set. */
#ifndef NATIVE_H
#define NATIVE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include "acomm.h"
#include "reader/dlpack.h"

#define NATIVE_MAX_DIMS 64

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "a 64-bit Python is needed");

/* ---- types.c: element types in four languages ---- */
struct dtype_row {
    const char *label;   /* numpy's, torch's and JAX's name */
    int width;           /* bytes */
    struct dl_dtype dl;
    const char *format;  /* PEP 3118, or NULL where it has no letter */
};
extern const struct dtype_row dtype_rows[ACOMM_DTYPES];
/* Each returns the number, or -1 without an exception if the engine does not have the type. */
int dtype_of_dlpack(struct dl_dtype dl);
int dtype_of_format(const char *format, Py_ssize_t width);
/* dtype object of numpy -> number; -1 with TypeError. */
int dtype_of_descr(PyObject *descr);
/* Number -> numpy dtype object (borrowed, kept for ever), NULL with an exception. */
PyObject *dtype_descr(int dtype);
/* wrap(buffer, template): an array of the template's library. */
PyObject *types_wrap(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* ---- buffer.c: aligned host memory of results ---- */
struct memory {
    char *data;             /* 64-byte aligned, never NULL: XLA uses such memory without a copy */
    size_t bytes;
    _Atomic int references; /* not Python's: libraries drop their results from threads without the GIL */
    bool mapped;
    unsigned char skipped;  /* bytes between what malloc gave and this record */
    void (*release)(void *context); /* frees memory that is not ours; NULL: it is ours */
    void *context;
    int (*enter)(int device); /* not NULL: `release` waits for a device, this comes before it, in a thread for such (adopted.c) */
    int device;
    struct memory *next;      /* of those that wait for that thread */
};
/* One reference; NULL without an exception when memory is out. No GIL. */
struct memory *memory_new(size_t bytes);
struct memory *memory_retain(struct memory *memory); /* no GIL */
void memory_release(struct memory *memory);          /* no GIL; NULL is fine */

/* ---- adopted.c: memory of other allocators. Device memory is freed by a thread of its own ---- */
/* Takes ownership of the memory, which has no reference any more. Does not block. false: no thread can be started. */
bool adopted_release(struct memory *memory);
PyObject *adopted_adopt(PyObject *module, PyObject *args);
PyObject *adopted_give_back(PyObject *module, PyObject *none);

/* ---- view.c: one array as its library describes it, before anything is copied ---- */
enum view_kind { VIEW_REFUSED, VIEW_OWN, VIEW_NUMPY, VIEW_EXCHANGE, VIEW_BUFFER, VIEW_CAPSULE };
struct view_type {
    PyTypeObject *type;
    enum view_kind kind;
    const struct dl_exchange *exchange;
    bool torch, capsule;  /* capsule: has __dlpack__ */
    bool tensor;          /* torch's own type, not a subclass with further data */
    bool fields;          /* a NumPy array with readable fields */
    bool legacy_writable; /* its capsules without flags are known to be writable */
    bool stream_ordered;  /* its library uses memory again in the order of the current stream */
    bool jax;
};
struct view {
    char *data;
    int ndim;
    const int64_t *shape, *strides; /* strides NULL: packed */
    int64_t unit;                   /* bytes that a stride counts in */
    int dtype, device_type, device_index;
    uint64_t stream;                /* as struct buffer's */
    bool fleeting;                  /* as struct buffer's */
    bool unversioned;               /* readonly because its capsule has no flags */
    bool readonly, derived;         /* derived: not the array's own memory, writes there would be lost */
    PyObject *owner;                /* what keeps the memory; a reference of the view's own */
    Py_buffer buffer;               /* held while shape and strides are in use */
    bool buffered;
    int64_t lengths[NATIVE_MAX_DIMS]; /* what shape points to where the array has no such field */
};
int view_init(void);
/* types.c. How arrays of this type are read, until the next call. Classified once, then remembered. Never fails. */
const struct view_type *view_type(PyObject *object);
enum view_mode {
    VIEW_READ,
    VIEW_WRITABLE, /* the caller asserts that memory is writable though its capsule has no flags */
    VIEW_HOST,     /* 1, without an exception, for an array that would first have to export device memory */
    VIEW_BORROW    /* the same without an owner, for a call that ends before the array goes. Shape and strides are valid until the GIL
                    * is released */
};
int view_open(struct view *view, PyObject *object, enum view_mode mode);
void view_close(struct view *view);
/* For a caller that declines after it has read an array by __dlpack__: the next view_open() of this object, in this thread, takes
 * the view. It is closed by view_forget(), before which the object must not go. Views by other protocols, which cost little, are not kept. */
void view_hand_on(struct view *view, PyObject *object);
void view_forget(void);
/* Elements, or -1 with an exception when the shape makes no sense. */
int64_t view_count(const struct view *view);
bool view_packed(const struct view *view);
/* Whether arrays of this type are NumPy's and have the fields that are read. */
bool numpy_fields(PyTypeObject *type);
/* sys.modules[module].attribute, or NULL without an exception. Nothing is imported. */
PyObject *view_loaded(const char *module, const char *attribute);

/* ---- torch.c: properties that torch's exporters do not show, or show more slowly ---- */
int torch_init(void);
/* 1: the view describes a plain tensor on the host, without an owner; 0: the tensor needs another protocol; -1: exception. */
int torch_read(struct view *view, PyObject *tensor);
/* Whether the tensor stands for the negative or conjugate of its memory; -1 with an exception. */
int torch_lazy(PyObject *tensor, int dtype);
/* Whether its elements are as wide as the exporter's dtype says; -1 with an exception. */
int torch_whole_bytes(PyObject *tensor, int dtype);

/* ---- refuse.c: errors whose text is made in Python (arraycomm.core.arrays.arrays), because their time does not matter ---- */
/* Raises the exception that function(first, second) returns; always -1. A pending exception becomes its cause and
 * stands in for a second argument of NULL (None where nothing is pending). */
int refuse(const char *function, PyObject *first, PyObject *second);
/* The dtype as the tensor has it, for arrays that have no `dtype`. */
int refuse_dlpack_dtype(PyObject *object, struct dl_dtype dtype);
/* Clears the pending exception of a call that may fail, if there is one; -1 if it stays, because it has another cause: Ctrl-C. */
int refuse_forget(void);
/* Fetches and clears the pending exception, with its traceback; NULL: there is none. */
PyObject *refuse_take(void);
/* Makes it the pending one, and takes the reference; NULL: one is pending already. Always NULL. */
PyObject *refuse_raise(PyObject *error);
/* What function(first[, second]) returns. */
PyObject *refuse_call(const char *function, PyObject *first, PyObject *second);

/* ---- buffer.c: the type Buffer ---- */
struct buffer {
    PyObject_HEAD
    unsigned long long address;
    long long count;
    unsigned long long bytes;
    int dtype, device_type, device_index;
    unsigned long long stream; /* on which the contents are in order, a DLPack number; 0: the host's memory, always in order */
    char readonly;
    char fleeting; /* when `owner` goes the memory may be used again, whatever is under way on `stream` (JAX) */
    PyObject *shape, *owner;
    struct memory *memory; /* NULL: other memory, which `owner` keeps alive */
};
extern PyTypeObject *buffer_type;
int buffer_init(PyObject *module);
/* Takes the reference to shape; owner and memory get references of their own. */
struct buffer *buffer_new(char *data, int64_t count, int dtype, PyObject *shape, PyObject *owner, struct memory *memory);
/* Sets its location, unless it lies in the host's memory, which may be written. Returns b, which may be NULL. */
struct buffer *buffer_place(struct buffer *b, int device_type, int device_index, uint64_t stream, bool readonly, bool fleeting);
/* Elements of a shape given as a tuple of ints; -1 with an exception. */
int64_t buffer_count(PyObject *shape, long dtype);
/* A fresh packed buffer of this shape (reference not taken). */
struct buffer *buffer_allocate(int dtype, int64_t count, PyObject *shape);
PyObject *buffer_shape(int ndim, const int64_t *shape);
/* Its shape and packed strides, in this unit. */
void buffer_lengths(const struct buffer *b, int64_t unit, int64_t *shape, int64_t *strides);
PyObject *buffer_allocate_shape(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *buffer_overlaps(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* ---- export.c: our memory as other libraries' arrays ---- */
PyObject *export_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *export_device(PyObject *self, PyObject *none);
/* An array of the library whose C entry points these are; NULL with an exception. */
PyObject *export_exchange(struct buffer *b, const struct dl_exchange *exchange);

#define FAST(function) (PyCFunction)(void (*)(void))(function)

/* ---- module.c: what the types have in common ---- */
/* The type, which is also the module's by its name. */
int native_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type);
/* The end of an object that takes part in garbage collection and whose type nobody derives from: clears and frees it. */
void native_dealloc(PyObject *self);

/* ---- resolve.c: the functions that Python sees ---- */
PyObject *resolve_in(PyObject *module, PyObject *object);
PyObject *resolve_out(PyObject *module, PyObject *object);
PyObject *resolve_writable(PyObject *module, PyObject *object);
PyObject *resolve_pack(PyObject *module, PyObject *object);

/* ---- work.c: the handle that callers get ---- */
/* How a Work's result is made: by a function, by types_wrap(make, model), or it exists already. */
enum work_makes { WORK_CALLS, WORK_WRAPS, WORK_GIVES };
int work_init(PyObject *module);
/* receives: the result is Received(array, source, tag). */
PyObject *work_new(PyObject *pending, enum work_makes makes, PyObject *make, PyObject *model, bool receives);
/* The array of a result. */
PyObject *work_array(enum work_makes makes, PyObject *make, PyObject *model);
/* Received(array, source, tag). Takes the reference to the array. */
PyObject *work_received(PyObject *array, int source, int64_t tag);

/* ---- shortcut.c: layout(shape), which ranks that took the slow path compare with those that did not ---- */
PyObject *forms_layout_of(PyObject *module, PyObject *shape);

/* ---- shortcut.c, shortcut_types.c: plain operations in one native call (call/call.h) ---- */
int shortcut_init(PyObject *module);

/* ---- interrupt.c: Ctrl-C while a thread waits in the engine ---- */
void interrupt_init(void);
/* Between operations without Python code in between: whether a signal's handler has raised. Checks every 50 ms. */
bool interrupt_between(void);
/* A handler's exception that Python code has raised, for interrupt_raise_soon(). */
void interrupt_keep(PyObject *error);
/* A signal handler's exception in the engine is raised when the main thread is in Python code again, unless a caller has fetched
 * it before. No GIL. */
void interrupt_raise_soon(void);
PyObject *interrupt_take(PyObject *module, PyObject *none);
PyObject *interrupt_runs(PyObject *module, PyObject *none);
void interrupt_count(int call); /* 1: this thread begins a call; -1: it has ended */
#endif
