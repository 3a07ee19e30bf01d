/* The flight recorder: the operations of a rank's groups. An operation is recorded here once, and written in one of two places:
 * on the board that the debug page reads (flight/board.c), or in a list for a trace's file (flight/trace.c). Operations that take
 * the fast path are recorded from there, all others by Python (flight/python.c).
 * Everything under the GIL: each function is one step for other threads, except where it says that it calls Python. */
#ifndef NATIVE_FLIGHT_H
#define NATIVE_FLIGHT_H
#include "call/call.h"

enum flight_state { FLIGHT_RUNNING, FLIGHT_ASYNCHRONOUS, FLIGHT_DONE, FLIGHT_FAILED };

/* The common data of operations of one kind. `told`: the teller's object for it. */
#define FLIGHT_DIMS 6
struct flight_kind {
    int64_t lengths[FLIGHT_DIMS], tag;
    int32_t operation, ndim, dtype, root, redop;
    uint32_t given; /* a bit for each role with information */
    PyObject *told;
};
#define FLIGHT_KINDS 256 /* cached; further ones are requested each time */

struct flight_group { uint64_t begun, ended, bytes; }; /* collectives: the last begun and the last ended; bytes sent */
struct flight_entry;
struct flight_writer { /* all but the last may be NULL */
    void (*begin)(struct flight_entry *entry);
    void (*mark)(struct flight_entry *entry, enum flight_state state);
    void (*drop)(struct flight_entry *entry);
    /* text: the teller's object for the error, or NULL. Afterwards the entry has no owner. May call Python at its end. */
    void (*end)(struct flight_entry *entry, uint64_t now, PyObject *error, PyObject *text);
};

/* The common first members. */
struct flight {
    PyObject_HEAD
    const struct flight_writer *writer;
    PyObject *teller; /* kind(operation, parameters) and error(exception) -> objects that describe them; NULL: cleared */
    struct flight_group *groups; /* by row */
    bool left;        /* in a forked child: nothing is written any more */
    struct flight_kind kinds[FLIGHT_KINDS];
};

/* One operation. Its creator fills in row, operation, peer (-1: none), kind (a reference, NULL: none) and bytes. */
struct flight_entry {
    struct flight *flight; /* a reference while it is under way, else NULL */
    PyObject *kind;
    int32_t row, operation, peer, thread;
    uint64_t bytes, begun, called, sequence; /* called: when an asynchronous call returned, 0: not yet */
    uint64_t number, text; /* the writer's own */
};

int flight_init(PyObject *module);
bool flight_check(PyObject *object);
/* Begins the entry of a call on the fast path; the entry has its row. view: of the array, NULL: none. Calls Python for a kind of
 * operations that is not cached; false with an exception that no operation may discard. */
bool flight_record(struct flight *flight, struct flight_entry *entry, const acomm_call *call, bool begins,
                   const struct view *view, PyObject *const *given);
/* Takes ownership of entry->kind. */
void flight_begin(struct flight *flight, struct flight_entry *entry);
/* RUNNING or ASYNCHRONOUS. Nothing where it has ended. */
void flight_mark(struct flight_entry *entry, enum flight_state state);
/* The operation was not carried out: the slow path will record it. */
void flight_drop(struct flight_entry *entry);
/* error: NULL, or the exception (None: one of which nothing is known). Nothing where it has ended. May call Python, and let
 * other threads run. */
void flight_end(struct flight_entry *entry, PyObject *error);
/* The same with the exception that is pending, which stays so. */
void flight_fail(struct flight_entry *entry);
/* The entry's holder is freed. */
void flight_forget(struct flight_entry *entry);

/* ---- for the writers ---- */
static inline bool flight_collective(const struct flight_entry *entry)
{
    return entry->operation < ACOMM_KINDS && acomm_operations[entry->operation].array != ACOMM_MESSAGE;
}
/* The answer, or NULL if the call failed, which is reported: an operation continues, recorded or not. */
PyObject *flight_answer(PyObject *answer, PyObject *about);
/* Functions of both writers' types. */
int flight_traverse(PyObject *self, visitproc visit, void *arg);
int flight_clear(PyObject *self);
PyObject *flight_begin_method(PyObject *self, PyObject *args);
extern PyType_Spec flight_board_spec, flight_trace_spec;
#endif
