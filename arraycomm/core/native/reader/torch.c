/* Properties that torch's exporters do not show: that a tensor is a lazy conjugate or negative of its memory, marked by bits of
 * the tensor, and that its elements have fewer than eight bits. And properties that they show more slowly.
 *
 * Functions of libtorch_cpu are called with the at::Tensor in a tensor's object, as in C++ extensions of torch
 * (THPVariable_Unpack, which is inline), if a trial shows that the tensor is there:
 * - is_neg() and is_conj(), which it exports without a stability promise: a method takes 65 ns, most of them to release the GIL;
 * - those of its stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h): 10 ns, not the 40 of DLPack's exchange API. */
#include "native.h"
#include <dlfcn.h>
#include <stdio.h>

struct variable {
    PyObject_HEAD
    void *impl; /* an at::Tensor is this one pointer */
};
typedef void *const *tensor_handle;          /* a const at::Tensor &, and an AtenTensorHandle */
typedef bool (*question)(tensor_handle tensor);
typedef int (*reader)(tensor_handle tensor, void *out); /* 0, or it has failed */
static PyObject *name_of_is_neg, *name_of_is_conj, *name_of_dtype;
static bool looked;
static question is_neg, is_conj; /* NULL: the methods are called */

enum field { LAYOUT, DEVICE, DTYPE, NDIM, SHAPE, STRIDES, DATA, FIELDS };
static const char *const field_names[FIELDS] = {"layout", "device_type", "dtype", "dim", "sizes", "strides", "data_ptr"};
static reader fields[FIELDS];
static bool fields_good; /* the stable C interface is there, and is used */
static int32_t strided, host, dtypes[ACOMM_DTYPES]; /* torch's numbers, or -1 */

/* 1 true, 0 false, -1 exception. */
static int ask(PyObject *tensor, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodObjArgs(tensor, method, NULL);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}

static tensor_handle handle(PyObject *tensor)
{
    return &((struct variable *)tensor)->impl;
}

static void *torch_find(void *library, const char *prefix, const char *name)
{
    char symbol[64];
    snprintf(symbol, sizeof symbol, "aoti_torch_%s_%s", prefix, name);
    return dlsym(library, symbol);
}

static int32_t constant(void *library, const char *prefix, const char *name)
{
    int32_t (*number)(void) = (int32_t (*)(void))torch_find(library, prefix, name);
    return number ? number() : -1;
}

static bool find_fields(void *library)
{
    bool all = true;
    for (int i = 0; i < FIELDS; i++)
        all &= (fields[i] = (reader)torch_find(library, "get", field_names[i])) != NULL;
    strided = constant(library, "layout", "strided");
    host = constant(library, "device_type", "cpu");
    for (int i = 0; i < ACOMM_DTYPES; i++)
        dtypes[i] = constant(library, "dtype", dtype_rows[i].label);
    return all;
}

static int dtype_of_torch(int32_t number)
{
    int dtype = ACOMM_DTYPES - 1;
    while (dtype >= 0 && dtypes[dtype] != number)
        dtype--;
    return dtype;
}

/* The rest is read only from a strided tensor on the host: others do not have it, and torch would warn on stderr. */
static bool torch_read_fields(struct view *view, tensor_handle tensor)
{
    int32_t layout, device, dtype;
    int64_t ndim;
    const int64_t *shape, *strides;
    void *data;
    if (fields[LAYOUT](tensor, &layout) || layout != strided || fields[DEVICE](tensor, &device) || device != host
        || fields[DTYPE](tensor, &dtype) || (view->dtype = dtype_of_torch(dtype)) < 0 || fields[NDIM](tensor, &ndim)
        || fields[SHAPE](tensor, (void *)&shape) || fields[STRIDES](tensor, (void *)&strides) || fields[DATA](tensor, &data))
        return false;
    view->data = data;
    view->ndim = (int)ndim;
    view->shape = shape;
    view->strides = strides;
    view->unit = dtype_rows[view->dtype].width;
    view->device_type = DL_CPU;
    return true;
}

/* Whether the functions return the same as the methods. */
static bool try_on(PyObject *tensor)
{
    PyObject *number = PyObject_GetAttrString(tensor, "_cdata");
    bool there = number && PyLong_AsVoidPtr(number) == *handle(tensor);
    Py_XDECREF(number);
    return there && is_neg(handle(tensor)) == ask(tensor, name_of_is_neg)
        && is_conj(handle(tensor)) == ask(tensor, name_of_is_conj);
}

/* Once in a process, when torch is loaded. 0, or -1 with an exception that is not torch's (Ctrl-C): the next call tries again. */
static int torch_look(void)
{
    if (looked)
        return 0;
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    is_neg = library ? (question)dlsym(library, "_ZN2at6native6is_negERKNS_6TensorE") : NULL;
    is_conj = library ? (question)dlsym(library, "_ZN2at6native7is_conjERKNS_6TensorE") : NULL;
    PyObject *samples = is_neg && is_conj ? refuse_call("torch_samples", NULL, NULL) : NULL;
    bool good = samples && PyTuple_Size(samples) > 0;
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(samples); i++)
        good = try_on(PyTuple_GetItem(samples, i));
    Py_XDECREF(samples);
    looked = !refuse_forget();
    if (!good || !looked)
        is_neg = is_conj = NULL;
    fields_good = is_neg && find_fields(library);
    if (library)
        dlclose(library);
    return looked ? 0 : -1;
}

static bool torch_complex(int dtype)
{
    return dtype == ACOMM_COMPLEX64 || dtype == ACOMM_COMPLEX128;
}

int torch_read(struct view *view, PyObject *tensor)
{
    if (torch_look())
        return -1;
    if (!fields_good || is_neg(handle(tensor)) || !torch_read_fields(view, handle(tensor)))
        return 0;
    if (!torch_complex(view->dtype) || !is_conj(handle(tensor)))
        return 1;
    view->dtype = -1;
    view->strides = NULL;
    return 0;
}

int torch_lazy(PyObject *tensor, int dtype)
{
    if (torch_look())
        return -1;
    if (is_neg)
        return is_neg(handle(tensor)) || (torch_complex(dtype) && is_conj(handle(tensor)));
    int lazy = ask(tensor, name_of_is_neg);
    return lazy || !torch_complex(dtype) ? lazy : ask(tensor, name_of_is_conj);
}

/* torch's exporters call int1 to int7 int8, and uint1 to uint7 uint8. */
int torch_whole_bytes(PyObject *tensor, int dtype)
{
    static PyObject *bytes[2]; /* torch.int8, torch.uint8 */
    PyObject **expected = &bytes[dtype == ACOMM_UINT8];
    if (dtype != ACOMM_INT8 && dtype != ACOMM_UINT8)
        return 1;
    if (!*expected)
        *expected = refuse_call("torch_byte", dtype == ACOMM_INT8 ? Py_True : Py_False, NULL);
    PyObject *actual = *expected ? PyObject_GetAttr(tensor, name_of_dtype) : NULL;
    Py_XDECREF(actual);
    return !actual ? -1 : actual == *expected;
}

int torch_init(void)
{
    name_of_is_neg = PyUnicode_InternFromString("is_neg");
    name_of_is_conj = PyUnicode_InternFromString("is_conj");
    name_of_dtype = PyUnicode_InternFromString("dtype");
    return PyErr_Occurred() ? -1 : 0;
}
