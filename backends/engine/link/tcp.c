/* A link over one or several TCP connections, among which long contents are divided. */
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "link/link.h"

#define ACKNOWLEDGED 16 /* receiving calls between two requests for delayed acknowledgements */
#define LINK_STRIPE ((size_t)256 << 10) /* bytes on one connection before the next one's turn */

/* With several connections the stream goes in stripes, and behind each stripe one byte names the connection of the next one: the
 * sender chooses the one with the fewest unsent bytes, so that each carries data at its own rate. Round robin would make all as
 * slow as the slowest one. */
struct link_tcp {
    struct link base;
    _Atomic int attached;
    int connections;
    int current;
    size_t filled;      /* bytes of the stripe that have moved; LINK_STRIPE: the byte behind it has not */
    unsigned char next; /* that byte */
    uint32_t received;  /* calls that received bytes */
    int fds[];
};

static struct link_tcp *tcp_self(struct link *link)
{
    return (struct link_tcp *)link;
}

static bool tcp_complete(const struct link *link)
{
    const struct link_tcp *t = (const struct link_tcp *)link;
    return atomic_load_explicit(&t->attached, memory_order_acquire) == t->connections;
}

static int tcp_translate(int errnum)
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

/* Estimated seconds until a stripe queued on the connection now has arrived, from its delivery rate so far; 0 if its queue is
 * empty, or its rate unknown. */
static double delay(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) || !info.tcpi_notsent_bytes || !info.tcpi_delivery_rate)
        return 0;
    double ahead = (double)info.tcpi_notsent_bytes + (double)info.tcpi_unacked * info.tcpi_snd_mss;
    return (ahead + (double)LINK_STRIPE) / (double)info.tcpi_delivery_rate;
}

/* The connection for the next stripe. The same one as long as all its bytes were sent at once: short messages gain nothing from
 * several, and on each a loss at the end costs a timeout. */
static int pick(const struct link_tcp *t)
{
    int best = t->current;
    double least = delay(t->fds[best]);
    for (int i = 0; i < t->connections && least > 0; i++) {
        double seconds = delay(t->fds[i]);
        if (seconds < least) {
            least = seconds;
            best = i;
        }
    }
    return best;
}

/* A connection carries data one way, so no data take acknowledgements back: the kernel sends one for every short message, at a
 * third of the message's own cost. After this request it sends one for two messages, until 40 ms pass without any. */
static void delay_acknowledgements(struct link_tcp *t, int fd)
{
    int at_once = 0;
    if (!t->base.outgoing && t->received++ % ACKNOWLEDGED == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &at_once, sizeof at_once);
}

/* One system call in one direction: bytes moved, 0 none now, or a code. `last`: a stripe's last ones, with the byte behind it.
 * Those must not wait for more bytes, which may use another connection. */
static ssize_t tcp_move(struct link_tcp *t, char *data, size_t bytes, bool last, bool more)
{
    struct iovec parts[] = {{data, bytes}, {&t->next, 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = last ? 2 : 1};
    int fd = t->fds[t->current], flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more && !last ? MSG_MORE : 0);
    ssize_t n;
    do
        n = t->base.outgoing ? sendmsg(fd, &message, flags) : recvmsg(fd, &message, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        delay_acknowledgements(t, fd);
        return n;
    }
    if (n == 0) {
        errno = 0; /* the peer closed in good order */
        return ACOMM_LOST;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : tcp_translate(errno);
}

/* As much of the stripe as possible: bytes of the stream, and through `all` whether the call moved all it tried. */
static ssize_t move_stripe(struct link_tcp *t, char *data, size_t bytes, bool more, bool *all)
{
    size_t left = LINK_STRIPE - t->filled;
    bool last = bytes >= left;
    if (t->next >= t->connections) {
        errno = EPROTO;
        return ACOMM_PROTOCOL;
    }
    if (last) {
        bytes = left;
        t->next = (unsigned char)(t->base.outgoing ? pick(t) : 0);
    }
    ssize_t n = tcp_move(t, data, bytes, last, more);
    *all = n == (ssize_t)(bytes + last);
    if (n <= 0)
        return n;
    t->filled += (size_t)n - (last && *all);
    if (!last || !*all)
        return n;
    if (t->next < t->connections) /* or it fails at the next turn */
        t->current = t->next;
    t->filled = 0;
    return n - 1;
}

/* Flushes bytes that wait for more. */
static ssize_t tcp_flush(const struct link_tcp *t)
{
    int on = 1;
    for (int i = 0; i < t->connections && t->base.outgoing; i++)
        (void)setsockopt(t->fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return 0;
}

static ssize_t move_all(struct link *link, char *data, size_t bytes, bool more)
{
    struct link_tcp *t = tcp_self(link);
    if (!tcp_complete(link))
        return 0;
    if (t->connections == 1)
        return bytes ? tcp_move(t, data, bytes, false, more) : tcp_flush(t);
    size_t moved = 0;
    bool all = true; /* else the kernel has no more: saves a call that would return EAGAIN */
    while (moved < bytes && all) {
        ssize_t n = move_stripe(t, data + moved, bytes - moved, more, &all);
        if (n < 0 && !moved)
            return n;
        if (n < 0)
            break; /* after progress, an error shows again at the next call */
        moved += (size_t)n;
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
    struct link_tcp *t = tcp_self(link);
    return tcp_complete(link) ? t->fds[t->current] : -1;
}

static void tcp_close(struct link *link)
{
    struct link_tcp *t = tcp_self(link);
    for (int i = 0; i < t->connections; i++)
        if (t->fds[i] >= 0)
            close(t->fds[i]);
    free(t);
}

/* Whether both ends have the same address, so that no network lies between them. */
static bool inside_host(int fd)
{
    struct sockaddr_storage ours = {0}, theirs = {0};
    socklen_t size = sizeof ours, peer_size = sizeof theirs;
    if (getsockname(fd, (struct sockaddr *)&ours, &size) || getpeername(fd, (struct sockaddr *)&theirs, &peer_size))
        return false;
    ((struct sockaddr_in *)&ours)->sin_port = ((struct sockaddr_in *)&theirs)->sin_port = 0; /* at this place in both families */
    return (ours.ss_family == AF_INET || ours.ss_family == AF_INET6) && !memcmp(&ours, &theirs, sizeof ours);
}

/* Socket buffers keep the kernel's own sizing: SO_SNDBUF and SO_RCVBUF would end it, at a lower limit than it reaches, and pieces
 * that stay in the cache cost more in wake-ups than they save. Inside a host congestion control has no purpose: where the
 * system's choice is BBR, its pacing costs up to 40% more processor time for a byte. reno is in every kernel and open to every
 * user; if the kernel refuses it, the system's choice stays. */
static int tcp_prepare(int fd)
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

static int tcp_attach(struct link *link, int stripe, int fd)
{
    struct link_tcp *t = tcp_self(link);
    if (stripe < 0 || stripe >= t->connections || t->fds[stripe] >= 0)
        return ACOMM_ARGUMENT;
    int rc = tcp_prepare(fd);
    if (rc)
        return rc;
    t->fds[stripe] = fd;
    atomic_fetch_add_explicit(&t->attached, 1, memory_order_release);
    return 0;
}

static const struct link_ops tcp_ops = {tcp_send, tcp_recv, tcp_descriptor, tcp_close, NULL, NULL, tcp_attach, tcp_complete};

struct link *link_tcp_new(int peer, bool outgoing, int connections)
{
    struct link_tcp *t = calloc(1, sizeof *t + (size_t)connections * sizeof t->fds[0]);
    if (!t)
        return NULL;
    t->base = (struct link){.ops = &tcp_ops, .peer = peer, .outgoing = outgoing, .connections = connections};
    t->connections = connections;
    for (int i = 0; i < connections; i++)
        t->fds[i] = -1;
    return &t->base;
}
