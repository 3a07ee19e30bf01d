/* What a backend lends for native calls, and the operations under way in it. Everything under the GIL. */
#ifndef NATIVE_OPERATION_H
#define NATIVE_OPERATION_H
#include "native.h"

/* In the list of its shortcut while it is under way. */
struct flight_entry;
struct operation_links { struct operation_links *prev, *next; };

struct shortcut {
    PyObject_HEAD
    const acomm_entries *entries;
    acomm_group *group;            /* NULL: closed */
    int rank, size;
    PyObject *error;               /* error(code, address of an acomm_failure) -> exception */
    struct operation_links under_way; /* latest first; the list holds a reference to each */
    int calling;                   /* threads between the look whether the group is open and their way back from the engine */
    struct handle *handle;         /* handle.h; NULL: nobody has asked for the number */
    int64_t number;
};

int operation_init(PyObject *module);
bool operation_check(PyObject *object);
/* The handle of an operation that was started; takes `op`. The owners keep its memory, NULL: none. Gives `op` back and
 * returns NULL with an exception when memory is out. */
PyObject *operation_new(struct shortcut *s, acomm_op *op, PyObject *first, PyObject *second);
/* It is on the flight recorder, which is told its end when the program learns of it. Takes the entry over. */
void operation_record(PyObject *self, struct flight_entry *entry);
/* Waits until it has ended, for `timeout` seconds at most; None, NULL: without a limit. -1 with an exception, a TimeoutError where it goes on. */
int operation_await(PyObject *self, PyObject *timeout);
/* Whether it has ended, well or not. */
bool operation_done(PyObject *self);
/* After the end of a receive. */
void operation_source(PyObject *self, int *rank, int64_t *tag, uint64_t *bytes);
/* The argument of wait(timeout=None) and its like, borrowed; false with an exception. */
bool operation_argument(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *names, PyObject **timeout);
/* The engine has ended all operations: takes over how, and gives their handles back. */
void operation_end_all(struct shortcut *s);
/* Lets go of a few that have ended and that nobody asks for any more. */
void operation_reap(struct shortcut *s);
/* For the collector. */
void operation_forget_all(struct shortcut *s);
int operation_traverse_all(struct shortcut *s, visitproc visit, void *arg);
#endif
