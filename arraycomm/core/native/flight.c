#include "flight.h"
#include <stdatomic.h>
#include <string.h>
#include "clock.h"

enum { NUMBER, BEGUN, ENDED, KIND, ROW, SEQUENCE, BYTES, WHAT, RECORD }; /* words of a record: board.RECORD */
enum { COLLECTIVES_BEGUN, COLLECTIVES_ENDED, COLLECTIVES_BYTES, GROUP }; /* of a group */
enum { CALLS, CALLS_BYTES, FAILURES, NANOSECONDS, BUCKETS };             /* of a count */
#define OPERATION_SHIFT 8
#define ERROR_SHIFT 16
#define ASKED (1u << 31) /* in the kind of an operation: this place is taken */

/* ---- the board ---- */

static int bits(uint64_t n)
{
    return n ? 64 - __builtin_clzll(n) : 0;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void count(struct flight *f, const struct flight_entry *e, uint64_t ns, bool failed)
{
    int class = e->bytes > 1 ? least((bits(e->bytes - 1) + 1) / 2, f->classes - 1) : 0;
    uint64_t *row = f->counts + (size_t)(e->operation * f->classes + class) * (size_t)(BUCKETS + f->buckets);
    row[CALLS]++;
    row[CALLS_BYTES] += e->bytes;
    row[FAILURES] += failed;
    row[NANOSECONDS] += ns;
    row[BUCKETS + least(bits(ns / 1000), f->buckets - 1)]++;
}

static uint64_t *place_of(const struct flight_entry *e)
{
    return e->flight->records + e->number % e->flight->places * RECORD;
}

static void put(uint64_t *word, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_relaxed);
}

/* Number 0 is no record: this process may be stopped or killed before the rest is there. */
static void write_record(const struct flight_entry *e, uint64_t ended, uint64_t what)
{
    uint64_t *record = place_of(e);
    put(record + NUMBER, 0);
    atomic_thread_fence(memory_order_release);
    put(record + BEGUN, e->begun);
    put(record + ENDED, ended);
    put(record + KIND, e->kind);
    put(record + ROW, (uint64_t)e->row);
    put(record + SEQUENCE, e->sequence);
    put(record + BYTES, e->bytes);
    put(record + WHAT, what | (uint64_t)e->operation << OPERATION_SHIFT);
    atomic_store_explicit((_Atomic uint64_t *)(record + NUMBER), e->number, memory_order_release);
}

static bool has_place(const struct flight_entry *e)
{
    return e->flight && !e->flight->left && e->flight->open[e->number % e->flight->places] == e->number;
}

/* The next one that no operation under way has; where they have all, the next one. */
static void take_place(struct flight *f, struct flight_entry *e)
{
    for (uint64_t i = 0; i < f->places; i++)
        if (!f->open[++f->last % f->places])
            break;
    e->number = f->last;
    f->open[f->last % f->places] = e->number;
}

/* ---- what calls Python ---- */

/* 0 where it fails: an operation goes on, recorded or not. */
static uint64_t number_of(PyObject *answer, PyObject *about)
{
    uint64_t number = answer ? PyLong_AsUnsignedLongLong(answer) : 0;
    Py_XDECREF(answer);
    if (!PyErr_Occurred())
        return number;
    PyErr_WriteUnraisable(about);
    return 0;
}

static uint64_t mix(const struct flight_kind *key)
{
    uint64_t mixed = (uint64_t)key->operation << 32 | (uint32_t)key->root;
    uint64_t words[] = {(uint64_t)key->tag, (uint64_t)key->dtype << 32 | (uint32_t)key->redop, key->given};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        mixed = (mixed ^ words[i]) * 0x9E3779B97F4A7C15u;
    for (int i = 0; i < key->ndim; i++)
        mixed = (mixed ^ (uint64_t)key->lengths[i]) * 0x9E3779B97F4A7C15u;
    return mixed >> 56; /* 8 bits: FLIGHT_KINDS */
}

bool flight_find_kind(struct flight *f, struct flight_kind *key, PyObject *const *given)
{
    static const int telling[] = {ROLE_OP, ROLE_ROOT, ROLE_DEST, ROLE_SOURCE, ROLE_TAG};
    key->given = ASKED;
    for (size_t i = 0; i < sizeof telling / sizeof *telling; i++)
        key->given |= (uint32_t)(given[telling[i]] != NULL) << i;
    bool remembered = key->ndim <= FLIGHT_DIMS;
    struct flight_kind *known = f->kinds + (remembered ? mix(key) : 0);
    key->number = known->number;
    if (remembered && !memcmp(known, key, sizeof *key))
        return true;
    PyObject *parameters = forms_parameters(given);
    PyObject *answer = parameters && f->teller
                     ? PyObject_CallMethod(f->teller, "kind", "iO", key->operation, parameters) : NULL;
    Py_XDECREF(parameters);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return false; /* Ctrl-C, say: who called the operation gets it */
    key->number = number_of(answer, f->teller);
    if (remembered)
        *known = *key;
    return true;
}

static uint64_t *link_of(struct flight *f, const struct flight_entry *e)
{
    struct flight_link *known = f->peers + ((unsigned)e->row * 31u + (unsigned)e->peer) % FLIGHT_LINKS;
    if (!known->known || known->row != e->row || known->peer != e->peer) {
        PyObject *answer = f->teller ? PyObject_CallMethod(f->teller, "link", "ii", e->row, e->peer) : NULL;
        *known = (struct flight_link){e->row, e->peer, number_of(answer, f->teller), true};
    }
    return known->number ? f->links + known->number - 1 : NULL;
}

/* ---- operations ---- */

static bool collective(const struct flight_entry *e)
{
    return e->operation <= ACOMM_BARRIER;
}

void flight_begin(struct flight *f, struct flight_entry *e)
{
    e->flight = (struct flight *)Py_NewRef((PyObject *)f);
    e->sequence = collective(e) ? ++f->groups[e->row * GROUP + COLLECTIVES_BEGUN] : 0;
    take_place(f, e);
    e->begun = (uint64_t)clock_now();
    write_record(e, 0, FLIGHT_RUNNING);
}

void flight_mark(const struct flight_entry *e, enum flight_state state)
{
    if (has_place(e))
        write_record(e, 0, state);
}

/* The sequence's number is the next one's. */
static void take_back(struct flight *f, const struct flight_entry *e)
{
    uint64_t *begun = f->groups + e->row * GROUP + COLLECTIVES_BEGUN;
    if (e->sequence)
        *begun = e->sequence - 1;
}

static struct flight *leave_place(struct flight_entry *e)
{
    struct flight *f = e->flight;
    if (has_place(e))
        f->open[e->number % f->places] = 0;
    e->flight = NULL;
    return f;
}

void flight_drop(struct flight_entry *e)
{
    if (!e->flight)
        return;
    if (has_place(e))
        put(place_of(e) + NUMBER, 0);
    struct flight *f = leave_place(e);
    if (f->last == e->number)
        f->last--;
    take_back(f, e);
    Py_DECREF((PyObject *)f);
}

static void tell_group(struct flight *f, const struct flight_entry *e, PyObject *error)
{
    uint64_t *group = f->groups + e->row * GROUP, *link;
    bool refused = error && (PyErr_GivenExceptionMatches(error, PyExc_TypeError)
                             || PyErr_GivenExceptionMatches(error, PyExc_ValueError));
    if (!collective(e)) {
        if (e->peer >= 0 && !error && (link = link_of(f, e)))
            *link += e->bytes;
    } else if (refused) { /* before anything was sent, and not counted */
        take_back(f, e);
    } else {
        if (group[COLLECTIVES_ENDED] < e->sequence)
            group[COLLECTIVES_ENDED] = e->sequence;
        group[COLLECTIVES_BYTES] += e->bytes;
    }
}

void flight_end(struct flight_entry *e, PyObject *error)
{
    if (!e->flight)
        return;
    uint64_t now = (uint64_t)clock_now(), text = 0;
    PyObject *teller = e->flight->teller;
    if (error && error != Py_None && teller && !e->flight->left)
        text = number_of(PyObject_CallMethod(teller, "error", "O", error), teller);
    if (!e->flight) /* meanwhile, by another thread */
        return;
    if (has_place(e))
        write_record(e, now, (error ? FLIGHT_FAILED : FLIGHT_DONE) | text << ERROR_SHIFT);
    struct flight *f = leave_place(e);
    if (!f->left) {
        count(f, e, now - e->begun, error);
        tell_group(f, e, error);
    }
    Py_DECREF((PyObject *)f);
}

void flight_fail(struct flight_entry *e)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    flight_end(e, value);
    PyErr_Restore(type, value, trace);
}
