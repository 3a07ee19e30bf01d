/* The plain forms of a group's methods: the parameters that their signatures have. What an operation does stands in
 * operations.def; the fast path (shortcut.c) knows it by these two only. */
#ifndef NATIVE_FORMS_H
#define NATIVE_FORMS_H
#include "native.h"

/* Parameters of all methods. From ROLE_FORM on they only ever have their defaults on the fast path. */
enum role {
    ROLE_X, ROLE_LIKE, ROLE_OP, ROLE_ROOT, ROLE_DEST, ROLE_SOURCE, ROLE_TAG, ROLE_OUT, ROLE_TIMEOUT,
    ROLE_ASYNC, ROLE_FORM, ROLE_UNEVEN, ROLE_COUNTS, ROLE_SENDS, ROLE_RECEIVES, ROLES
};

#define FORMS_MOST 10
struct form {
    uint8_t roles[FORMS_MOST];   /* in the order of the signature; ROLES: a parameter that the fast path does not know */
    uint8_t positional, parameters; /* so many may be given by position, and there are altogether */
};

int forms_init(void);
/* From the names of a method's parameters (a tuple of str), as many of which may be given by position. -1 with an exception. */
int forms_read(PyObject *names, int positional, struct form *form);
/* Sorts the arguments of a call by role; NULL where not given, or None, which means the same but as a tag. False: they are not
 * those of the plain form. */
bool forms_sort(const struct form *form, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject **given);
/* A dict of those that were given, by name; NULL with an exception. */
PyObject *forms_parameters(PyObject *const *given);
/* The shape of what comes of x where arrays are divided so (operations.def); returns the number of dimensions. */
int forms_shape(int array, const struct view *x, int size, int64_t *lengths);
/* As shapes.layout() in Python, which ranks that took the slow path compare with: Python's own hash of the tuple. */
int forms_layout(int ndim, const int64_t *lengths, uint32_t *layout);
#endif
