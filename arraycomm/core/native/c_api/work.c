/* Operations of the C API that are under way. */
#include "c_api.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

struct acomm_work {
    struct visit visit;
    acomm_op *op;          /* until it has ended */
    struct acomm_work *next, *previous; /* of the handle's */
    int code;              /* from here on once ended */
    int32_t source;
    int64_t tag;
    uint64_t bytes;
    _Atomic bool ended;
    bool abandoned;
    acomm_failure failure;
};

static void work_link(struct acomm_work *w)
{
    struct handle *h = w->visit.handle;
    pthread_mutex_lock(&h->lock);
    w->previous = NULL;
    w->next = h->works;
    if (w->next)
        w->next->previous = w;
    h->works = w;
    pthread_mutex_unlock(&h->lock);
}

/* Copies its result, and frees the engine's handle. With the lock. */
static void work_settle(struct acomm_work *w, int code)
{
    const acomm_entries *entries = w->visit.handle->entries;
    *(w->previous ? &w->previous->next : &w->visit.handle->works) = w->next;
    if (w->next)
        w->next->previous = w->previous;
    w->code = code;
    if (code && !entries->failure(w->op, &w->failure))
        w->failure.code = 0;
    entries->source(w->op, &w->source, &w->tag, &w->bytes);
    entries->free(w->op);
    atomic_store(&w->ended, true);
}

void c_api_settle(struct handle *handle)
{
    pthread_mutex_lock(&handle->lock);
    while (handle->works) {
        struct acomm_work *w = handle->works;
        bool abandoned = w->abandoned; /* otherwise it is its owner's, from the end on */
        work_settle(w, handle->entries->wait(w->op, -1));
        if (abandoned)
            free(w);
    }
    pthread_mutex_unlock(&handle->lock);
}

int c_api_start(int64_t number, const acomm_call *call, acomm_work **out)
{
    struct acomm_work *w = malloc(sizeof *w);
    if (!w)
        return c_api_say(number, ACOMM_RESOURCE, "no memory for an operation");
    int code = c_api_enter(&w->visit, number, call);
    if (code) {
        free(w);
        return code;
    }
    w->failure.code = 0;
    w->abandoned = false;
    atomic_init(&w->ended, false);
    code = w->visit.handle->entries->start(w->visit.group, &w->visit.call, &w->op);
    if (!code)
        work_link(w);
    c_api_leave(&w->visit, code, &w->failure);
    if (code)
        free(w);
    else
        *out = w;
    return code;
}

/* Whether it has ended, after a wait of at most so long in the engine; *code: what that returned. */
static bool work_wait_inside(struct acomm_work *w, int64_t timeout, int *code)
{
    struct handle *h = w->visit.handle;
    atomic_fetch_add(&h->inside, 1);
    if (atomic_load(&h->ending)) { /* the thread that closes the group settles it */
        handle_leave(h);
        while (!atomic_load(&w->ended))
            sched_yield();
        return true;
    }
    if (!atomic_load(&w->ended)) {
        *code = h->entries->wait(w->op, timeout);
        if (operation_over(h->entries, w->op)) {
            pthread_mutex_lock(&h->lock);
            work_settle(w, *code);
            pthread_mutex_unlock(&h->lock);
        }
    }
    handle_leave(h);
    return atomic_load(&w->ended);
}

int c_api_wait(acomm_work *w, int64_t timeout)
{
    int code = 0;
    if (!atomic_load(&w->ended) && !work_wait_inside(w, timeout, &code))
        return code < 0 ? c_api_fail(w->visit.number, code, &(acomm_failure){0}) : code;
    return w->code ? c_api_fail(w->visit.number, w->code, &w->failure) : 0;
}

int c_api_received(acomm_work *w, int32_t *source, int64_t *tag, uint64_t *bytes)
{
    if (!atomic_load(&w->ended))
        return c_api_say(w->visit.number, ACOMM_ARGUMENT, "the receive has not ended");
    *source = w->source;
    *tag = w->tag;
    *bytes = w->bytes;
    return 0;
}

void c_api_free(acomm_work *w)
{
    int code = 0;
    if (!w || atomic_load(&w->ended) || work_wait_inside(w, 0, &code)) {
        free(w);
        return;
    }
    if (code == ACOMM_FORKED) /* a thread of the parent may hold the lock */
        return;
    struct handle *h = w->visit.handle;
    pthread_mutex_lock(&h->lock);
    bool ended = atomic_load(&w->ended);
    w->abandoned = true; /* c_api_settle() frees it */
    pthread_mutex_unlock(&h->lock);
    if (ended)
        free(w);
}

int c_api_finish(acomm_work *w)
{
    int code = c_api_wait(w, -1), interrupted = 0;
    while (code == ACOMM_INTERRUPTED && !atomic_load(&w->ended)) {
        interrupted = code;
        code = c_api_wait(w, -1);
    }
    c_api_free(w);
    return code ? code : interrupted;
}

int c_api_exchange(int64_t number, const acomm_call *send, acomm_call *receive)
{
    acomm_work *sending = NULL;
    int code = 0;
    if ((send && send->kind != ACOMM_SEND) || (receive && receive->kind != ACOMM_RECV))
        return c_api_say(number, ACOMM_ARGUMENT, "exchange() takes an ACOMM_SEND and an ACOMM_RECV");
    if (send)
        code = c_api_start(number, send, &sending);
    if (!code && receive)
        code = c_api_run(number, receive);
    if (!sending)
        return code;
    if (!code)
        return c_api_finish(sending);
    struct error first = c_api_last; /* of the receive, which counts */
    c_api_finish(sending);
    c_api_last = first;
    return code;
}
