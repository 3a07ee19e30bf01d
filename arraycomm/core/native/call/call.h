/* From a method's call into the engine and back: what the files of this folder share. Everything under the GIL, except where
 * "no GIL" stands. */
#ifndef NATIVE_CALL_H
#define NATIVE_CALL_H
#include "native.h"
#include <pthread.h>

/* ---- the plain forms of a group's methods, which have the parameters of their signatures. What an operation does stands in
 * operations.def; the fast path (shortcut.c) knows it by these two only. ---- */

/* Parameters of all methods. From ROLE_FORM on they only ever have their defaults on the fast path. */
enum role {
    ROLE_X, ROLE_LIKE, ROLE_OP, ROLE_ROOT, ROLE_DEST, ROLE_SOURCE, ROLE_TAG, ROLE_OUT, ROLE_TIMEOUT,
    ROLE_ASYNC, ROLE_FORM, ROLE_UNEVEN, ROLE_COUNTS, ROLE_SENDS, ROLE_RECEIVES, ROLES
};

#define FORMS_MOST 10
struct form {
    uint8_t roles[FORMS_MOST];   /* in the order of the signature; ROLES: a parameter unknown to the fast path */
    uint8_t positional, parameters; /* number of positional parameters, and of all */
};

/* In shortcut_types.c. Names are interned, as those in every call are. */
extern PyObject *forms_names[ROLES], *forms_defaults[ROLES];

/* ---- operation.c: a backend's entry points for native calls, and the operations under way in it ---- */

/* In the list of its shortcut while it is under way. */
struct operation_links { struct operation_links *prev, *next; };

struct shortcut {
    PyObject_HEAD
    const acomm_entries *entries;
    acomm_group *group;            /* NULL: closed */
    int rank, size;
    PyObject *error;               /* error(code, address of an acomm_failure) -> exception */
    struct operation_links under_way; /* latest first; the list holds a reference to each */
    int calling;                   /* threads between the check that the group is open and their return from the engine */
    struct handle *handle;         /* NULL: its number has not been requested */
    int64_t number;
};

/* Whether the engine has ended it. No GIL. */
static inline bool operation_over(const acomm_entries *entries, acomm_op *op)
{
    int32_t rank;
    int64_t tag;
    uint64_t bytes;
    return entries->source(op, &rank, &tag, &bytes) == 0;
}

int operation_init(PyObject *module);
bool operation_check(PyObject *object);
/* The handle of a started operation; owns `op`. The owners keep its memory, NULL: none. NULL with an exception when memory is
 * out, and `op` is freed. */
PyObject *operation_new(struct shortcut *s, acomm_op *op, PyObject *first, PyObject *second);
/* Waits until it has ended, for `timeout` seconds at most; None, NULL: without a limit. -1 with an exception, a TimeoutError if
 * it is still under way. */
int operation_await(PyObject *self, PyObject *timeout);
/* Whether it has ended, with success or failure. */
bool operation_done(PyObject *self);
/* After the end of a receive. */
void operation_source(PyObject *self, int *rank, int64_t *tag);
/* The argument of wait(timeout=None) and its like, borrowed; false with an exception. */
bool operation_argument(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *names, PyObject **timeout);
/* The exception for a failed operation; failure: NULL or its code 0: none. */
PyObject *operation_error(const struct shortcut *s, int code, const acomm_failure *failure);
/* The engine has ended all operations: copies their results, and frees their handles. */
void operation_end_all(struct shortcut *s);
/* Drops a few that have ended and have no other reference. */
void operation_reap(struct shortcut *s);
/* For the collector. */
void operation_forget_all(struct shortcut *s);
int operation_traverse_all(struct shortcut *s, visitproc visit, void *arg);

/* ---- shortcut.c: the fast path's call; shortcut_types.c: the types behind it ---- */

struct shortcut_base { /* Shortcuts */
    PyObject_HEAD
    PyObject *shortcut; /* a Shortcut, or anything else: none */
    PyObject *batch;    /* a list: messages are begun, and their Works listed here; anything else: none */
};
extern PyTypeObject *shortcut_base_type, *shortcut_type;

typedef PyObject *(*vector_call)(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names);
struct shortcut_method { /* ShortcutMethod */
    PyObject_HEAD
    vector_call call;
    PyObject *function; /* the slow path; NULL: calls for it return NotImplemented, and nothing has been sent */
    struct form form;
    int kind;
    bool begins;        /* returns a Work at once */
};

/* The slow path: the function; NotImplemented where there is none. */
PyObject *shortcut_slow(const struct shortcut_method *m, PyObject *const *args, Py_ssize_t nargs, PyObject *names);
/* The method's call, by vectorcall. */
PyObject *shortcut_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names);

/* ---- handle.c: the group handle table, for native callers from threads without the GIL, which know a group only by its number:
 * the C API (c_api.c). A number is never used again, so a call of a closed group is an error, not a crash. ---- */

struct acomm_work;
struct handle {
    _Atomic(acomm_group *) group;  /* NULL: closed */
    const acomm_entries *entries;
    _Atomic int inside;            /* callers between handle_enter() and handle_leave() */
    int rank, size;
    struct shortcut *shortcut;     /* a reference while callers may be inside, else NULL; with the GIL, as the next */
    PyObject *owner;               /* the Group */
    pthread_mutex_t lock;
    struct acomm_work *works;      /* operations under way */
    _Atomic bool ending;           /* they are about to be settled */
};

/* The number of the shortcut's group, from 1: the same one each time. -1 with an exception. */
int64_t handle_open(struct shortcut *shortcut, PyObject *owner);
/* The engine has ended their operations: waits until no caller is inside. */
void handle_end(struct handle *handle);
/* In c_api/work.c: copies the results of the operations under way, and frees them. */
void c_api_settle(struct handle *handle);

/* ---- no GIL ---- */
/* NULL: no such number in this process. */
struct handle *handle_find(int64_t number);
/* The same; followed by handle_leave(). *group: NULL when it is closed. */
struct handle *handle_enter(int64_t number, acomm_group **group);
void handle_leave(struct handle *handle);

/* ---- c_api.c, c_api/error.c: for frameworks/native ---- */
extern const acomm_api c_api;
/* With the GIL: the exception for the last call of this thread that failed; None where its group is closed, NULL: none can be made. */
PyObject *c_api_exception(void);
/* Records that this thread's call has failed elsewhere; returns the code. failure: its code 0: none. */
int c_api_fail(int64_t number, int code, const acomm_failure *failure);
#endif
