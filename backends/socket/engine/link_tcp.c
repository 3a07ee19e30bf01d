#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "acomm.h"
#include "link.h"

#define LINK_STRIPE ((size_t)256 << 10) /* bytes on one connection before the next one's turn */

/* Both ends count the bytes of the stream: the position alone says which connection the next byte takes. */
struct link_tcp {
    struct link base;
    uint64_t position;
    _Atomic int attached;
    int connections;
    int fds[];
};

static struct link_tcp *self(struct link *link)
{
    return (struct link_tcp *)link;
}

static bool complete(struct link_tcp *t)
{
    return atomic_load_explicit(&t->attached, memory_order_acquire) == t->connections;
}

static int current(const struct link_tcp *t)
{
    return t->fds[t->position / LINK_STRIPE % (uint64_t)t->connections];
}

/* How much of the next `bytes` goes over the current connection. */
static size_t run_length(const struct link_tcp *t, size_t bytes)
{
    size_t left = LINK_STRIPE - t->position % LINK_STRIPE;
    return t->connections == 1 || bytes < left ? bytes : left;
}

static int translate(int errnum)
{
    switch (errnum) {
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
        return ACOMM_LOST;
    }
    return ACOMM_SYSTEM;
}

/* Bytes that fill a stripe must not wait for more: the next ones go over another connection. */
static int more_follows(const struct link_tcp *t, size_t bytes)
{
    return t->connections == 1 || (t->position + bytes) % LINK_STRIPE ? MSG_MORE : 0;
}

/* One system call in one direction: bytes moved, 0 none just now, or a code. */
static ssize_t move(struct link_tcp *t, char *data, size_t bytes, bool more)
{
    ssize_t n;
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more ? more_follows(t, bytes) : 0);
    do
        n = t->base.outgoing ? send(current(t), data, bytes, flags)
                             : recv(current(t), data, bytes, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        return n;
    if (n == 0) {
        errno = 0; /* the peer closed in good order */
        return ACOMM_LOST;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : translate(errno);
}

static ssize_t move_all(struct link *link, char *data, size_t bytes, bool more)
{
    struct link_tcp *t = self(link);
    if (!complete(t))
        return 0;
    size_t moved = 0;
    while (moved < bytes) {
        size_t part = run_length(t, bytes - moved);
        ssize_t n = move(t, data + moved, part, more);
        if (n < 0 && !moved)
            return n;
        if (n <= 0)
            break; /* after progress, an error shows again at the next call */
        moved += (size_t)n;
        t->position += (uint64_t)n;
        if ((size_t)n < part)
            break; /* the kernel has no more: spares a call that would say so */
    }
    return (ssize_t)moved;
}

static ssize_t tcp_send(struct link *link, const void *data, size_t bytes, bool more)
{
    return move_all(link, (char *)(uintptr_t)data, bytes, more);
}

static ssize_t tcp_recv(struct link *link, void *data, size_t bytes)
{
    return move_all(link, data, bytes, false);
}

static int tcp_descriptor(struct link *link)
{
    struct link_tcp *t = self(link);
    return complete(t) ? current(t) : -1;
}

static void tcp_close(struct link *link)
{
    struct link_tcp *t = self(link);
    for (int i = 0; i < t->connections; i++)
        if (t->fds[i] >= 0)
            close(t->fds[i]);
    free(t);
}

static const struct link_ops tcp_ops = {tcp_send, tcp_recv, tcp_descriptor, tcp_close, NULL};

struct link *link_tcp_new(int peer, bool outgoing, int connections)
{
    struct link_tcp *t = calloc(1, sizeof *t + (size_t)connections * sizeof t->fds[0]);
    if (!t)
        return NULL;
    t->base = (struct link){.ops = &tcp_ops, .peer = peer, .outgoing = outgoing};
    t->connections = connections;
    for (int i = 0; i < connections; i++)
        t->fds[i] = -1;
    return &t->base;
}

/* Whether both ends have the same address, so that no network is between. */
static bool inside_host(int fd)
{
    struct sockaddr_storage ours = {0}, theirs = {0};
    socklen_t size = sizeof ours, peer_size = sizeof theirs;
    if (getsockname(fd, (struct sockaddr *)&ours, &size) || getpeername(fd, (struct sockaddr *)&theirs, &peer_size))
        return false;
    if (ours.ss_family == AF_INET && theirs.ss_family == AF_INET)
        return ((struct sockaddr_in *)&ours)->sin_addr.s_addr == ((struct sockaddr_in *)&theirs)->sin_addr.s_addr;
    return ours.ss_family == AF_INET6 && theirs.ss_family == AF_INET6
        && !memcmp(&((struct sockaddr_in6 *)&ours)->sin6_addr, &((struct sockaddr_in6 *)&theirs)->sin6_addr,
                   sizeof(struct in6_addr));
}

/* Socket buffers keep the kernel's own sizing: SO_SNDBUF and SO_RCVBUF would end it, at a lower limit than it reaches,
 * and pieces that stay in the cache cost more in wake-ups than they save. Inside a host there is nothing to be careful
 * of: where the system's choice is BBR, its pacing costs up to 40% more processor time for a byte. reno is in every
 * kernel and open to every user; should it be refused all the same, the system's choice stays. */
static int prepare(int fd)
{
    int on = 1, flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
        return ACOMM_SYSTEM;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) && errno != EOPNOTSUPP && errno != ENOPROTOOPT)
        return ACOMM_SYSTEM; /* a Unix socket has no such option and needs none */
    if (inside_host(fd))
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", sizeof "reno" - 1);
    return 0;
}

int link_tcp_attach(struct link *link, int stripe, int fd)
{
    struct link_tcp *t = self(link);
    if (stripe < 0 || stripe >= t->connections || t->fds[stripe] >= 0)
        return ACOMM_ARGUMENT;
    int rc = prepare(fd);
    if (rc)
        return rc;
    t->fds[stripe] = fd;
    atomic_fetch_add_explicit(&t->attached, 1, memory_order_release);
    return 0;
}

bool link_tcp_complete(const struct link *link)
{
    return complete(self((struct link *)(uintptr_t)link));
}
