/* What torch's exporters do not show: that a tensor stands for its conjugate or negative, which torch computes lazily by bits of
 * it, and that its elements have fewer than eight bits. And what they do not show as fast.
 *
 * Functions of libtorch_cpu are called where a trial shows that they answer as the methods do, with what C++ extensions of torch
 * find in a tensor's object (THPVariable_Unpack, which is inline):
 * - is_neg() and is_conj(), which it exports but promises nothing about: a method takes 65 ns, most of them for giving up the GIL;
 * - those of its stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h), which say in 10 ns what DLPack's exchange API says in 40. */
#include "native.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct variable {
    PyObject_HEAD
    void *impl; /* an at::Tensor is this one pointer */
};
typedef void *const *tensor_handle;          /* a const at::Tensor &, and an AtenTensorHandle */
typedef bool (*question)(tensor_handle tensor);
typedef int (*reader)(tensor_handle tensor, void *out); /* 0, or it has failed */
static PyObject *name_of_is_neg, *name_of_is_conj, *name_of_dtype;
static bool looked;
static question is_neg, is_conj; /* NULL: the methods are asked */

enum field { LAYOUT, DEVICE, DTYPE, NDIM, SHAPE, STRIDES, DATA, FIELDS };
static const char *const field_names[FIELDS] = {"layout", "device_type", "dtype", "dim", "sizes", "strides", "data_ptr"};
static reader fields[FIELDS];
static bool fields_good; /* else nothing is read this way */
static int32_t strided, host; /* torch's numbers */
#define NUMBERS 128
static int8_t dtypes[NUMBERS]; /* by torch's number: ours, or -1 */

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

/* What one of torch's constants is, or -1. */
static int32_t constant(void *library, const char *prefix, const char *name)
{
    int32_t (*number)(void) = (int32_t (*)(void))torch_find(library, prefix, name);
    return number ? number() : -1;
}

static void find_fields(void *library)
{
    fields_good = true;
    for (int i = 0; i < FIELDS; i++)
        fields_good &= (fields[i] = (reader)torch_find(library, "get", field_names[i])) != NULL;
    strided = constant(library, "layout", "strided");
    host = constant(library, "device_type", "cpu");
    for (int i = 0; i < NUMBERS; i++)
        dtypes[i] = -1;
    for (int i = 0; i < ACOMM_DTYPES; i++) {
        int32_t number = constant(library, "dtype", dtype_rows[i].label);
        if (number >= 0 && number < NUMBERS)
            dtypes[number] = (int8_t)i;
    }
}

/* Only a strided one on the host is asked for the rest: the others' have none, and torch would write of it to stderr. */
static bool torch_read_fields(struct view *view, tensor_handle tensor)
{
    int32_t layout, device, dtype;
    int64_t ndim;
    const int64_t *shape, *strides;
    void *data;
    if (fields[LAYOUT](tensor, &layout) || layout != strided || fields[DEVICE](tensor, &device) || device != host
        || fields[DTYPE](tensor, &dtype) || dtype < 0 || dtype >= NUMBERS || dtypes[dtype] < 0 || fields[NDIM](tensor, &ndim)
        || fields[SHAPE](tensor, (void *)&shape) || fields[STRIDES](tensor, (void *)&strides) || fields[DATA](tensor, &data))
        return false;
    view->dtype = dtypes[dtype];
    view->data = data;
    view->ndim = (int)ndim;
    view->shape = shape;
    view->strides = strides;
    view->unit = dtype_rows[view->dtype].width;
    view->device_type = DL_CPU;
    return true;
}

/* Whether `sizes`, as a tuple, is what the method gives. */
static bool same_sizes(PyObject *expected, const int64_t *sizes, int ndim)
{
    PyObject *actual = buffer_shape(ndim, sizes);
    bool same = actual && PyObject_RichCompareBool(actual, expected, Py_EQ) == 1;
    Py_XDECREF(actual);
    return same;
}

/* Tries all functions on a sample: (tensor, its data_ptr(), its dtype's name, its shape, its stride()). Those that answer
 * otherwise are not called again. false: it is no sample. */
static bool try_on(PyObject *sample)
{
    PyObject *tensor, *shape, *strides, *number;
    unsigned long long address;
    const char *label;
    struct view view;
    if (!PyArg_ParseTuple(sample, "OKsOO", &tensor, &address, &label, &shape, &strides))
        return false;
    number = PyObject_GetAttrString(tensor, "_cdata");
    bool there = number && PyLong_AsVoidPtr(number) == *handle(tensor);
    Py_XDECREF(number);
    if (!there || is_neg(handle(tensor)) != ask(tensor, name_of_is_neg) || is_conj(handle(tensor)) != ask(tensor, name_of_is_conj))
        is_neg = is_conj = NULL;
    fields_good = is_neg && fields_good && torch_read_fields(&view, handle(tensor)) && (uintptr_t)view.data == address
        && !strcmp(dtype_rows[view.dtype].label, label) && same_sizes(shape, view.shape, view.ndim)
        && same_sizes(strides, view.strides, view.ndim);
    return is_neg != NULL;
}

/* torch is loaded: one of its tensors was seen. 0, or -1 with an exception that is not torch's, Ctrl-C say. */
static int find_functions(void)
{
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    is_neg = library ? (question)dlsym(library, "_ZN2at6native6is_negERKNS_6TensorE") : NULL;
    is_conj = library ? (question)dlsym(library, "_ZN2at6native7is_conjERKNS_6TensorE") : NULL;
    PyObject *samples = is_neg && is_conj ? refuse_call("torch_samples", NULL, NULL) : NULL;
    bool good = samples && PyTuple_Size(samples) > 0;
    if (good)
        find_fields(library);
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(samples); i++)
        good = try_on(PyTuple_GetItem(samples, i));
    Py_XDECREF(samples);
    if (!good)
        is_neg = is_conj = NULL;
    fields_good &= good;
    if (library)
        dlclose(library);
    return refuse_forget();
}

/* 0, or -1 with an exception: it is tried again. */
static int torch_look(void)
{
    if (!looked && find_functions()) {
        is_neg = is_conj = NULL;
        fields_good = false;
        return -1;
    }
    looked = true;
    return 0;
}

int torch_read(struct view *view, PyObject *tensor)
{
    if (!looked && torch_look())
        return -1;
    if (!fields_good || is_neg(handle(tensor)) || !torch_read_fields(view, handle(tensor)))
        return 0;
    bool complex = view->dtype == ACOMM_COMPLEX64 || view->dtype == ACOMM_COMPLEX128;
    if (!complex || !is_conj(handle(tensor)))
        return 1;
    view->dtype = -1;
    view->strides = NULL;
    return 0;
}

int torch_lazy(PyObject *tensor, int dtype)
{
    bool complex = dtype == ACOMM_COMPLEX64 || dtype == ACOMM_COMPLEX128;
    if (torch_look())
        return -1;
    if (is_neg)
        return is_neg(handle(tensor)) || (complex && is_conj(handle(tensor)));
    int lazy = ask(tensor, name_of_is_neg);
    return lazy || !complex ? lazy : ask(tensor, name_of_is_conj);
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
