/* Groups by number, for native callers, who come from threads without the GIL and know a group by nothing else: the C API (c_api.c).
 * A number is never used again, so a call of a closed group is an error, not a crash. */
#ifndef NATIVE_HANDLE_H
#define NATIVE_HANDLE_H
#include "operation.h"
#include <pthread.h>

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
/* No new callers come in. */
void handle_close(struct handle *handle);
/* The engine has ended their operations: waits until they are out. */
void handle_end(struct handle *handle);
/* In c_api/work.c: takes over how the operations under way have ended, and gives them back. */
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
/* The call of this thread has failed elsewhere; returns the code. failure: its code 0: none. */
int c_api_fail(int64_t number, int code, const acomm_failure *failure);
#endif
