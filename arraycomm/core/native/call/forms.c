/* The methods of a group that have a fast path: their parameters, and what results they give. */
#include "call.h"
#include <string.h>

static const char *const NAMES[ROLES] = {
    "x", "like", "op", "root", "dest", "source", "tag", "out", "timeout",
    "async_op", "form", "uneven", "counts", "send_counts", "recv_counts",
};
static PyObject *names_of[ROLES]; /* interned, as the names in every call are */
static PyObject *defaults[ROLES];

int forms_init(void)
{
    for (int role = 0; role < ROLES; role++) {
        names_of[role] = PyUnicode_InternFromString(NAMES[role]);
        defaults[role] = Py_None;
    }
    defaults[ROLE_ASYNC] = defaults[ROLE_UNEVEN] = Py_False;
    defaults[ROLE_FORM] = PyUnicode_InternFromString("concat");
    return PyErr_Occurred() ? -1 : 0;
}

static int role_of(const struct form *form, PyObject *name)
{
    for (int i = 0; i < form->parameters; i++)
        if (form->roles[i] < ROLES && names_of[form->roles[i]] == name)
            return form->roles[i];
    return ROLES;
}

static bool forms_take(PyObject **given, int role, PyObject *value)
{
    bool async = role == ROLE_ASYNC && value == Py_True;
    if (role == ROLES || given[role] || (role == ROLE_TAG && value == Py_None) || (role >= ROLE_ASYNC && value != defaults[role] && !async))
        return false;
    given[role] = value;
    return true;
}

int forms_read(PyObject *names, int positional, struct form *form)
{
    Py_ssize_t parameters = PyTuple_Size(names);
    if (parameters > FORMS_MOST || positional > parameters) {
        PyErr_SetString(PyExc_ValueError, "a method has a few parameters, of which some can be given by position");
        return -1;
    }
    *form = (struct form){.positional = (uint8_t)positional, .parameters = (uint8_t)parameters};
    for (int i = 0; i < parameters; i++) {
        int role = 0;
        while (role < ROLES && PyUnicode_Compare(names_of[role], PyTuple_GetItem(names, i)))
            role++;
        form->roles[i] = (uint8_t)role;
    }
    return 0;
}

bool forms_sort(const struct form *form, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject **given)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    bool plain = positional <= form->positional;
    for (Py_ssize_t i = 0; i < positional && plain; i++)
        plain = forms_take(given, form->roles[i], args[i]);
    for (Py_ssize_t i = 0; i < named && plain; i++)
        plain = forms_take(given, role_of(form, PyTuple_GetItem(names, i)), args[positional + i]);
    if (!plain || given[ROLE_TAG] == Py_None)
        return false;
    for (int role = 0; role < ROLE_ASYNC; role++)
        if (given[role] == Py_None)
            given[role] = NULL;
    return true;
}

PyObject *forms_parameters(PyObject *const *given)
{
    PyObject *parameters = PyDict_New();
    for (int role = 0; parameters && role < ROLES; role++)
        if (given[role] && PyDict_SetItem(parameters, names_of[role], given[role]))
            Py_CLEAR(parameters);
    return parameters;
}

int forms_shape(int array, const struct view *x, int size, int64_t *lengths)
{
    for (int i = 0; i < x->ndim; i++)
        lengths[i] = x->shape[i];
    if (array == ACOMM_JOINS) {
        lengths[0] = x->ndim ? lengths[0] * size : size;
        return x->ndim ? x->ndim : 1;
    }
    if (array == ACOMM_CUTS)
        lengths[0] /= size;
    return x->ndim;
}

/* Programs use few shapes, and making the tuple takes longer than the rest of a small operation's preparation. */
#define REMEMBERED 64
#define SHORT 6
int forms_layout(int ndim, const int64_t *lengths, uint32_t *layout)
{
    static struct { int64_t lengths[SHORT]; int ndim; uint32_t layout; } known[REMEMBERED];
    static const int64_t none[1];
    uint64_t mixed = (uint64_t)ndim;
    if (!ndim)
        lengths = none; /* not NULL, which memcmp() and memcpy() may not be given */
    for (int i = 0; i < ndim; i++)
        mixed = (mixed ^ (uint64_t)lengths[i]) * 0x9E3779B97F4A7C15u;
    int place = (int)(mixed >> 58); /* 6 bits: REMEMBERED */
    size_t bytes = (size_t)ndim * sizeof *lengths;
    if (ndim <= SHORT && known[place].layout && known[place].ndim == ndim && !memcmp(known[place].lengths, lengths, bytes)) {
        *layout = known[place].layout;
        return 0;
    }
    PyObject *shape = buffer_shape(ndim, lengths);
    Py_hash_t hash = shape ? PyObject_Hash(shape) : -1;
    Py_XDECREF(shape);
    *layout = (uint32_t)hash | 1;
    if (hash != -1 && ndim <= SHORT) {
        memcpy(known[place].lengths, lengths, bytes);
        known[place].ndim = ndim;
        known[place].layout = *layout;
    }
    return hash == -1 ? -1 : 0;
}
