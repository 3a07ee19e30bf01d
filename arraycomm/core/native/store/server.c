/* The server's thread: epoll over the clients, whose requests it carries out one by one. It has no need of Python.
 *
 * A client sends its next request after the answer to the last one, or a few at once; while it does not read its answers nothing
 * more is read from it. Clients of torch's kind are not authenticated: the memory for all of them is bounded. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/process.h"
#include "store.h"

#define EVENTS 64
#define KEPT (16 << 10)           /* bytes of a buffer that an idle client keeps */
#define MOST_HELD (128u << 20)    /* bytes of all clients of torch's kind: requests not whole, or waiting, and unread answers */
#define WHOLE_NS 60000000000ll    /* until a request of theirs must be whole */
#define LOOK_MS 1000              /* between two checks for incomplete ones */
#define AGAIN_MS 20               /* until the retry of a last will that could not be written */

struct store_client {
    struct store_client *next;
    int fd, complaints;           /* STORE_MEMBER, or the descriptor for the reason of its disconnection */
    bool greeted, broken, blocked; /* the last: it does not read its answers */
    struct store_request request;
    struct store_buffer in, out;
    size_t taken, sent;           /* of these */
    struct store_entry *at;       /* waits for this key; NULL: does not wait */
    int64_t since, moved;         /* CLOCK_MONOTONIC, ns: a request's first byte (0: none), the last byte in either direction */
};

/* All under the lock, which the thread releases while it sleeps. */
struct store_server {
    struct store_table *table;
    struct store_will *wills;
    struct store_client *clients;
    int epoll, wake, count, waiting;
    bool due;                     /* last wills of disconnected clients are due */
    bool lingering, stopping;
    pid_t pid;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t left;
};

/* ---- clients ---- */

static bool is_member(const struct store_client *c)
{
    return c->complaints == STORE_MEMBER;
}

/* Without a reader it is lost: the pipe does not block. */
static void client_break(struct store_client *c, const char *reason)
{
    c->broken = true;
    shutdown(c->fd, SHUT_RDWR); /* an event notifies the thread, which drops it */
    if (is_member(c) || !reason)
        return;
    char line[STORE_TEXT + 1];
    int size = snprintf(line, sizeof line, "%s", reason);
    for (char *at = line; (at = strchr(at, '\n'));)
        *at = ' '; /* a key may hold any bytes, and a line is one complaint */
    line[size] = '\n';
    ssize_t written = write(c->complaints, line, (size_t)size + 1);
    (void)written;
}

static void client_unlist(struct store_server *s, struct store_client *c)
{
    struct store_entry *entry = c->at;
    c->at = NULL;
    s->waiting--;
    if (!--entry->waiters) {
        entry->brought = false;
        store_table_tidy(s->table, entry);
    }
}

/* Sends the rest of its answers, as far as it reads them. */
static void client_send(struct store_server *s, struct store_client *c)
{
    ssize_t sent = send(c->fd, c->out.data + c->sent, c->out.size - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
        client_break(c, NULL);
    c->sent += sent > 0 ? (size_t)sent : 0;
    c->moved = clock_now();
    bool blocked = c->sent < c->out.size;
    if (blocked != c->blocked) {
        struct epoll_event event = {.events = blocked ? EPOLLOUT : EPOLLIN, .data.ptr = c};
        epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &event);
    }
    c->blocked = blocked;
    if (blocked)
        return;
    c->out.size = c->sent = 0;
    if (c->out.room > KEPT)
        store_buffer_free(&c->out);
}

/* The request has been answered. */
static void client_next(struct store_client *c)
{
    c->taken += c->request.size;
    c->request = (struct store_request){.member = is_member(c)};
    c->since = 0;
}

static void client_wait(struct store_server *s, struct store_client *c, struct store_bytes missing)
{
    c->at = store_table_entry(s->table, missing, true);
    if (!c->at) {
        client_break(c, "the server has no memory for its request");
        return;
    }
    c->at->waiters++;
    s->waiting++;
}

static void client_execute(struct store_server *s, struct store_client *c)
{
    struct store_bytes missing;
    const char *data = c->in.data + c->taken;
    if (c->request.op == STORE_WILL)
        store_will_record(&s->wills, c, &c->request, data);
    enum store_result result = store_request_run(s->table, &c->request, data, &c->out, &missing);
    if (result == STORE_FAILED)
        client_break(c, c->request.text);
    else if (result == STORE_WAITS)
        client_wait(s, c, missing);
    else if (result == STORE_DONE)
        client_next(c);
    if (!c->broken && c->out.size)
        client_send(s, c);
}

/* Retries the requests that waited for keys that now exist. */
static void wake_waiters(struct store_server *s)
{
    while (s->table->brought) {
        s->table->brought = false;
        for (struct store_client *c = s->clients; c; c = c->next)
            if (c->at && c->at->brought) {
                client_unlist(s, c);
                client_execute(s, c);
            }
    }
}

/* After a waiting request only its cancellation may arrive. Whether it has. */
static bool client_cancels(struct store_server *s, struct store_client *c)
{
    size_t asked = c->taken + c->request.size;
    if (c->in.size == asked)
        return false;
    if (c->in.data[asked] != STORE_CANCEL) {
        client_break(c, "it asks for more while it waits");
        return false;
    }
    client_unlist(s, c);
    client_next(c); /* the next request reports it */
    return true;
}

static void client_compact(struct store_client *c)
{
    c->in.size -= c->taken;
    if (c->in.size)
        memmove(c->in.data, c->in.data + c->taken, c->in.size);
    else if (c->in.room > KEPT)
        store_buffer_free(&c->in);
    c->taken = 0;
}

/* Whether a request is whole: then it is carried out, unless a client of torch's kind has not greeted yet. */
static bool client_ready(struct store_client *c)
{
    if (c->request.more)
        return true;
    int state = store_request_read(&c->request, c->in.data + c->taken, c->in.size - c->taken);
    if (state < 0 || (!c->greeted && c->in.size > c->taken && c->in.data[c->taken] != STORE_VALIDATE))
        client_break(c, state < 0 ? c->request.text : "it does not speak the protocol of torch's store");
    c->greeted |= state > 0;
    return state > 0 && !c->broken;
}

/* Carries out arrived requests, until one waits or its client stops reading answers. */
static void client_run(struct store_server *s, struct store_client *c)
{
    while (!c->broken && !c->out.size && (c->at ? client_cancels(s, c) : true)) {
        if (!client_ready(c))
            break;
        client_execute(s, c);
        wake_waiters(s);
    }
    if (!c->at && !c->request.more)
        client_compact(c);
    if (c->in.size && !c->at && !c->out.size && !c->since)
        c->since = clock_now();
}

static void client_receive(struct store_client *c)
{
    if (!store_buffer_reserve(&c->in, KEPT / 4)) {
        client_break(c, "the server has no memory for its request");
        return;
    }
    ssize_t size = recv(c->fd, c->in.data + c->in.size, c->in.room - c->in.size, MSG_DONTWAIT);
    if (!size || (size < 0 && errno != EAGAIN && errno != EINTR))
        client_break(c, NULL);
    c->in.size += size > 0 ? (size_t)size : 0;
    c->moved = clock_now();
}

static void client_drop(struct store_server *s, struct store_client **at)
{
    struct store_client *c = *at;
    *at = c->next;
    s->count--;
    if (c->at)
        client_unlist(s, c);
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL); /* a forked child may have it open, too */
    close(c->fd);
    store_buffer_free(&c->in);
    store_buffer_free(&c->out);
    free(c);
}

/* ---- bounds for clients of torch's kind ---- */

/* Disconnects the clients idle for longest, until the others are within the bound. */
static void limit_held(struct store_server *s)
{
    for (;;) {
        struct store_client *oldest = NULL;
        size_t held = 0;
        for (struct store_client *c = s->clients; c; c = c->next) {
            if (is_member(c) || c->broken || (c->in.room <= KEPT && c->out.room <= KEPT))
                continue;
            held += c->in.room + c->out.room;
            if (!oldest || c->moved < oldest->moved)
                oldest = c;
        }
        if (held <= MOST_HELD)
            return;
        client_break(oldest, "requests that are not whole, or wait, and answers that are not read hold more than 128 MiB");
        store_buffer_free(&oldest->out);
    }
}

/* Disconnects clients whose requests are incomplete for too long. Whether there are others to be checked later. */
static bool limit_time(struct store_server *s)
{
    bool others = false;
    int64_t now = clock_now();
    for (struct store_client *c = s->clients; c; c = c->next) {
        bool begun = !is_member(c) && c->since && !c->broken;
        if (begun && now - c->since > WHOLE_NS)
            client_break(c, "a request that was not whole after 60 s");
        others |= begun;
    }
    return others;
}

/* ---- the thread ---- */

static void server_serve(struct store_server *s, struct store_client *c)
{
    if (c->out.size)
        client_send(s, c);
    else
        client_receive(c);
    client_run(s, c);
    if (!is_member(c) && (c->in.room > KEPT || c->out.room > KEPT))
        limit_held(s);
}

/* Drops disconnected clients, and writes their last wills. */
static void server_sweep(struct store_server *s)
{
    for (struct store_client **at = &s->clients; *at;) {
        if (!(*at)->broken) {
            at = &(*at)->next;
            continue;
        }
        s->due |= store_will_due(s->wills, *at);
        client_drop(s, at);
    }
    if (s->due)
        s->due = !store_will_execute(&s->wills, s->table);
    wake_waiters(s);
}

/* For clients that wait for an answer, the end of the connection is the notice. */
static void say_goodbye(struct store_server *s)
{
    const char closed = STORE_CLOSED;
    for (struct store_client *c = s->clients; c; c = c->next)
        if (!c->out.size && is_member(c))
            send(c->fd, &closed, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void *server_run(void *argument)
{
    struct store_server *s = argument;
    struct epoll_event events[EVENTS];
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        int wait = s->due ? AGAIN_MS : limit_time(s) ? LOOK_MS : -1;
        pthread_mutex_unlock(&s->lock);
        int found = epoll_wait(s->epoll, events, EVENTS, wait);
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < found; i++) {
            struct store_client *c = events[i].data.ptr;
            if (c && !c->broken)
                server_serve(s, c);
        }
        server_sweep(s);
        if (s->lingering)
            pthread_cond_broadcast(&s->left);
    }
    say_goodbye(s);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- calls of its owner ---- */

static void server_release(struct store_server *s)
{
    while (s->clients)
        client_drop(s, &s->clients);
    store_will_free(s->wills);
    if (s->epoll >= 0)
        close(s->epoll);
    if (s->wake >= 0)
        close(s->wake);
    if (s->table)
        store_table_free(s->table);
    free(s);
}

static int server_open(struct store_server *s)
{
    s->table = store_table_new();
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (!s->table)
        return ENOMEM;
    if (s->epoll < 0 || s->wake < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &event) < 0)
        return errno;
    return thread_start(&s->thread, 0, server_run, s) ? errno : 0;
}

struct store_server *store_server_new(void)
{
    struct store_server *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->pid = getpid();
    pthread_mutex_init(&s->lock, NULL);
    condition_init(&s->left);
    int failed = server_open(s);
    if (failed) {
        server_release(s);
        errno = failed;
        return NULL;
    }
    pthread_setname_np(s->thread, "arraycomm-store");
    return s;
}

int store_server_admit(struct store_server *s, int fd, int complaints)
{
    struct store_client *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (!c)
        return -1;
    c->fd = fd;
    c->complaints = complaints;
    c->request.member = c->greeted = is_member(c);
    pthread_mutex_lock(&s->lock);
    int failed = epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) ? errno : 0;
    if (!failed) {
        c->next = s->clients;
        s->clients = c;
        s->count++;
    }
    pthread_mutex_unlock(&s->lock);
    if (failed)
        free(c);
    errno = failed;
    return failed ? -1 : 0;
}

/* Until all clients have left, or all remaining ones wait for keys that no client can set any more: ranks that reconnected for
 * the next world before this server, of the last one, was closed. They look for the next server after this one's end. */
static void server_linger(struct store_server *s, int64_t linger)
{
    int64_t end = clock_now() + linger;
    s->lingering = true;
    while (s->waiting < s->count && clock_now() < end)
        condition_await(&s->left, &s->lock, end);
}

void store_server_end(struct store_server *s, int64_t linger)
{
    if (s->pid == getpid()) {
        pthread_mutex_lock(&s->lock);
        if (linger > 0)
            server_linger(s, linger);
        s->stopping = true;
        pthread_mutex_unlock(&s->lock);
        eventfd_write(s->wake, 1);
        pthread_join(s->thread, NULL);
    } else {
        close(s->epoll); /* the set belongs to the parent and must stay unchanged */
        s->epoll = -1;
    }
    server_release(s);
}
