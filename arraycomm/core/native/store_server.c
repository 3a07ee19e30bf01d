/* The server's thread: epoll over the clients, the requests that wait, their deadlines. It has no need of Python.
 *
 * A client sends its next request after the answer to the last one, but for posted ones, which have no answer: so a
 * client costs one request's memory, and one that floods is dropped. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "store_client.h"
#include "store_events.h"
#include "store_torch.h"

#define EVENTS 64
#define CHUNK (256 << 10) /* bytes taken from one client before the others get a turn */

struct store_server {
    struct store_table *table;
    int epoll, wake;
    pid_t pid;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t left;
    struct store_client *clients;
    int count;
    _Atomic int waiting;
    int64_t next_end;      /* no request that waits has an earlier deadline */
    struct store_events events;
    _Atomic bool lingering, stopping;
    struct store_will *wills;
    struct store_buffer answer, told; /* on the table, and what that is for a client of torch's kind */
    char chunk[CHUNK];
};

/* ---- requests that wait ---- */

static void list(struct store_server *s, struct store_client *c, struct store_entry *entry)
{
    store_client_list(c, entry);
    s->waiting++;
    if (c->end < s->next_end)
        s->next_end = c->end;
    if (s->lingering) { /* see await_leaving */
        pthread_mutex_lock(&s->lock);
        pthread_cond_broadcast(&s->left);
        pthread_mutex_unlock(&s->lock);
    }
}

static void unlist(struct store_server *s, struct store_client *c)
{
    struct store_entry *entry = c->at;
    store_client_unlist(c);
    s->waiting--;
    store_table_tidy(s->table, entry);
}

/* What is in s->answer. */
static void reply(struct store_server *s, struct store_client *c)
{
    if (!c->torch)
        store_client_answer(c, &s->answer);
    else if (!store_torch_answer(c->torch, &s->answer, &s->told))
        store_client_break(c);
    else if (s->told.size)
        store_client_answer(c, &s->told);
}

static void answer_code(struct store_server *s, struct store_client *c, int code)
{
    store_frame_begin(&s->answer, code, 0, 0);
    store_frame_end(&s->answer);
    reply(s, c);
}

/* What is in s->answer, now or, where the request was posted and has failed, with the next answer. */
static void answer_request(struct store_server *s, struct store_client *c, const struct store_frame *request)
{
    if (!(request->code & STORE_POSTED))
        reply(s, c);
    else if (s->answer.data[4] != STORE_OK && !c->late.size)
        store_buffer_append(&c->late, s->answer.data, s->answer.size);
}

/* Carries out a request, or lists its client under the key that is missing. */
static void attempt(struct store_server *s, struct store_client *c, const struct store_frame *request)
{
    struct store_bytes missing;
    if (!store_table_apply(s->table, request, &s->answer, &missing)) {
        answer_request(s, c, request);
        return;
    }
    struct store_entry *entry = request->milliseconds ? store_table_entry(s->table, missing, true) : NULL;
    if (entry)
        list(s, c, entry);
    else
        answer_code(s, c, STORE_TIMED_OUT);
}

/* Looks again at the requests that waited for a key. Those that miss another are listed under that. */
static void retry(struct store_server *s, struct store_bytes key)
{
    struct store_entry *entry = store_table_entry(s->table, key, false);
    struct store_client *c = entry ? entry->first_waiter : NULL;
    if (!c)
        return;
    entry->first_waiter = entry->last_waiter = NULL;
    while (c) { /* from here on the entry may go: a pop takes the last item */
        struct store_client *next = c->after;
        struct store_frame request;
        c->at = NULL;
        s->waiting--;
        const struct store_buffer *waits = c->torch ? &c->torch->frame : &c->in;
        store_frame_parse(&request, waits->data, waits->size); /* it was whole when it came */
        attempt(s, c, &request);
        if (!c->at)
            store_buffer_free(&c->in);
        c = next;
    }
    entry = store_table_entry(s->table, key, false);
    if (entry)
        store_table_tidy(s->table, entry);
}

static void expire(struct store_server *s)
{
    int64_t time = store_now();
    s->next_end = STORE_NEVER;
    pthread_mutex_lock(&s->lock);
    for (struct store_client *c = s->clients; c; c = c->next) {
        int64_t due = store_client_due(c, time);
        if (due < s->next_end)
            s->next_end = due;
        if (c->at && c->end <= time) {
            unlist(s, c);
            store_buffer_free(&c->in);
            answer_code(s, c, STORE_TIMED_OUT);
        } else if (c->at && c->end < s->next_end) {
            s->next_end = c->end;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- requests ---- */

static void wake_waiters(struct store_server *s, const struct store_frame *frame)
{
    uint32_t every;
    if (!s->waiting || !store_table_brings(frame, &every))
        return;
    struct store_cursor cursor = store_frame_strings(frame);
    for (struct store_bytes key; store_frame_next(&cursor, &key);)
        if ((cursor.index - 1) % every == 0)
            retry(s, key);
}

/* What this client wanted written, where the keys are missing. */
static void execute_wills(struct store_server *s, const struct store_client *c)
{
    struct store_buffer will, one = {0};
    struct store_bytes missing;
    while (store_will_take(&s->wills, c, &will)) {
        struct store_frame write;
        for (uint32_t i = 0; store_will_entry(&will, i, &one, &write); i++) {
            store_table_apply(s->table, &write, &s->answer, &missing);
            wake_waiters(s, &write);
        }
        store_buffer_free(&will);
    }
    store_buffer_free(&one);
}

static void request(struct store_server *s, struct store_client *c, const struct store_frame *frame)
{
    if (c->late.size && !(frame->code & STORE_POSTED)) {
        store_client_answer(c, &c->late);
        c->late.size = 0;
        return;
    }
    if (frame->milliseconds)
        c->end = store_now() + frame->milliseconds * 1000000ll;
    attempt(s, c, frame);
    wake_waiters(s, frame);
}

/* What stands at data, with `more` bytes behind it. False: no client sends this. */
static bool one_request(struct store_server *s, struct store_client *c, const char *data, size_t length, size_t more)
{
    struct store_frame frame;
    int op = store_frame_parse(&frame, data, length) ? frame.code & ~STORE_POSTED : -1;
    if (op < 0 || (frame.code & STORE_POSTED && op != STORE_SET && op != STORE_WILL))
        return false;
    if (op == STORE_PIPES && more)
        return false; /* nothing follows it here */
    if (op == STORE_WILL) {
        store_will_record(&s->wills, c, data, length, &s->answer);
        answer_request(s, c, &frame);
    } else if (op == STORE_PIPES) {
        store_client_adopt(c);
    } else {
        request(s, c, &frame);
    }
    return !c->at || !more; /* who waits sends nothing */
}

/* The whole requests of data; the bytes that are taken, or -1 for what no client sends. One that waits is not taken. */
static int64_t requests(struct store_server *s, struct store_client *c, const char *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        size_t left = size - done;
        int64_t length = store_frame_size(data + done, left);
        if (length < 0 || c->at || c->out.size) /* the last: a request before the last one's answer */
            return -1;
        if (!length || (size_t)length > left)
            break;
        if (!one_request(s, c, data + done, (size_t)length, left - (size_t)length))
            return -1;
        if (c->at)
            break;
        done += (size_t)length;
    }
    return (int64_t)done;
}

static void carry_out(struct store_server *s, struct store_client *c)
{
    struct store_torch *t = c->torch;
    do {
        struct store_frame frame;
        if (!store_frame_parse(&frame, t->frame.data, t->frame.size)) {
            c->broken = true;
            return;
        }
        request(s, c, &frame);
    } while (!c->broken && store_torch_next(t));
    c->broken |= t->frame.failed;
    if (!c->at)
        store_buffer_free(&t->frame);
}

/* As requests(), of a client of torch's kind; who waits may only give that up. */
static int64_t torch_requests(struct store_server *s, struct store_client *c, const char *data, size_t size)
{
    size_t done = 0;
    while (done < size && !c->broken && !c->out.size) {
        int64_t length = 1;
        if (!c->at)
            length = store_torch_read(c->torch, data + done, size - done, &s->told);
        else if (store_torch_cancels(data + done, size - done, &s->told))
            unlist(s, c);
        else
            return -1;
        if (length <= 0)
            return length ? -1 : (int64_t)done;
        done += (size_t)length;
        if (s->told.size)
            store_client_answer(c, &s->told);
        else if (c->torch->frame.size)
            carry_out(s, c);
    }
    return done == size ? (int64_t)done : -1;
}

/* When a client of torch's kind is to be looked at again. began: with a new request. */
static void plan_look(struct store_server *s, struct store_client *c, bool began)
{
    if (began)
        c->torch->since = 0;
    pthread_mutex_lock(&s->lock);
    int64_t due = store_client_limit(c, s->clients, CHUNK);
    pthread_mutex_unlock(&s->lock);
    if (due < s->next_end)
        s->next_end = due;
}

static void take(struct store_server *s, struct store_client *c, size_t size)
{
    if ((c->at && !c->torch) || c->out.size || (c->in.size && !store_buffer_append(&c->in, s->chunk, size))) {
        c->broken = true;
        return;
    }
    bool kept = c->in.size;
    const char *data = kept ? c->in.data : s->chunk;
    size_t all = kept ? c->in.size : size;
    int64_t done = c->torch ? torch_requests(s, c, data, all) : requests(s, c, data, all);
    size_t rest = done < 0 ? 0 : all - (size_t)done;
    if (done < 0 || (!kept && rest && !store_buffer_append(&c->in, data + done, rest))) {
        c->broken = true;
    } else if (kept) {
        memmove(c->in.data, c->in.data + done, rest);
        c->in.size = rest;
    }
    if (!rest)
        store_buffer_free(&c->in);
    if (c->torch)
        plan_look(s, c, done > 0); /* one was whole: another has begun */
}

static void serve(struct store_server *s, struct store_client *c, uint32_t events)
{
    if (events & EPOLLOUT)
        store_client_flush(c);
    if (!(events & ~(uint32_t)EPOLLOUT))
        return;
    ssize_t size = store_client_receive(c, s->chunk, sizeof s->chunk);
    if (size > 0)
        take(s, c, (size_t)size);
    else if (!size || (errno != EAGAIN && errno != EINTR))
        c->broken = true;
}

static void drop(struct store_server *s, struct store_client *c)
{
    if (c->at)
        unlist(s, c);
    pthread_mutex_lock(&s->lock);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    s->count--;
    pthread_cond_broadcast(&s->left);
    pthread_mutex_unlock(&s->lock);
    store_client_free(c);
}

/* In the server's thread, where SIGPIPE is blocked. */
static void say_goodbye(struct store_server *s)
{
    store_frame_begin(&s->answer, STORE_CLOSED, 0, 0);
    store_frame_end(&s->answer);
    for (struct store_client *c = s->clients; c && !s->answer.failed; c = c->next)
        if (!c->out.size && !c->torch)
            store_client_answer(c, &s->answer);
}

/* A client with pipes has two descriptors, and may be among the events of one moment twice: it has gone at the second. */
static void forget_events(const struct store_client *c, struct epoll_event *from, const struct epoll_event *end)
{
    for (; from < end; from++)
        if (from->data.ptr == c)
            from->data.ptr = NULL;
}

static void *run(void *argument)
{
    struct store_server *s = argument;
    struct epoll_event events[EVENTS];
    while (!s->stopping) {
        int found = store_events_await(&s->events, s->epoll, s->next_end, events, EVENTS);
        for (int i = 0; i < found; i++) {
            struct store_client *c = events[i].data.ptr;
            if (c && !c->broken)
                serve(s, c, events[i].events);
            if (c && c->broken) {
                if (c->at)
                    unlist(s, c);
                execute_wills(s, c);
                drop(s, c);
                forget_events(c, events + i, events + found);
            }
        }
        if (s->next_end != STORE_NEVER && store_now() >= s->next_end)
            expire(s);
        if (s->answer.room > CHUNK) /* a rare one; not to be kept */
            store_buffer_free(&s->answer);
        if (s->told.room > CHUNK)
            store_buffer_free(&s->told);
    }
    say_goodbye(s);
    return NULL;
}

/* ---- life ---- */

static int start_thread(struct store_server *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's main thread */
    int failed = pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        pthread_setname_np(s->thread, "arraycomm-store");
    return failed;
}

static void init_lock(struct store_server *s)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->left, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void release(struct store_server *s)
{
    while (s->clients)
        drop(s, s->clients);
    store_will_free(s->wills);
    if (s->epoll >= 0)
        close(s->epoll);
    if (s->wake >= 0)
        close(s->wake);
    if (s->table)
        store_table_free(s->table);
    store_buffer_free(&s->answer);
    store_buffer_free(&s->told);
    free(s);
}

struct store_server *store_server_new(void)
{
    struct store_server *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->next_end = STORE_NEVER;
    s->pid = getpid();
    init_lock(s);
    s->table = store_table_new();
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    int failed = !s->table ? ENOMEM : 0;
    if (!failed && (s->epoll < 0 || s->wake < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &event) < 0))
        failed = errno;
    if (!failed)
        failed = start_thread(s);
    if (failed) {
        release(s);
        errno = failed;
        return NULL;
    }
    return s;
}

int store_server_admit(struct store_server *s, int fd, struct store_torch *torch)
{
    pthread_mutex_lock(&s->lock); /* until it is listed: the thread may drop it at once */
    struct store_client *c = store_client_new(s->epoll, fd, torch);
    if (c) {
        c->next = s->clients;
        c->link = &s->clients;
        if (c->next)
            c->next->link = &c->next;
        s->clients = c;
        s->count++;
    }
    pthread_mutex_unlock(&s->lock);
    return c ? 0 : -1;
}

void store_server_counts(struct store_server *s, int *clients, int *waiting)
{
    pthread_mutex_lock(&s->lock);
    *clients = s->count;
    *waiting = s->waiting;
    pthread_mutex_unlock(&s->lock);
}

/* Until all clients have left, or all that are here wait for keys that nobody is left to bring: ranks that came back for the
 * next world before this server, of the last one, was closed. They look for the next server once they hear of the end. */
static void await_leaving(struct store_server *s, int64_t linger)
{
    int64_t end = store_now() + linger;
    struct timespec until = {end / 1000000000, end % 1000000000};
    pthread_mutex_lock(&s->lock);
    s->lingering = true;
    while (s->waiting < s->count && pthread_cond_timedwait(&s->left, &s->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&s->lock);
}

void store_server_end(struct store_server *s, int64_t linger)
{
    if (s->pid == getpid()) {
        if (linger > 0)
            await_leaving(s, linger);
        s->stopping = true;
        uint64_t one = 1;
        while (write(s->wake, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_join(s->thread, NULL);
    } else {
        pthread_mutex_init(&s->lock, NULL); /* the parent's threads may have held it */
        for (struct store_client *c = s->clients; c; c = c->next)
            c->epoll = -1; /* the set is the parent's */
    }
    release(s);
}
