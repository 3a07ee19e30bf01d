/* The flight recorder: what a rank's groups do, written on the board that the debug page reads (arraycomm/debug/board.py, which
 * knows the layout). Operations that go the short way are written from there, all others by Python (flight_python.c).
 * Everything under the GIL: each function is one step for other threads, except where it says that it calls Python. */
#ifndef NATIVE_FLIGHT_H
#define NATIVE_FLIGHT_H
#include "forms.h"

enum flight_state { FLIGHT_RUNNING, FLIGHT_ASYNCHRONOUS, FLIGHT_DONE, FLIGHT_FAILED };

/* What operations of one kind have in common. The board has its text; `number` is that text's. */
#define FLIGHT_DIMS 6
struct flight_kind {
    int64_t lengths[FLIGHT_DIMS], tag;
    int32_t operation, ndim, dtype, root, redop;
    uint32_t given; /* a bit for each role that tells something */
    uint64_t number;
};
struct flight_link { int32_t row, peer; uint64_t number; bool known; };

#define FLIGHT_KINDS 256 /* remembered; more are asked for again */
#define FLIGHT_LINKS 64
struct flight {
    PyObject_HEAD
    Py_buffer memory;
    uint64_t *groups, *counts, *links, *records; /* parts of the board */
    uint64_t places;          /* of records */
    int classes, buckets;
    bool left;                /* in a child of the rank: nothing is written any more */
    uint64_t last;            /* number of the newest record */
    uint64_t *open;           /* by place: the number of the operation under way that has it; 0: none */
    PyObject *teller;         /* kind(operation, parameters), link(row, peer) and error(exception) -> numbers; NULL: cleared */
    struct flight_kind kinds[FLIGHT_KINDS];
    struct flight_link peers[FLIGHT_LINKS];
};

/* One operation. Who begins it fills in row, operation, peer (-1: none), kind and bytes. */
struct flight_entry {
    struct flight *flight; /* a reference while it is under way, else NULL */
    int32_t row, operation, peer;
    uint64_t kind, bytes, number, begun, sequence;
};

int flight_init(PyObject *module);
bool flight_check(PyObject *object);
/* Finds the number that stands for what else `key` tells. Calls Python where it is not remembered; false with an exception that no
 * operation may swallow. */
bool flight_find_kind(struct flight *flight, struct flight_kind *key, PyObject *const *given);
void flight_begin(struct flight *flight, struct flight_entry *entry);
/* RUNNING or ASYNCHRONOUS. Nothing where it has ended. */
void flight_mark(const struct flight_entry *entry, enum flight_state state);
/* It was not carried out: another way will be taken, and tell. */
void flight_drop(struct flight_entry *entry);
/* error: NULL, or the exception (None: one of which nothing is known). Nothing where it has ended. Calls Python for errors, and for the first message to a peer. */
void flight_end(struct flight_entry *entry, PyObject *error);
/* The same with the exception that is pending, which stays so. */
void flight_fail(struct flight_entry *entry);
#endif
