/* The flight recorder: records an operation once, for the board or for a trace. */
#include "flight.h"
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/clock.h"

#define ASKED (1u << 31) /* in the kind of an operation: this entry is in use */

/* ---- calls of Python ---- */

PyObject *flight_answer(PyObject *answer, PyObject *about)
{
    if (!answer && PyErr_Occurred())
        PyErr_WriteUnraisable(about);
    return answer;
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

static void remember(struct flight_kind *known, const struct flight_kind *key)
{
    PyObject *before = known->told;
    *known = *key;
    Py_XINCREF(key->told);
    Py_XDECREF(before);
}

static bool flight_find_kind(struct flight *f, struct flight_kind *key, PyObject *const *given)
{
    static const int telling[] = {ROLE_OP, ROLE_ROOT, ROLE_DEST, ROLE_SOURCE, ROLE_TAG};
    key->given = ASKED;
    for (size_t i = 0; i < sizeof telling / sizeof *telling; i++)
        key->given |= (uint32_t)(given[telling[i]] != NULL) << i;
    bool remembered = key->ndim <= FLIGHT_DIMS;
    struct flight_kind *known = f->kinds + (remembered ? mix(key) : 0);
    key->told = known->told;
    if (remembered && !memcmp(known, key, sizeof *key)) {
        Py_XINCREF(key->told);
        return true;
    }
    PyObject *parameters = forms_parameters(given);
    key->told = parameters && f->teller ? PyObject_CallMethod(f->teller, "kind", "iO", key->operation, parameters) : NULL;
    Py_XDECREF(parameters);
    if (!key->told && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return false; /* Ctrl-C, for example: the operation's caller gets it */
    flight_answer(key->told, f->teller);
    if (remembered)
        remember(known, key);
    return true;
}

/* ---- operations ---- */

static int32_t this_thread(void)
{
    static _Thread_local int32_t number;
    return number ? number : (number = (int32_t)syscall(SYS_gettid));
}

void flight_begin(struct flight *f, struct flight_entry *e)
{
    e->flight = (struct flight *)Py_NewRef((PyObject *)f);
    e->sequence = flight_collective(e) ? ++f->groups[e->row].begun : 0;
    e->thread = this_thread();
    e->begun = (uint64_t)clock_now();
    if (f->writer->begin)
        f->writer->begin(e);
}

void flight_mark(struct flight_entry *e, enum flight_state state)
{
    if (!e->flight)
        return;
    if (state == FLIGHT_ASYNCHRONOUS && !e->called)
        e->called = (uint64_t)clock_now();
    if (e->flight->writer->mark)
        e->flight->writer->mark(e, state);
}

bool flight_record(struct flight *f, struct flight_entry *e, const acomm_call *c, bool begins, const struct view *view,
                   PyObject *const *given)
{
    bool message = acomm_operations[c->kind].array == ACOMM_MESSAGE;
    struct flight_kind key = {.tag = c->tag, .operation = c->kind + (message && begins ? ACOMM_KINDS - ACOMM_SEND : 0),
                              .dtype = c->dtype, .root = c->root, .redop = c->redop};
    e->operation = key.operation;
    e->peer = c->kind == ACOMM_SEND ? c->root : -1;
    if (view) {
        e->bytes = (uint64_t)view_count(view) * (uint64_t)dtype_rows[c->dtype].width;
        key.ndim = view->ndim;
        for (int i = 0; i < key.ndim && i < FLIGHT_DIMS; i++)
            key.lengths[i] = view->shape[i];
    }
    if (!flight_find_kind(f, &key, given))
        return false;
    e->kind = key.told;
    flight_begin(f, e);
    return true;
}

/* The sequence's number is the next one's. */
static void take_back(struct flight *f, const struct flight_entry *e)
{
    if (e->sequence)
        f->groups[e->row].begun = e->sequence - 1;
}

void flight_forget(struct flight_entry *e)
{
    PyObject *flight = (PyObject *)e->flight, *kind = e->kind;
    e->flight = NULL;
    e->kind = NULL;
    Py_XDECREF(flight);
    Py_XDECREF(kind);
}

void flight_drop(struct flight_entry *e)
{
    if (!e->flight)
        return;
    if (e->flight->writer->drop)
        e->flight->writer->drop(e);
    take_back(e->flight, e);
    flight_forget(e);
}

static void flight_count(struct flight *f, const struct flight_entry *e, PyObject *error)
{
    struct flight_group *group = f->groups + e->row;
    bool refused = error && (PyErr_GivenExceptionMatches(error, PyExc_TypeError)
                             || PyErr_GivenExceptionMatches(error, PyExc_ValueError));
    if (!flight_collective(e))
        return;
    if (refused) { /* before anything was sent, and not counted */
        take_back(f, e);
        return;
    }
    if (group->ended < e->sequence)
        group->ended = e->sequence;
    group->bytes += e->bytes;
}

void flight_end(struct flight_entry *e, PyObject *error)
{
    if (!e->flight)
        return;
    uint64_t now = (uint64_t)clock_now();
    PyObject *teller = e->flight->teller, *text = NULL;
    if (error && error != Py_None && teller && !e->flight->left)
        text = flight_answer(PyObject_CallMethod(teller, "error", "O", error), teller);
    if (e->flight) { /* else it was ended meanwhile, by another thread */
        struct flight_entry mine = *e;
        e->flight = NULL;
        e->kind = NULL;
        if (!mine.flight->left)
            flight_count(mine.flight, &mine, error);
        mine.flight->writer->end(&mine, now, error, text);
        flight_forget(&mine);
    }
    Py_XDECREF(text);
}

void flight_fail(struct flight_entry *e)
{
    PyObject *error = refuse_take();
    flight_end(e, error);
    refuse_raise(error);
}
