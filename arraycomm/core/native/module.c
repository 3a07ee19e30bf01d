/* The extension is cffi's module; this file adds the functions of this folder to its `ffi` and `lib`. */
#include "call/call.h"

/* cffi's own init function, renamed by cffi_build. */
PyObject *engine_cffi_init(void);

void native_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    ((inquiry)PyType_GetSlot(type, Py_tp_clear))(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int native_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? PyModule_AddType(module, *type) : -1;
}

static PyMethodDef functions[] = {
    {"resolve", resolve_in, METH_O, "resolve(array) -> Buffer to read from; a strided host array is packed into a copy"},
    {"resolve_out", resolve_out, METH_O, "resolve_out(array) -> Buffer to write into"},
    {"writable", resolve_writable, METH_O, "writable(array) -> Buffer, for out=: see arraycomm.writable"},
    {"pack", resolve_pack, METH_O, "pack(array) -> Buffer: a copy in memory of its own"},
    {"allocate", FAST(buffer_allocate_shape), METH_FASTCALL, "allocate(shape, dtype) -> Buffer in memory of its own"},
    {"adopt", adopted_adopt, METH_VARARGS, "adopt(shape, dtype, address, release, context) -> Buffer over memory that exists"},
    {"give_back", adopted_give_back, METH_NOARGS, "give_back(): waits until memory of devices that nobody needs is free"},
    {"wrap", FAST(types_wrap), METH_FASTCALL, "wrap(buffer, template) -> array of the template's library"},
    {"overlaps", FAST(buffer_overlaps), METH_FASTCALL, "overlaps(a, b): whether two Buffers share memory"},
    {"layout", forms_layout_of, METH_O, "layout(shape) -> 32 bits that differ where shapes differ, and are never 0"},
    {"interrupted", interrupt_take, METH_NOARGS, "interrupted() -> what a signal handler raised inside the engine, or None"},
    {"interrupting", interrupt_runs, METH_NOARGS, "interrupting() -> whether the caller is a handler of a signal that came inside the engine"},
    {NULL, NULL, 0, NULL},
};

PyMODINIT_FUNC PyInit__engine(void)
{
    PyObject *module = engine_cffi_init();
    if (!module)
        return NULL;
    if (PyModule_AddFunctions(module, functions) || buffer_init(module) || operation_init(module)
        || work_init(module) || shortcut_init(module) || view_init()
        || torch_init()) {
        Py_DECREF(module);
        return NULL;
    }
    interrupt_init();
    return module;
}
