/* The server as its owner has it: made, given clients, asked and ended. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/process.h"
#include "server.h"

static int start_thread(struct store_server *s)
{
    int failed = thread_start(&s->thread, 0, store_server_run, s) ? errno : 0;
    if (!failed)
        pthread_setname_np(s->thread, "arraycomm-store");
    return failed;
}

static void init_lock(struct store_server *s)
{
    pthread_mutex_init(&s->lock, NULL);
    condition_init(&s->left);
}

static void release(struct store_server *s)
{
    while (s->clients)
        store_server_drop(s, s->clients);
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

int store_server_waiting(const struct store_server *s)
{
    return s->waiting;
}

/* Until all clients have left, or all that are here wait for keys that nobody is left to bring: ranks that came back for the
 * next world before this server, of the last one, was closed. They look for the next server once they hear of the end. */
static void await_leaving(struct store_server *s, int64_t linger)
{
    int64_t end = clock_now() + linger;
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
