/* See mpi_messages.h. One lock for all of it. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mpi_flights.h"
#include "mpi_lanes.h"
#include "mpi_messages.h"
#include "mpi_news.h"
#include "stream.h"
#include "tags.h"
#include "wait.h"

#define ARRIVAL_BYTES (sizeof(struct head) + g->mpi->short_message)

/* ---- arrivals ---- */

static uint64_t length(const struct head *head)
{
    return head->count * acomm_dtype_bytes(head->dtype);
}

static void describe(const struct mpi_op *op, acomm_header *out)
{
    *out = (acomm_header){.count = op->call.count, .kind = (uint8_t)op->call.kind, .dtype = op_header_dtype(op->call.dtype), .root = -1};
}

static void refuse(struct mpi_op *op, const struct head *head)
{
    op->failure = (acomm_failure){.code = ACOMM_TRUNCATED, .origin = op->group->rank, .culprit = head->source};
    describe(op, &op->failure.mine);
    op->failure.theirs = (acomm_header){.count = head->count, .kind = ACOMM_SEND, .dtype = op_header_dtype(head->dtype), .root = -1};
}

int messages_ticket(struct acomm_group *g, int peer)
{
    int *ticket = &g->messages->tickets[peer];
    *ticket = *ticket < TAG_CONTENTS || *ticket == TAG_LAST ? TAG_CONTENTS : *ticket + 1;
    return *ticket;
}

static int no_memory(struct acomm_group *g)
{
    return mpi_poison(g, &(acomm_failure){.code = ACOMM_RESOURCE, .culprit = -1, .origin = g->rank});
}

/* Contents that came with the head, for a device: the library takes them there, as a message of this rank to itself. */
int messages_land(struct acomm_group *g, struct mpi_op *op, const void *contents)
{
    uint64_t bytes = op->bytes;
    struct mpi_flight *f = flight_new(g, op, 2, bytes);
    if (!f)
        return no_memory(g);
    memcpy(f->memory, contents, bytes);
    int ticket = messages_ticket(g, g->rank), rc = flight_move(g, f, (char *)op->call.out, bytes, g->rank, ticket, true);
    return rc ? rc : flight_move(g, f, f->memory, bytes, g->rank, ticket, false);
}

/* Contents that are here, or nowhere for those that do not fit. */
static int take(struct acomm_group *g, struct mpi_op *op, const struct arrival *a, bool fits)
{
    int rc = 0;
    if (fits && op->on_device && op->bytes)
        rc = messages_land(g, op, a->contents);
    else {
        if (fits && a->stays)
            lanes_take(g, op, a);
        else if (fits)
            stream_keep((void *)op->call.out, a->contents, op->bytes);
        mpi_end_op(op, fits ? 0 : ACOMM_TRUNCATED);
    }
    if (a->cell)
        lane_take_cell(&g->messages->lanes->lanes[a->head.source], a->cell);
    return rc;
}

/* A message meets its receive. Contents that do not fit are received into nowhere. */
static int meet(struct acomm_group *g, struct mpi_op *op, const struct arrival *a)
{
    const struct head *head = &a->head;
    uint64_t bytes = length(head);
    bool fits = op->call.count == head->count && op->call.dtype == head->dtype;
    op->call.root = head->source;
    op->call.tag = head->tag;
    op->bytes = bytes;
    if (!fits)
        refuse(op, head);
    if (a->contents)
        return take(g, op, a, fits);
    if (!fits)
        mpi_end_op(op, ACOMM_TRUNCATED);
    if (!head->ticket)
        return lanes_meet(g, fits ? op : NULL, a);
    struct mpi_flight *f = flight_new(g, fits ? op : NULL, flight_pieces(g->mpi, bytes), fits ? 0 : bytes);
    return f ? flight_move(g, f, fits ? (char *)op->call.out : f->memory, bytes, head->source, head->ticket, true)
             : no_memory(g);
}

static bool matches(const struct mpi_op *op, const struct head *head)
{
    return (op->call.root < 0 || op->call.root == head->source) && tag_fits(op->call.tag, head->tag);
}

int messages_deliver(struct acomm_group *g, const struct arrival *came, size_t bytes)
{
    struct mpi_messages *m = g->messages;
    for (struct mpi_op **at = &m->posted; *at; at = &(*at)->next) {
        struct mpi_op *op = *at;
        if (!matches(op, &came->head))
            continue;
        *at = op->next;
        if (m->posted_end == &op->next)
            m->posted_end = at;
        return meet(g, op, came);
    }
    struct arrival *a = malloc(sizeof *a + bytes);
    if (!a)
        return no_memory(g);
    *a = *came;
    a->next = NULL;
    if (bytes)
        a->contents = memcpy(a + 1, came->contents, bytes);
    *m->unexpected_end = a;
    m->unexpected_end = &a->next;
    return 0;
}

static int hear(struct acomm_group *g)
{
    struct mpi_messages *m = g->messages;
    struct arrival a = {.next = NULL};
    memcpy(&a.head, m->arriving, sizeof a.head);
    a.contents = a.head.ticket ? NULL : m->arriving + sizeof a.head;
    if (a.head.group != g->id || a.head.source < 0 || a.head.source >= g->size)
        return 0; /* of a group before, whose communicator had the same number */
    if (a.head.what == MESSAGE)
        return messages_deliver(g, &a, a.head.ticket ? 0 : length(&a.head));
    int rc = m->lanes ? lanes_catch_up(g, a.head.source) : 0; /* what it sent before it said so has come */
    news_hear(g, &a.head, a.contents);
    return rc;
}

/* Takes the next head if one is there. With the lock. 0 or an error of the library. */
static int hear_next(struct acomm_group *g, int *heard)
{
    struct mpi_messages *m = g->messages;
    int rc = m->listens ? 0 : g->mpi->Irecv(m->arriving, ARRIVAL_BYTES, g->mpi->byte, g->mpi->any_source, TAG_NEWS, g->comm, &m->request);
    m->listens = !rc;
    if (!rc)
        rc = g->mpi->Test(&m->request, heard, g->mpi->ignore);
    if (rc || !*heard)
        return rc;
    m->listens = false;
    return hear(g);
}

/* With the lock. 0 or an error of the library. */
static int progress(struct acomm_group *g)
{
    int heard = 1, rc = 0;
    if (atomic_load(&g->messages->silent))
        return 0;
    if (g->messages->lanes)
        rc = lanes_turn(g, -1);
    while (heard && !rc) {
        heard = 0;
        rc = hear_next(g, &heard);
    }
    if (g->messages->asked && !rc)
        news_answer(g);
    return rc ? rc : flights_test(g);
}

/* Without the lock: an error of the library is the group's. */
static int failed(struct acomm_group *g, int rc)
{
    int poisoned = atomic_load(&g->poisoned);
    if (!rc || poisoned)
        return poisoned;
    acomm_failure failure = {.culprit = -1, .origin = g->rank};
    mpi_explain(g, rc, -1, &failure);
    return mpi_fail(g, &failure);
}

int messages_find(struct acomm_group *g, const struct mpi_op *op, acomm_message *out)
{
    int rc = messages_progress(g);
    pthread_mutex_lock(&g->messages->lock);
    const struct arrival *a = g->messages->unexpected;
    while (a && !matches(op, &a->head))
        a = a->next;
    if (a)
        *out = (acomm_message){.count = a->head.count, .tag = a->head.tag, .source = a->head.source, .dtype = a->head.dtype};
    pthread_mutex_unlock(&g->messages->lock);
    return a ? 0 : rc ? rc : 1;
}

int messages_progress(struct acomm_group *g)
{
    if (pthread_mutex_trylock(&g->messages->lock))
        return 0; /* somebody else is at it */
    int rc = progress(g);
    pthread_mutex_unlock(&g->messages->lock);
    return failed(g, rc);
}

bool messages_keep(struct acomm_group *g)
{
    if (pthread_mutex_trylock(&g->messages->lock))
        return false;
    const struct mpi_lanes *lanes = g->messages->lanes;
    uint64_t before = lanes ? lanes->moved : 0;
    int rc = progress(g);
    bool moved = lanes && lanes->moved != before;
    pthread_mutex_unlock(&g->messages->lock);
    return !failed(g, rc) && moved && !atomic_load(&g->inside);
}

static int look(struct acomm_group *g, const struct mpi_op *op)
{
    int heard = 0;
    if (op->flight)
        return flight_test(g, op->flight);
    if (!g->messages->lanes)
        return hear_next(g, &heard);
    wait_relax();
    return lanes_turn(g, op->call.root);
}

/* What a message waits for, so many times, with the lock. */
static int burst(struct acomm_group *g, struct mpi_op *op, unsigned times)
{
    int rc = 0;
    while (times-- && !rc && !mpi_ended(op) && !atomic_load_explicit(&g->messages->silent, memory_order_relaxed))
        rc = look(g, op);
    return rc;
}

int messages_await(struct mpi_op *op, unsigned times, bool all)
{
    struct acomm_group *g = op->group;
    if (pthread_mutex_trylock(&g->messages->lock))
        return 0; /* somebody else is at it */
    int rc = burst(g, op, times);
    if (!rc && all && !mpi_ended(op))
        rc = progress(g);
    pthread_mutex_unlock(&g->messages->lock);
    return failed(g, rc);
}

/* A rank without which the operation cannot end, or -1. */
static int missed(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    const struct mpi_messages *m = g->messages;
    bool message = op_is_message(op->call.kind);
    if (!m->gone)
        return -1;
    if (message && op->call.root >= 0)
        return m->left[op->call.root] ? op->call.root : -1;
    for (int rank = 0; rank < g->size; rank++)
        if (message ? m->gone == g->size - 1 && rank != g->rank : m->left[rank] && op->sequence > m->left[rank] - 1)
            return rank;
    return -1;
}

int messages_news(struct mpi_op *op)
{
    int rc = messages_progress(op->group);
    if (rc || mpi_ended(op))
        return rc;
    int rank = missed(op);
    return rank < 0 ? 0 : mpi_fail_op(op, ACOMM_LOST, rank, "it has closed the group");
}

/* ---- posting ---- */

static int post_receive(struct mpi_op *op)
{
    struct mpi_messages *m = op->group->messages;
    for (struct arrival **at = &m->unexpected; *at; at = &(*at)->next) {
        struct arrival *a = *at;
        if (!matches(op, &a->head))
            continue;
        *at = a->next;
        if (m->unexpected_end == &a->next)
            m->unexpected_end = at;
        struct acomm_group *g = op->group;
        int rc = meet(g, op, a);
        if (a->stays)
            lane_release(g, &m->lanes->lanes[a->head.source]);
        free(a);
        return rc;
    }
    op->next = NULL;
    *m->posted_end = op;
    m->posted_end = &op->next;
    return 0;
}

static int post_send(struct mpi_op *op)
{
    struct acomm_group *g = op->group;
    if (g->messages->lanes)
        return lanes_send(op);
    uint64_t bytes = op->call.count * op->width;
    bool is_short = bytes <= g->mpi->short_message && (!op->on_device || !bytes);
    struct head head = {.group = g->id, .count = op->call.count, .tag = op->call.tag, .source = g->rank,
                        .dtype = (uint32_t)op->call.dtype & HEAD_DTYPES, .what = MESSAGE,
                        .ticket = is_short ? 0 : (uint16_t)messages_ticket(g, op->call.root)};
    size_t packet = sizeof head + (is_short ? bytes : 0);
    struct mpi_flight *f = flight_new(g, op, 1 + (is_short ? 0 : flight_pieces(g->mpi, bytes)), packet);
    if (!f)
        return no_memory(g);
    memcpy(f->memory, &head, sizeof head);
    if (is_short && bytes)
        memcpy(f->memory + sizeof head, (const void *)op->call.in, bytes);
    op->bytes = bytes;
    int rc = flight_move(g, f, f->memory, packet, op->call.root, TAG_NEWS, false);
    if (!rc && !is_short)
        rc = flight_move(g, f, (char *)op->call.in, bytes, op->call.root, head.ticket, false);
    return rc ? rc : flight_test(g, f);
}

/* Nothing here points at the operation any more. With the lock. */
static void withdraw(struct mpi_op *op)
{
    struct mpi_messages *m = op->group->messages;
    for (struct mpi_op **at = &m->posted; *at; at = &(*at)->next) {
        if (*at != op)
            continue;
        *at = op->next;
        if (m->posted_end == &op->next)
            m->posted_end = at;
        break;
    }
    flights_leave(op->group, op);
    lanes_leave(op);
}

int messages_post(struct mpi_op *op, unsigned times)
{
    struct acomm_group *g = op->group;
    pthread_mutex_lock(&g->messages->lock);
    int rc = atomic_load(&g->poisoned);
    if (!rc)
        rc = op->call.kind == ACOMM_SEND ? post_send(op) : post_receive(op);
    if (!rc)
        rc = burst(g, op, times);
    if (rc)
        withdraw(op);
    pthread_mutex_unlock(&g->messages->lock);
    return rc > 0 ? failed(g, rc) : rc; /* 0: it is posted, and a failure that was heard of meanwhile is for who waits for it */
}

bool messages_flying(struct acomm_group *g)
{
    return g->messages->flights.first != NULL;
}

bool messages_under_way(struct acomm_group *g)
{
    pthread_mutex_lock(&g->messages->lock);
    bool busy = messages_flying(g) || lanes_busy(g);
    pthread_mutex_unlock(&g->messages->lock);
    return busy;
}

struct mpi_flights *messages_flights(struct acomm_group *g)
{
    return &g->messages->flights;
}

/* ---- beginning and end ---- */

int messages_open(struct acomm_group *g)
{
    struct mpi_messages *m = g->messages = calloc(1, sizeof *m);
    if (!m || !(m->arriving = malloc(ARRIVAL_BYTES)) || !(m->tickets = calloc((size_t)g->size, sizeof *m->tickets))
        || !(m->left = calloc((size_t)g->size, sizeof *m->left)) || !(m->passed = calloc((size_t)g->size, sizeof *m->passed)))
        return ACOMM_RESOURCE;
    pthread_mutex_init(&m->lock, NULL);
    m->posted_end = &m->posted;
    m->unexpected_end = &m->unexpected;
    return progress(g) ? ACOMM_LIBRARY : ACOMM_OK;
}

void messages_forget(struct mpi_op *op, int code)
{
    struct mpi_messages *m = op->group->messages;
    pthread_mutex_lock(&m->lock);
    withdraw(op);
    if (!mpi_ended(op))
        mpi_end_op(op, code);
    pthread_mutex_unlock(&m->lock);
}

void messages_end(struct acomm_group *g)
{
    struct mpi_messages *m = g->messages;
    int code = atomic_load(&g->poisoned);
    pthread_mutex_lock(&m->lock);
    while (m->posted) {
        struct mpi_op *op = m->posted;
        m->posted = op->next;
        mpi_end_op(op, code);
    }
    m->posted_end = &m->posted;
    flights_end(g, code);
    lanes_end(g, code);
    pthread_mutex_unlock(&m->lock);
}

/* Whether contents have been sent here that nobody has received, nor will. */
static bool unreceived(const struct mpi_messages *m)
{
    for (const struct arrival *a = m->unexpected; a; a = a->next)
        if (a->head.ticket)
            return true;
    return m->littered;
}

bool messages_over(struct acomm_group *g)
{
    struct mpi_messages *m = g->messages;
    pthread_mutex_lock(&m->lock);
    progress(g);
    bool over = m->gone == g->size - 1 && !m->flights.first;
    if (over && unreceived(m))
        g->failed = true;
    pthread_mutex_unlock(&m->lock);
    return over && !g->failed;
}

static void stop_listening(struct acomm_group *g)
{
    struct mpi_messages *m = g->messages;
    int flag = !m->listens || mpi_read(g->mpi, &m->request) == g->mpi->no_request; /* to cancel that is an error */
    if (!flag)
        g->mpi->Cancel(&m->request);
    while (!flag && !g->mpi->Test(&m->request, &flag, g->mpi->ignore) && !flag)
        sched_yield();
    m->listens = false;
}

void messages_silence(struct acomm_group *g)
{
    atomic_store(&g->messages->silent, true);
    stop_listening(g);
}

void messages_free(struct acomm_group *g)
{
    struct mpi_messages *m = g->messages;
    stop_listening(g);
    while (m->unexpected) {
        struct arrival *a = m->unexpected;
        m->unexpected = a->next;
        free(a);
    }
    flights_free(g);
    free(m->arriving);
    free(m->tickets);
    free(m->left);
    free(m->passed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
