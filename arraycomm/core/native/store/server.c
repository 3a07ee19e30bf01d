/* The server's thread: epoll over the clients, the requests that wait, their deadlines. It has no need of Python.
 *
 * A client sends its next request after the answer to the last one, but for posted ones, which have no answer: so a
 * client costs one request's memory, and one that floods is dropped. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include "base/clock.h"
#include "server.h"

#define EVENTS 64
#define POLL_NS 30000
#define MOST_SKIPPED 32
#define AGAIN_NS 20000000 /* until a will that could not be written is tried again */
#define PIECE (64 << 10)  /* bytes of values that a client of torch's kind is sent at once, or one value */

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

/* What is in s->told, of whose unread rest all clients of torch's kind may hold so much only. */
static void store_server_tell(struct store_server *s, struct store_client *c)
{
    if (s->told.size)
        store_client_answer(c, &s->told);
    s->told.size = 0;
    if (!c->out.size)
        return;
    pthread_mutex_lock(&s->lock);
    store_client_unread(s->clients);
    pthread_mutex_unlock(&s->lock);
}

/* What is in s->answer; who cannot be told that for want of memory is disconnected. */
static void reply(struct store_server *s, struct store_client *c)
{
    if (s->answer.failed || (c->torch && !store_torch_answer(c->torch, &s->answer, &s->told)))
        store_client_break(c);
    else if (!c->torch)
        store_client_answer(c, &s->answer);
    else if (c->torch->next != STORE_GET || s->told.size > PIECE)
        store_server_tell(s, c);
    if (c->broken) {
        s->told.size = 0;
        s->told.failed = false;
    }
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
    bool posted = request->code & STORE_POSTED;
    if (!posted || s->answer.failed)
        reply(s, c);
    else if (s->answer.data[4] != STORE_OK && !c->late.size && !store_buffer_append(&c->late, s->answer.data, s->answer.size))
        store_client_break(c);
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
    else if (request->milliseconds)
        store_client_break(c); /* no memory */
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
    int64_t time = clock_now();
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

/* After a request that may have brought keys for which somebody waits. */
static void wake_waiters(struct store_server *s, const struct store_frame *frame)
{
    int op = frame->code & ~STORE_POSTED;
    bool brings = op == STORE_SET || op == STORE_ADD || op == STORE_COMPARE_SET || op == STORE_APPEND || op == STORE_PUSH;
    uint32_t every = op == STORE_SET ? 2 : UINT32_MAX; /* how many strings apart they lie */
    struct store_cursor cursor = store_frame_strings(frame);
    for (struct store_bytes key; brings && s->waiting && store_frame_next(&cursor, &key);)
        if ((cursor.index - 1) % every == 0)
            retry(s, key);
}

static bool store_server_leave(void *server, struct store_bytes key, struct store_bytes value)
{
    struct store_server *s = server;
    bool written = store_table_leave(s->table, key, value, &s->answer);
    if (written)
        retry(s, key);
    return written;
}

static void request(struct store_server *s, struct store_client *c, const struct store_frame *frame)
{
    if (c->late.size && !(frame->code & STORE_POSTED)) {
        store_client_answer(c, &c->late);
        c->late.size = 0;
        return;
    }
    if (frame->milliseconds)
        c->end = clock_now() + frame->milliseconds * 1000000ll;
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

static void store_server_carry_out(struct store_server *s, struct store_client *c)
{
    struct store_frame frame;
    if (store_frame_parse(&frame, c->torch->frame.data, c->torch->frame.size))
        request(s, c, &frame);
    else
        c->broken = true;
}

/* What else belongs to the request; of a long answer as much as the client reads. */
static void carry_on(struct store_server *s, struct store_client *c)
{
    while (!c->broken && !c->out.size && store_torch_next(c->torch))
        store_server_carry_out(s, c);
    c->broken |= c->torch->frame.failed;
    if (!c->at)
        store_buffer_free(&c->torch->frame);
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
        if (s->told.failed) { /* no memory to answer it */
            s->told.failed = false;
            return -1;
        }
        if (s->told.size)
            store_server_tell(s, c);
        else if (c->torch->frame.size) {
            store_server_carry_out(s, c);
            carry_on(s, c);
        }
    }
    return done == size ? (int64_t)done : -1;
}

/* When a client of torch's kind is to be looked at again. began: with a new request. */
static void plan_look(struct store_server *s, struct store_client *c, bool began)
{
    if (began)
        c->torch->since = 0;
    pthread_mutex_lock(&s->lock);
    int64_t due = store_client_limit(c, s->clients, STORE_CHUNK);
    pthread_mutex_unlock(&s->lock);
    if (due < s->next_end)
        s->next_end = due;
}

static void store_server_take(struct store_server *s, struct store_client *c, size_t size)
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

static void store_server_serve(struct store_server *s, struct store_client *c, uint32_t events)
{
    if (events & EPOLLOUT) {
        store_client_flush(c);
        if (c->torch && !c->out.size && !c->broken)
            carry_on(s, c);
    }
    if (!(events & ~(uint32_t)EPOLLOUT))
        return;
    ssize_t size = store_client_receive(c, s->chunk, sizeof s->chunk);
    if (size > 0)
        store_server_take(s, c, (size_t)size);
    else if (!size || (errno != EAGAIN && errno != EINTR))
        c->broken = true;
}

void store_server_drop(struct store_server *s, struct store_client *c)
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

/* ---- the clients' events ---- */

static int store_server_timeout(int64_t end)
{
    if (end == STORE_NEVER)
        return -1;
    int64_t left = (end - clock_now() + 999999) / 1000000;
    return left < 0 ? 0 : left > 3600000 ? 3600000 : (int)left;
}

/* As epoll_wait(), until s->next_end. Looks on for a moment before it sleeps, if that has been worth it lately: being woken costs more
 * than a request. */
static int store_server_await(struct store_server *s, struct epoll_event *events)
{
    int found = epoll_wait(s->epoll, events, EVENTS, 0);
    if (!found && s->skip-- <= 0) {
        for (int64_t until = clock_now() + POLL_NS; !found && clock_now() < until;)
            found = epoll_wait(s->epoll, events, EVENTS, 0);
        s->next_skip = found ? 1 : s->next_skip < MOST_SKIPPED ? 2 * s->next_skip : MOST_SKIPPED;
        s->skip = found ? 0 : s->next_skip;
    }
    return found ? found : epoll_wait(s->epoll, events, EVENTS, store_server_timeout(s->next_end));
}

/* A client with pipes has two descriptors, and may be among the events of one moment twice: it has gone at the second. */
static void forget_events(const struct store_client *c, struct epoll_event *from, const struct epoll_event *end)
{
    for (; from < end; from++)
        if (from->data.ptr == c)
            from->data.ptr = NULL;
}

void *store_server_run(void *argument)
{
    struct store_server *s = argument;
    struct epoll_event events[EVENTS];
    while (!s->stopping) {
        int found = store_server_await(s, events);
        for (int i = 0; i < found; i++) {
            struct store_client *c = events[i].data.ptr;
            if (c && !c->broken)
                store_server_serve(s, c, events[i].events);
            if (c && c->broken) {
                if (c->at)
                    unlist(s, c);
                s->due |= store_will_due(s->wills, c);
                store_server_drop(s, c);
                forget_events(c, events + i, events + found);
            }
        }
        if (s->due) /* what clients that have gone wanted written, where the keys are missing */
            s->due = !store_will_execute(&s->wills, store_server_leave, s);
        if (s->due && clock_now() + AGAIN_NS < s->next_end) /* there was no memory */
            s->next_end = clock_now() + AGAIN_NS;
        if (s->next_end != STORE_NEVER && clock_now() >= s->next_end)
            expire(s);
        if (s->answer.room > STORE_CHUNK) /* a rare one; not to be kept */
            store_buffer_free(&s->answer);
        if (s->told.room > STORE_CHUNK)
            store_buffer_free(&s->told);
    }
    say_goodbye(s);
    return NULL;
}
