/* The plain forms of a group's methods, one row each: what parameters they have, who gives and who gets, and
 * how the result's shape follows. The short way (shortcut.c) knows operations by this table only. */
#ifndef NATIVE_FORMS_H
#define NATIVE_FORMS_H
#include "native.h"

/* Parameters of all methods. From ROLE_FORM on they only ever have their defaults on the short way. */
enum role {
    ROLE_X, ROLE_LIKE, ROLE_OP, ROLE_ROOT, ROLE_DEST, ROLE_SOURCE, ROLE_TAG, ROLE_OUT, ROLE_TIMEOUT,
    ROLE_ASYNC, ROLE_FORM, ROLE_UNEVEN, ROLE_COUNTS, ROLE_SENDS, ROLE_RECEIVES, ROLES
};
enum form_who { WHO_NOBODY, WHO_ALL, WHO_ROOT };
enum form_shape { SHAPE_SAME, SHAPE_JOINED, SHAPE_DIVIDED }; /* by the group's size, along the first dimension */
/* Where `out` may share memory with the input: nowhere, as the same array, around it (the input is this rank's block of
 * out), or within it (out is this rank's block of the input). */
enum form_overlap { OVERLAP_NONE, OVERLAP_SAME, OVERLAP_AROUND, OVERLAP_WITHIN };

struct form {
    uint8_t roles[8];      /* in the order of the signature; ROLES ends */
    uint8_t positional;    /* so many of them may be given by position */
    uint8_t gives, gets;   /* enum form_who */
    uint8_t shape;         /* of the result */
    uint8_t overlap;
    bool divides;          /* the engine counts the elements of one rank's part of the input */
    bool optional;         /* the first parameter may be left away */
};
extern const struct form forms[ACOMM_KINDS];

int forms_init(void);
/* Sorts the arguments of a call by role; NULL where not given, or None, which means the same but as a tag. False: they are not
 * those of the plain form. */
bool forms_sort(const struct form *form, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject **given);
/* A dict of those that were given, by name; NULL with an exception. */
PyObject *forms_parameters(PyObject *const *given);
/* x's shape as the rule changes it; returns the number of dimensions. */
int forms_shape(enum form_shape rule, const struct view *x, int size, int64_t *lengths);
/* As shapes.layout() in Python, which ranks that went the long way compare with: Python's own hash of the tuple. */
int forms_layout(int ndim, const int64_t *lengths, uint32_t *layout);
#endif
