/* Flight: writes operations on the board that the debug page reads (arraycomm/monitor/board.py, which knows the layout). */
#include "flight.h"
#include <stdatomic.h>
#include <stdlib.h>

enum { NUMBER, BEGUN, ENDED, KIND, ROW, SEQUENCE, BYTES, WHAT, RECORD }; /* words of a record: board.RECORD */
enum { CALLS, CALLS_BYTES, FAILURES, NANOSECONDS, BUCKETS };             /* of a count */
#define OPERATION_SHIFT 8
#define ERROR_SHIFT 16

#define LINKS 64
struct known_link { int32_t row, peer; uint64_t number; bool known; };

struct board {
    struct flight flight;
    Py_buffer memory;
    uint64_t *counts, *links, *records; /* parts of the board, as flight.groups */
    uint64_t places;          /* of records */
    int classes, buckets;
    uint64_t last;            /* number of the newest record */
    uint64_t *open;           /* by slot: the number of the operation under way in it; 0: none */
    struct known_link peers[LINKS];
};

static struct board *flight_board_of(const struct flight_entry *e)
{
    return (struct board *)e->flight;
}

static int bits(uint64_t n)
{
    return n ? 64 - __builtin_clzll(n) : 0;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Of a text; 0 where there is none. */
static uint64_t number_of(PyObject *told, PyObject *about)
{
    uint64_t number = told ? PyLong_AsUnsignedLongLong(told) : 0;
    if (!PyErr_Occurred())
        return number;
    PyErr_WriteUnraisable(about);
    return 0;
}

/* ---- records ---- */

static uint64_t *place_of(const struct flight_entry *e)
{
    return flight_board_of(e)->records + e->number % flight_board_of(e)->places * RECORD;
}

static void flight_board_put(uint64_t *word, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_relaxed);
}

/* Number 0 is no record: this process may be stopped or killed before the rest is there. */
static void write_record(const struct flight_entry *e, uint64_t ended, uint64_t what)
{
    uint64_t *record = place_of(e);
    flight_board_put(record + NUMBER, 0);
    atomic_thread_fence(memory_order_release);
    flight_board_put(record + BEGUN, e->begun);
    flight_board_put(record + ENDED, ended);
    flight_board_put(record + KIND, e->text);
    flight_board_put(record + ROW, (uint64_t)e->row);
    flight_board_put(record + SEQUENCE, e->sequence);
    flight_board_put(record + BYTES, e->bytes);
    flight_board_put(record + WHAT, what | (uint64_t)e->operation << OPERATION_SHIFT);
    atomic_store_explicit((_Atomic uint64_t *)(record + NUMBER), e->number, memory_order_release);
}

static bool has_place(const struct flight_entry *e)
{
    return !e->flight->left && flight_board_of(e)->open[e->number % flight_board_of(e)->places] == e->number;
}

/* The next slot without an operation under way; if all are in use, the next one. */
static void take_place(struct flight_entry *e)
{
    struct board *b = flight_board_of(e);
    for (uint64_t i = 0; i < b->places; i++)
        if (!b->open[++b->last % b->places])
            break;
    e->number = b->last;
    b->open[b->last % b->places] = e->number;
}

static void leave_place(const struct flight_entry *e)
{
    if (has_place(e))
        flight_board_of(e)->open[e->number % flight_board_of(e)->places] = 0;
}

/* ---- operations ---- */

static void flight_board_begin(struct flight_entry *e)
{
    e->text = number_of(e->kind, e->flight->teller);
    take_place(e);
    write_record(e, 0, FLIGHT_RUNNING);
}

static void flight_board_mark(struct flight_entry *e, enum flight_state state)
{
    if (has_place(e))
        write_record(e, 0, state);
}

static void drop(struct flight_entry *e)
{
    if (has_place(e))
        flight_board_put(place_of(e) + NUMBER, 0);
    leave_place(e);
    if (flight_board_of(e)->last == e->number)
        flight_board_of(e)->last--;
}

static void flight_board_count(const struct flight_entry *e, uint64_t ns, bool failed)
{
    struct board *b = flight_board_of(e);
    int class = e->bytes > 1 ? least((bits(e->bytes - 1) + 1) / 2, b->classes - 1) : 0;
    uint64_t *row = b->counts + (size_t)(e->operation * b->classes + class) * (size_t)(BUCKETS + b->buckets);
    row[CALLS]++;
    row[CALLS_BYTES] += e->bytes;
    row[FAILURES] += failed;
    row[NANOSECONDS] += ns;
    row[BUCKETS + least(bits(ns / 1000), b->buckets - 1)]++;
}

/* Calls Python for the first message to a peer. */
static uint64_t *link_of(const struct flight_entry *e)
{
    struct board *b = flight_board_of(e);
    PyObject *teller = e->flight->teller;
    struct known_link *known = b->peers + ((unsigned)e->row * 31u + (unsigned)e->peer) % LINKS;
    if (!known->known || known->row != e->row || known->peer != e->peer) {
        PyObject *answer = teller ? flight_answer(PyObject_CallMethod(teller, "link", "ii", e->row, e->peer), teller) : NULL;
        *known = (struct known_link){e->row, e->peer, number_of(answer, teller), true};
        Py_XDECREF(answer);
    }
    return known->number ? b->links + known->number - 1 : NULL;
}

static void flight_board_end(struct flight_entry *e, uint64_t now, PyObject *error, PyObject *text)
{
    uint64_t *link;
    if (has_place(e))
        write_record(e, now, (error ? FLIGHT_FAILED : FLIGHT_DONE) | number_of(text, e->flight->teller) << ERROR_SHIFT);
    leave_place(e);
    if (e->flight->left)
        return;
    flight_board_count(e, now - e->begun, error);
    if (!flight_collective(e) && e->peer >= 0 && !error && (link = link_of(e)))
        *link += e->bytes;
}

static const struct flight_writer writer = {flight_board_begin, flight_board_mark, drop, flight_board_end};

/* ---- the type ---- */

enum { GROUPS, COUNTS, LINKS_PART, RECORDS, END, PARTS };

/* at: bytes before each part, and before their end. */
static int lay_out(struct board *b, const unsigned long long *at)
{
    bool fits = at[END] <= (size_t)b->memory.len && b->places;
    for (int part = 0; part < END; part++)
        fits &= at[part] <= at[part + 1];
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the board is smaller than its parts");
        return -1;
    }
    char *memory = b->memory.buf;
    b->flight.groups = (struct flight_group *)(void *)(memory + at[GROUPS]);
    b->counts = (uint64_t *)(void *)(memory + at[COUNTS]);
    b->links = (uint64_t *)(void *)(memory + at[LINKS_PART]);
    b->records = (uint64_t *)(void *)(memory + at[RECORDS]);
    if (!(b->open = calloc(b->places, sizeof *b->open))) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* Flight(memory, (bytes before groups, counts, links, records, their end), records, classes, buckets, teller) */
static PyObject *flight_board_construct(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    unsigned long long at[PARTS], places;
    int classes, buckets;
    PyObject *memory, *teller;
    if (!PyArg_ParseTuple(args, "O(KKKKK)KiiO:Flight", &memory, &at[GROUPS], &at[COUNTS], &at[LINKS_PART], &at[RECORDS], &at[END],
                          &places, &classes, &buckets, &teller))
        return NULL;
    struct board *b = (struct board *)PyType_GenericAlloc(type, 0);
    if (!b)
        return NULL;
    b->places = places;
    b->classes = classes;
    b->buckets = buckets;
    b->flight.writer = &writer;
    if (PyObject_GetBuffer(memory, &b->memory, PyBUF_WRITABLE) || lay_out(b, at)) {
        Py_DECREF((PyObject *)b);
        return NULL;
    }
    b->flight.teller = Py_NewRef(teller);
    return (PyObject *)b;
}

static void flight_board_dealloc(PyObject *self)
{
    struct board *b = (struct board *)self;
    PyBuffer_Release(&b->memory);
    free(b->open);
    native_dealloc(self);
}

/* The board belongs to the parent process now, and threads that exist only there may hold the teller's locks. */
static PyObject *flight_board_leave(PyObject *self, PyObject *Py_UNUSED(none))
{
    ((struct flight *)self)->left = true;
    return Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"begin", flight_begin_method, METH_VARARGS, "begin(row, operation, peer or -1, kind, nbytes) -> FlightEntry"},
    {"leave", flight_board_leave, METH_NOARGS, "Nothing is written from now on, of what is under way neither: in a child of the rank."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Writes operations on a board (arraycomm.monitor.board)."},
    {Py_tp_new, flight_board_construct},
    {Py_tp_methods, methods},
    {Py_tp_traverse, flight_traverse},
    {Py_tp_clear, flight_clear},
    {Py_tp_dealloc, flight_board_dealloc},
    {0, NULL},
};
PyType_Spec flight_board_spec = {"arraycomm._engine.Flight", sizeof(struct board), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
