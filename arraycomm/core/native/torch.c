/* What torch's exporters do not show: that a tensor stands for its conjugate or negative, which torch computes lazily by bits of
 * it, and that its elements have fewer than eight bits.
 *
 * is_neg() as a method takes 65 ns, most of them for giving up the GIL and taking it back. So the functions behind it are called
 * where a trial shows that they answer as the methods do: libtorch_cpu exports them but promises nothing, and what they take lies
 * in the tensor's object where C++ extensions of torch find it (THPVariable_Unpack, which is inline). */
#include "native.h"
#include <dlfcn.h>

struct variable {
    PyObject_HEAD
    void *impl; /* an at::Tensor is this one pointer */
};
typedef bool (*question)(void *const *tensor); /* of a const at::Tensor & */
static PyObject *name_of_is_neg, *name_of_is_conj, *name_of_dtype;
static question is_neg, is_conj; /* NULL: the methods are asked */

/* 1 true, 0 false, -1 exception. */
static int ask(PyObject *tensor, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodObjArgs(tensor, method, NULL);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}

static void *const *handle(PyObject *tensor)
{
    return &((struct variable *)tensor)->impl;
}

static bool agree(PyObject *tensor, question neg, question conj)
{
    PyObject *number = PyObject_GetAttrString(tensor, "_cdata");
    bool there = number && PyLong_AsVoidPtr(number) == *handle(tensor);
    Py_XDECREF(number);
    return there && neg(handle(tensor)) == ask(tensor, name_of_is_neg) && conj(handle(tensor)) == ask(tensor, name_of_is_conj);
}

/* torch is loaded: one of its tensors was seen. 0, or -1 with an exception that is not torch's, Ctrl-C say. */
static int find_functions(void)
{
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    question neg = library ? (question)dlsym(library, "_ZN2at6native6is_negERKNS_6TensorE") : NULL;
    question conj = library ? (question)dlsym(library, "_ZN2at6native7is_conjERKNS_6TensorE") : NULL;
    PyObject *samples = neg && conj ? refuse_call("torch_samples", NULL, NULL) : NULL;
    bool good = samples && PyTuple_Size(samples) > 0;
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(samples); i++)
        good = agree(PyTuple_GetItem(samples, i), neg, conj);
    Py_XDECREF(samples);
    is_neg = good ? neg : NULL;
    is_conj = good ? conj : NULL;
    if (library)
        dlclose(library);
    return refuse_forget();
}

int torch_lazy(PyObject *tensor, int dtype)
{
    static bool looked;
    bool complex = dtype == ACOMM_COMPLEX64 || dtype == ACOMM_COMPLEX128;
    if (!looked && find_functions())
        return -1;
    looked = true;
    if (is_neg)
        return is_neg(handle(tensor)) || (complex && is_conj(handle(tensor)));
    int lazy = ask(tensor, name_of_is_neg);
    return lazy || !complex ? lazy : ask(tensor, name_of_is_conj);
}

/* torch's exporters call int1 to int7 int8, and uint1 to uint7 uint8. */
int torch_whole_bytes(PyObject *tensor, int dtype)
{
    static PyObject *dtypes[2]; /* torch.int8, torch.uint8 */
    PyObject **expected = &dtypes[dtype == ACOMM_UINT8];
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
