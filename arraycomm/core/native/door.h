/* Groups by number, for native callers that come from threads without the GIL and know a group by nothing else: programs
 * that another library has compiled. A number is never used again, so a call of a closed group is an error, not a crash. */
#ifndef NATIVE_DOOR_H
#define NATIVE_DOOR_H
#include "operation.h"

struct door {
    _Atomic(acomm_group *) group;  /* NULL: closed */
    const acomm_entries *entries;
    _Atomic int inside;            /* callers between door_enter() and door_leave() */
    int rank, size;
    struct shortcut *shortcut;     /* a reference while callers may be inside, else NULL */
    PyObject *report;              /* report(number, exception or None where the group is closed, about) -> text of the error */
    PyObject *enqueue;             /* enqueue(fields, source, target, stream) -> None, or text of the error: on a GPU */
};

/* The number of the shortcut's group, from 1: the same one each time. -1 with an exception. */
int64_t door_open(struct shortcut *shortcut, PyObject *report, PyObject *enqueue);
/* No new callers come in. */
void door_close(struct door *door);
/* Those that were inside are out. */
void door_end(struct door *door);

/* ---- no GIL ---- */
/* Every call is followed by door_leave(). NULL: no such number in this process. *group: NULL when it is closed. */
struct door *door_enter(int64_t number, acomm_group **group);
void door_leave(struct door *door);
/* What a failed call's error says; to be freed. NULL: no memory. about: for report(); closed: the group was not entered. */
char *door_explain(struct door *door, int64_t number, int64_t about, int code, const acomm_failure *failure, bool closed);
/* Calls enqueue(). places: source, target, stream. false: it failed; *text as door_explain()'s. */
bool door_enqueue(struct door *door, const int64_t *fields, int count, const uintptr_t *places, char **text);
#endif
