/* A server's end of a connection: a socket, or two pipes that came over one (see store/line.c). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "server.h"

static int control(struct store_client *c, int how, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    return epoll_ctl(c->epoll, how, fd, &event);
}

struct store_client *store_client_new(int epoll, int sock, struct store_torch *torch)
{
    struct store_client *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->epoll = epoll;
    c->torch = torch;
    c->sock = c->from = c->to = sock;
    c->offered[0] = c->offered[1] = -1;
    if (!control(c, EPOLL_CTL_ADD, sock, EPOLLIN))
        return c;
    free(c);
    return NULL;
}

static void refuse_offer(struct store_client *c)
{
    for (int i = 0; i < 2; i++) {
        if (c->offered[i] >= 0)
            close(c->offered[i]);
        c->offered[i] = -1;
    }
}

/* A file that somebody else has open, too, stays in the epoll set when it is closed here. */
static void store_client_forget(struct store_client *c, int fd)
{
    control(c, EPOLL_CTL_DEL, fd, 0);
    close(fd);
}

void store_client_free(struct store_client *c)
{
    refuse_offer(c);
    if (c->from != c->sock) {
        store_client_forget(c, c->from);
        store_client_forget(c, c->to);
    }
    store_client_forget(c, c->sock);
    store_buffer_free(&c->in);
    store_buffer_free(&c->out);
    store_buffer_free(&c->late);
    store_torch_free(c->torch);
    free(c);
}

/* ---- pipes in place of the socket ---- */

static void keep_offer(struct store_client *c, struct msghdr *message)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd, *place = c->offered[0] < 0 ? &c->offered[0] : &c->offered[1];
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (*place >= 0)
                close(fd);
            else
                *place = fd;
        }
    }
}

static ssize_t receive_message(struct store_client *c, char *data, size_t room)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } parts;
    struct iovec piece = {data, room};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &parts, .msg_controllen = sizeof parts};
    ssize_t size = recvmsg(c->sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size > 0 && message.msg_controllen)
        keep_offer(c, &message);
    return size;
}

ssize_t store_client_receive(struct store_client *c, char *data, size_t room)
{
    return c->from == c->sock ? receive_message(c, data, room) : read(c->from, data, room);
}

static bool pipe_that_does_not_block(int fd)
{
    struct stat status;
    return fd >= 0 && !fstat(fd, &status) && S_ISFIFO(status.st_mode) && !fcntl(fd, F_SETFL, O_NONBLOCK);
}

/* Pipes take two descriptors more: they may take those up to a half, so that as many clients find room as without. */
static bool descriptors_abound(const struct store_client *c)
{
    struct rlimit limit;
    return !getrlimit(RLIMIT_NOFILE, &limit) && (rlim_t)c->offered[1] < limit.rlim_cur / 2;
}

static bool adopt(struct store_client *c)
{
    if (c->from != c->sock || !pipe_that_does_not_block(c->offered[0]) || !pipe_that_does_not_block(c->offered[1])
        || !descriptors_abound(c) || control(c, EPOLL_CTL_ADD, c->offered[0], EPOLLIN)) {
        refuse_offer(c);
        return false;
    }
    control(c, EPOLL_CTL_DEL, c->sock, 0); /* it stays, so that both ends have something to hang up */
    c->from = c->offered[0];
    c->to = c->offered[1];
    c->offered[0] = c->offered[1] = -1;
    return true;
}

void store_client_adopt(struct store_client *c)
{
    char frame[STORE_HEAD] = {STORE_HEAD - 4, 0, 0, 0, STORE_OK};
    if (!adopt(c))
        frame[4] = STORE_BAD_REQUEST;
    if (send(c->sock, frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof frame)
        c->broken = true;
}

/* ---- answers ---- */

static void watch_for_room(struct store_client *c, bool on)
{
    if (c->to == c->sock)
        control(c, EPOLL_CTL_MOD, c->sock, on ? EPOLLIN | EPOLLOUT : EPOLLIN);
    else
        control(c, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, c->to, EPOLLOUT);
}

/* A pipe without a reader raises SIGPIPE, which the server's thread has blocked. */
static ssize_t store_client_put(const struct store_client *c, const char *data, size_t size)
{
    return c->to == c->sock ? send(c->sock, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : write(c->to, data, size);
}

void store_client_answer(struct store_client *c, const struct store_buffer *answer)
{
    ssize_t sent = store_client_put(c, answer->data, answer->size);
    if (sent == (ssize_t)answer->size)
        return;
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        c->broken = true; /* its own event tells, too */
        return;
    }
    sent = sent < 0 ? 0 : sent;
    c->sent = 0;
    if (!store_buffer_append(&c->out, answer->data + sent, answer->size - (size_t)sent))
        store_client_break(c);
    watch_for_room(c, true);
    if (c->torch)
        c->torch->read = clock_now();
}

void store_client_break(struct store_client *c)
{
    c->broken = true;
    shutdown(c->sock, SHUT_RDWR);
}

void store_client_flush(struct store_client *c)
{
    ssize_t sent = store_client_put(c, c->out.data + c->sent, c->out.size - c->sent);
    if (sent < 0) {
        c->broken = errno != EAGAIN && errno != EINTR;
        return;
    }
    c->sent += (size_t)sent;
    if (c->torch)
        c->torch->read = clock_now();
    if (c->sent == c->out.size) {
        store_buffer_free(&c->out);
        watch_for_room(c, false);
    }
}

/* ---- waiting ---- */

void store_client_list(struct store_client *c, struct store_entry *entry)
{
    struct store_client *last = entry->last_waiter;
    c->at = entry;
    c->before = last;
    c->after = NULL;
    if (last)
        last->after = c;
    else
        entry->first_waiter = c;
    entry->last_waiter = c;
}

void store_client_unlist(struct store_client *c)
{
    struct store_entry *entry = c->at;
    if (c->before)
        c->before->after = c->after;
    else
        entry->first_waiter = c->after;
    if (c->after)
        c->after->before = c->before;
    else
        entry->last_waiter = c->before;
    c->at = NULL;
}

/* ---- clients that are not authenticated ---- */

int64_t store_client_due(struct store_client *c, int64_t now)
{
    if (!c->torch || !c->torch->since || c->broken)
        return STORE_NEVER;
    int64_t due = c->torch->since + STORE_TORCH_NS;
    if (due > now)
        return due;
    store_torch_complain(c->torch, "a request that was not whole after %lld s", STORE_TORCH_NS / 1000000000);
    store_client_break(c);
    return STORE_NEVER;
}

int64_t store_client_limit(struct store_client *c, const struct store_client *all, size_t short_one)
{
    size_t held = 0;
    if (!c->in.size || c->broken) {
        c->torch->since = 0;
        return STORE_NEVER;
    }
    if (!c->torch->since)
        c->torch->since = clock_now();
    for (; c->in.size > short_one && all; all = all->next)
        held += all->torch ? all->in.size + all->torch->frame.size : 0;
    if (held > STORE_TORCH_MOST) {
        store_torch_complain(c->torch, "requests that are not whole, or wait, hold more than %u bytes", STORE_TORCH_MOST);
        store_client_break(c);
    }
    return c->torch->since + STORE_TORCH_NS;
}

void store_client_unread(struct store_client *all)
{
    for (;;) {
        struct store_client *oldest = NULL;
        size_t held = 0;
        for (struct store_client *c = all; c; c = c->next) {
            if (!c->torch || c->broken || !c->out.size)
                continue;
            held += c->out.room + c->torch->list.room;
            if (!oldest || c->torch->read < oldest->torch->read)
                oldest = c;
        }
        if (held <= STORE_TORCH_UNREAD)
            return;
        store_torch_complain(oldest->torch, "answers that are not read hold more than %u bytes", STORE_TORCH_UNREAD);
        store_client_break(oldest);
        store_buffer_free(&oldest->out);
    }
}
