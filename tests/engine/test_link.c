/* engine: link/tcp.c link/shm.c base/doorbell.c memory/stream.c */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include "acomm.h"
#include "check.h"
#include "link/link.h"

#define STREAM ((size_t)3 << 20) /* more than every buffer on the way */
#define RING ((size_t)8 << 10)

/* A connected pair over TCP on the loopback interface, the one that connects at address `from`. */
static void tcp_pair_from(int fds[2], uint32_t from)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in source = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQUAL(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    CHECK_EQUAL(listen(listener, 1), 0);
    CHECK_EQUAL(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQUAL(bind(fds[0], (struct sockaddr *)&source, sizeof source), 0);
    CHECK_EQUAL(connect(fds[0], (struct sockaddr *)&at, sizeof at), 0);
    fds[1] = accept(listener, NULL, NULL);
    CHECK(fds[1] >= 0);
    close(listener);
}

static void tcp_pair(int fds[2])
{
    tcp_pair_from(fds, INADDR_LOOPBACK);
}

struct pair { struct link *out, *in; struct link_ring *ring; };

static struct pair open_tcp(int connections)
{
    struct pair p = {link_tcp_new(1, true, connections), link_tcp_new(0, false, connections), NULL};
    for (int i = connections - 1; i >= 0; i--) {
        int fds[2];
        tcp_pair(fds);
        CHECK(!p.out->ops->complete(p.out));
        CHECK_EQUAL(p.out->ops->attach(p.out, i, fds[0]), 0);
        CHECK_EQUAL(p.in->ops->attach(p.in, i, fds[1]), 0);
    }
    CHECK(p.out->ops->complete(p.out) && p.in->ops->complete(p.in));
    return p;
}

static struct pair open_shm(void)
{
    size_t footprint = (link_shm_footprint(RING) + 4095) / 4096 * 4096;
    struct link_ring *ring = aligned_alloc(4096, footprint);
    memset(ring, 0, footprint);
    return (struct pair){link_shm_new(1, true, ring, RING, NULL, NULL), link_shm_new(0, false, ring, RING, NULL, NULL), ring};
}

static void close_pair(struct pair p)
{
    if (p.out)
        p.out->ops->close(p.out);
    if (p.in)
        p.in->ops->close(p.in);
    free(p.ring);
}

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 31 + (i >> 8) * 7 + (i >> 18) * 3);
}

struct sender { struct link *link; int code; };

/* Sends STREAM bytes in requests of many sizes. */
static void *send_stream(void *argument)
{
    struct sender *s = argument;
    char *data = malloc(STREAM);
    for (size_t i = 0; i < STREAM; i++)
        data[i] = (char)byte_at(i);
    for (size_t done = 0, request = 1; done < STREAM && !s->code; request = request * 5 % 400009 + 1) {
        size_t most = STREAM - done < request ? STREAM - done : request;
        ssize_t n = s->link->ops->send(s->link, data + done, most, false);
        if (n < 0)
            s->code = (int)n;
        else if (n == 0)
            sched_yield();
        else
            done += (size_t)n;
        if (n > (ssize_t)most)
            s->code = 1;
    }
    free(data);
    return NULL;
}

static void receive_stream(struct link *in)
{
    unsigned char *data = malloc(100000);
    size_t wrong = 0, request = 3;
    for (size_t done = 0; done < STREAM; request = request * 7 % 99991 + 1) {
        size_t most = STREAM - done < request ? STREAM - done : request;
        ssize_t n = in->ops->recv(in, data, most);
        CHECK(n >= 0 && n <= (ssize_t)most);
        if (n < 0)
            break;
        if (n == 0)
            sched_yield();
        for (ssize_t i = 0; i < n; i++)
            wrong += data[i] != byte_at(done + (size_t)i);
        done += (size_t)n;
    }
    CHECK_EQUAL(wrong, 0);
    CHECK_EQUAL(in->ops->recv(in, data, 1), 0);
    free(data);
}

static void stream_through(struct pair p)
{
    pthread_t thread;
    struct sender sender = {p.out, 0};
    CHECK_EQUAL(pthread_create(&thread, NULL, send_stream, &sender), 0);
    receive_stream(p.in);
    pthread_join(thread, NULL);
    CHECK_EQUAL(sender.code, 0);
    close_pair(p);
}

static void stream_over_one_connection(void) { stream_through(open_tcp(1)); }
static void stream_over_five_connections(void) { stream_through(open_tcp(5)); }
static void stream_over_ring(void) { stream_through(open_shm()); }

static void nothing(int number)
{
    (void)number;
}

/* A storm of signals without SA_RESTART: no call may show EINTR. */
static void stream_under_signals(void)
{
    struct sigaction action = {.sa_handler = nothing}, before;
    struct itimerval fast = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &fast, NULL);
    stream_through(open_tcp(2));
    setitimer(ITIMER_REAL, &off, NULL);
    sigaction(SIGALRM, &before, NULL);
}

static void incomplete_moves_nothing(void)
{
    struct link *link = link_tcp_new(1, true, 2);
    int fds[2];
    CHECK_EQUAL(link->ops->send(link, "x", 1, false), 0);
    CHECK_EQUAL(link_descriptor(link), -1);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    CHECK_EQUAL(link->ops->attach(link, 0, fds[0]), 0);
    CHECK_EQUAL(link->ops->send(link, "x", 1, false), 0);
    CHECK_EQUAL(link->ops->attach(link, 0, fds[1]), ACOMM_ARGUMENT);
    CHECK_EQUAL(link->ops->attach(link, 2, fds[1]), ACOMM_ARGUMENT);
    CHECK_EQUAL(link->ops->attach(link, -1, fds[1]), ACOMM_ARGUMENT);
    CHECK_EQUAL(link->ops->attach(link, 1, -1), ACOMM_SYSTEM);
    CHECK(!link->ops->complete(link));
    close(fds[1]);
    link->ops->close(link);
}

static void descriptor_tells_when(void)
{
    struct pair p = open_tcp(1);
    struct pollfd fd = {.fd = link_descriptor(p.in), .events = POLLIN};
    CHECK_EQUAL(poll(&fd, 1, 0), 0);
    CHECK_EQUAL(p.out->ops->send(p.out, "hello", 5, false), 5);
    CHECK_EQUAL(poll(&fd, 1, 5000), 1);
    close_pair(p);
    p = open_shm();
    CHECK_EQUAL(link_descriptor(p.in), -1);
    close_pair(p);
}

/* TCP_CONGESTION of a connection that was given to a link, and what it was before. */
static void congestion(uint32_t from, char before[16], char after[16])
{
    int fds[2];
    tcp_pair_from(fds, from);
    socklen_t length = 16;
    CHECK_EQUAL(getsockopt(fds[0], IPPROTO_TCP, TCP_CONGESTION, before, &length), 0);
    struct link *link = link_tcp_new(1, true, 1);
    CHECK_EQUAL(link->ops->attach(link, 0, fds[0]), 0);
    length = 16;
    CHECK_EQUAL(getsockopt(fds[0], IPPROTO_TCP, TCP_CONGESTION, after, &length), 0);
    link->ops->close(link);
    close(fds[1]);
}

static void no_pacing_inside_a_host(void)
{
    char before[16], after[16];
    congestion(INADDR_LOOPBACK, before, after);
    CHECK(!strcmp(after, "reno"));
    congestion(INADDR_LOOPBACK + 1, before, after); /* another address: there may be a network between */
    CHECK(!strcmp(after, before));
}

static void move_exactly(struct pair p, char *data, size_t bytes)
{
    size_t sent = 0, got = 0;
    while (got < bytes) {
        ssize_t n = p.out->ops->send(p.out, data, bytes - sent, false);
        sent += n > 0 ? (size_t)n : 0;
        n = p.in->ops->recv(p.in, data, bytes - got);
        got += n > 0 ? (size_t)n : 0;
    }
}

/* Bytes may wait for those that follow only where these take the same connection. The kernel ends the wait after
 * 200 ms. */
static void more_does_not_wait_on_another_connection(void)
{
    struct pair p = open_tcp(2);
    char *data = calloc(1, (size_t)256 << 10);
    move_exactly(p, data, ((size_t)256 << 10) - 40);
    CHECK_EQUAL(p.out->ops->send(p.out, data, 40, true), 40);
    struct pollfd fd = {.fd = link_descriptor(p.in), .events = POLLIN};
    CHECK_EQUAL(poll(&fd, 1, 100), 1);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, 41), 40);
    close_pair(p);
    free(data);
}

/* Waits for the link's verdict. */
static ssize_t settled(struct link *link, char *data, size_t bytes)
{
    ssize_t n = 0;
    for (int i = 0; i < 5000 && n == 0; i++) {
        n = link->outgoing ? link->ops->send(link, data, bytes, false) : link->ops->recv(link, data, bytes);
        if (n == 0)
            usleep(1000);
    }
    return n;
}

#define SPREAD 3
#define STRIPE ((size_t)256 << 10)

/* A link of several connections whose descriptors are known. */
static struct pair open_spread(int out[SPREAD], int in[SPREAD])
{
    struct pair p = {link_tcp_new(1, true, SPREAD), link_tcp_new(0, false, SPREAD), NULL};
    for (int i = 0; i < SPREAD; i++) {
        int fds[2];
        tcp_pair(fds);
        CHECK_EQUAL(p.out->ops->attach(p.out, i, out[i] = fds[0]), 0);
        CHECK_EQUAL(p.in->ops->attach(p.in, i, in[i] = fds[1]), 0);
    }
    return p;
}

static int readable(int fd)
{
    int bytes = 0;
    CHECK_EQUAL(ioctl(fd, FIONREAD, &bytes), 0);
    return bytes;
}

/* What leaves at once stays on one connection; what its receiver does not take goes on with others. */
static void stripes_go_where_there_is_room(void)
{
    int out[SPREAD], in[SPREAD], large = 4 << 20;
    struct pair p = open_spread(out, in);
    char *data = calloc(1, STRIPE);
    for (int stripe = 0; stripe < 4; stripe++)
        move_exactly(p, data, STRIPE);
    for (int i = 0; i < SPREAD; i++)
        setsockopt(out[i], SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
    CHECK_EQUAL(readable(in[1]) + readable(in[2]), 0);
    size_t sent = 0;
    for (int i = 0; i < SPREAD * 20; i++) {
        ssize_t n = p.out->ops->send(p.out, data, STRIPE, false);
        CHECK(n >= 0);
        sent += (size_t)n;
    }
    for (int i = 0; i < SPREAD; i++)
        CHECK(readable(in[i]) > 0);
    while (sent) {
        ssize_t n = settled(p.in, data, STRIPE);
        CHECK(n > 0);
        sent -= n > 0 ? (size_t)n : sent;
    }
    close_pair(p);
    free(data);
}

/* The byte behind a stripe names no connection: all that came before it is still delivered. */
static void forged_turn(void)
{
    int out[SPREAD], in[SPREAD];
    struct pair p = open_spread(out, in);
    char *data = calloc(1, STRIPE);
    move_exactly(p, data, STRIPE - 1);
    CHECK_EQUAL(send(out[0], "x\xff", 2, 0), 2);
    CHECK_EQUAL(settled(p.in, data, 1), 1);
    CHECK_EQUAL(data[0], 'x');
    CHECK_EQUAL(settled(p.in, data, 1), ACOMM_PROTOCOL);
    CHECK_EQUAL(settled(p.in, data, 1), ACOMM_PROTOCOL);
    close_pair(p);
    free(data);
}


static void peer_closes(void)
{
    struct pair p = open_tcp(1);
    char data[8];
    CHECK_EQUAL(p.out->ops->send(p.out, "12345678", 8, false), 8);
    p.out->ops->close(p.out);
    CHECK_EQUAL(settled(p.in, data, 5), 5); /* what was sent before still comes */
    CHECK_EQUAL(settled(p.in, data, 8), 3);
    CHECK_EQUAL(settled(p.in, data, 1), ACOMM_LOST);
    CHECK_EQUAL(errno, 0);
    p.out = NULL;
    close_pair(p);
}

static void peer_resets(void)
{
    struct pair p = open_tcp(1);
    char *data = calloc(1, STREAM);
    struct linger hard = {1, 0};
    setsockopt(link_descriptor(p.in), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    p.in->ops->close(p.in);
    p.in = NULL;
    ssize_t n;
    while ((n = settled(p.out, data, STREAM)) > 0)
        continue;
    CHECK_EQUAL(n, ACOMM_LOST);
    CHECK(errno == ECONNRESET || errno == EPIPE);
    close_pair(p);
    free(data);
}

static void bad_descriptor(void)
{
    struct pair p = open_tcp(1);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(null >= 0);
    dup2(null, link_descriptor(p.in));
    close(null);
    char data[1];
    CHECK_EQUAL(p.in->ops->recv(p.in, data, 1), ACOMM_SYSTEM);
    CHECK_EQUAL(errno, ENOTSOCK);
    close_pair(p);
}

/* What a hostile peer can write: how much was taken, in the first word, and a stamp for each of 128 pieces, from byte 256 on. */
static _Atomic uint64_t *stamps(struct pair p, int slot)
{
    return (_Atomic uint64_t *)(void *)((char *)p.ring + 256 + 64 * slot);
}

static uint64_t stamp(uint64_t number, uint64_t bytes)
{
    return number << 36 | bytes;
}

static void forged_taken(void)
{
    const uint64_t forged[] = {6, 65, UINT64_MAX, (uint64_t)1 << 63};
    _Alignas(64) char data[RING * 2] = {0};
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        struct pair p = open_shm();
        CHECK_EQUAL(p.out->ops->send(p.out, data, 100, false), 100);
        *(uint64_t *)(void *)p.ring = forged[i]; /* read when the ring is full: five pieces have been sent then */
        CHECK_EQUAL(p.out->ops->send(p.out, data, sizeof data, false), ACOMM_PROTOCOL);
        close_pair(p);
    }
}

static void forged_stamps(void)
{
    const uint64_t lengths[] = {0, RING / 4 + 257, RING + 1, (1 << 24) - 1, 57 << 24, 63 << 24 | 100, 1 << 24 | (RING + 1)};
    char data[RING] = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct pair p = open_shm();
        *stamps(p, 0) = stamp(2, 8); /* another one's number: not there yet */
        CHECK_EQUAL(p.in->ops->recv(p.in, data, sizeof data), 0);
        CHECK(!p.in->ops->waiting(p.in));
        *stamps(p, 0) = stamp(1, lengths[i]);
        CHECK_EQUAL(p.in->ops->recv(p.in, data, sizeof data), ACOMM_PROTOCOL);
        close_pair(p);
    }
}

/* A piece that would go on past the end of the ring. */
static void forged_end(void)
{
    struct pair p = open_shm();
    _Alignas(64) char data[RING] = {0};
    CHECK_EQUAL(p.out->ops->send(p.out, data, RING - 64, false), RING - 64);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, RING), RING - 64);
    *stamps(p, 4) = stamp(5, 65);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, RING), ACOMM_PROTOCOL);
    *stamps(p, 4) = stamp(5, 64);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, RING), 64);
    close_pair(p);
}

/* The own counts in shared memory may be changed too: they are never read back. */
static void own_counts_are_private(void)
{
    struct pair p = open_shm();
    char data[RING];
    CHECK_EQUAL(p.out->ops->send(p.out, "ab", 2, false), 2);
    CHECK(p.in->ops->waiting(p.in));
    CHECK_EQUAL(p.in->ops->recv(p.in, data, 1), 1);
    *(uint64_t *)(void *)p.ring = 7777;
    *stamps(p, 0) = stamp(1, 56);
    CHECK(p.in->ops->waiting(p.in));
    CHECK_EQUAL(p.in->ops->recv(p.in, data + 1, RING - 1), 1);
    CHECK(!memcmp(data, "ab", 2) && !p.in->ops->waiting(p.in));
    close_pair(p);
}

static void full_ring(void)
{
    struct pair p = open_shm();
    _Alignas(64) char data[RING + 100] = {0};
    CHECK_EQUAL(p.out->ops->send(p.out, data, sizeof data, false), RING);
    CHECK_EQUAL(p.out->ops->send(p.out, data, 57, false), 0);
    for (int i = 0; i < 124; i++) /* what is short needs no room but a slot */
        CHECK_EQUAL(p.out->ops->send(p.out, "x", 1, false), 1);
    CHECK_EQUAL(p.out->ops->send(p.out, data, 1, false), 0);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, RING / 4 - 1), RING / 4 - 1);
    CHECK_EQUAL(p.out->ops->send(p.out, data, 1, false), 0);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, 1), 1);
    CHECK_EQUAL(p.out->ops->send(p.out, data, 57, false), 57);
    CHECK_EQUAL(p.out->ops->send(p.out, data, 1, false), 0);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, sizeof data), RING / 4 * 3 + 124 + 57);
    CHECK_EQUAL(p.in->ops->recv(p.in, data, sizeof data), 0);
    close_pair(p);
}

/* The receiver tells of short pieces now and then only: the sender goes on nevertheless. */
static void many_short_pieces(void)
{
    struct pair p = open_shm();
    for (int i = 0; i < 1000; i++) {
        int got = -1;
        CHECK_EQUAL(p.out->ops->send(p.out, &i, sizeof i, false), sizeof i);
        CHECK_EQUAL(p.in->ops->recv(p.in, &got, sizeof got), sizeof got);
        CHECK_EQUAL(got, i);
    }
    close_pair(p);
}

int main(void)
{
    TEST(stream_over_one_connection);
    TEST(stream_over_five_connections);
    TEST(stream_over_ring);
    TEST(stream_under_signals);
    TEST(incomplete_moves_nothing);
    TEST(descriptor_tells_when);
    TEST(no_pacing_inside_a_host);
    TEST(more_does_not_wait_on_another_connection);
    TEST(stripes_go_where_there_is_room);
    TEST(forged_turn);
    TEST(peer_closes);
    TEST(peer_resets);
    TEST(bad_descriptor);
    TEST(forged_taken);
    TEST(forged_stamps);
    TEST(forged_end);
    TEST(own_counts_are_private);
    TEST(full_ring);
    TEST(many_short_pieces);
    return CHECK_RESULT();
}
