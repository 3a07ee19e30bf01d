/* The fast path's call (shortcut.c) and the types behind it (shortcut_types.c). */
#ifndef NATIVE_SHORTCUT_H
#define NATIVE_SHORTCUT_H
#include "flight/flight.h"
#include "operation.h"

struct shortcut_base { /* Shortcuts */
    PyObject_HEAD
    PyObject *shortcut; /* a Shortcut, or anything else: none */
    PyObject *batch;    /* a list: messages are begun, and their Works listed here; anything else: none */
    PyObject *flight;   /* a Flight, where it is the group's only watcher (core/diagnostics/watch.py); anything else: none */
    int row;            /* the group's on the flight's board */
    long long count;    /* of watched collectives */
};
extern PyTypeObject *shortcut_base_type, *shortcut_type;

typedef PyObject *(*vector_call)(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names);
struct shortcut_method { /* ShortcutMethod */
    PyObject_HEAD
    vector_call call;
    PyObject *function; /* the slow path; NULL: what would take it gives NotImplemented, and nothing has been sent */
    struct form form;
    int kind;
    bool begins;        /* returns a Work at once */
    bool watched;       /* of a watched group: the fast path is open where that is told by a flight */
};

/* The method's call, by vectorcall. */
PyObject *shortcut_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);
#endif
