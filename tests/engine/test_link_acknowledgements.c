/* engine: link/tcp.c */
/* What the kernel sends back over a connection that carries data one way. */
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "check.h"
#include "link/link.h"

enum { MESSAGES = 2000 };

static void connect_pair(struct link *out, struct link *in)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQUAL(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    CHECK_EQUAL(listen(listener, 1), 0);
    CHECK_EQUAL(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    CHECK_EQUAL(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    CHECK_EQUAL(out->ops->attach(out, 0, fd), 0);
    CHECK_EQUAL(in->ops->attach(in, 0, accept(listener, NULL, NULL)), 0);
    close(listener);
}

static void short_messages_share_acknowledgements(void)
{
    struct link *out = link_tcp_new(1, true, 1), *in = link_tcp_new(0, false, 1);
    connect_pair(out, in);
    struct pollfd readable = {.fd = in->ops->descriptor(in), .events = POLLIN};
    for (int i = 0, got = -1; i < MESSAGES; i++, got = -1) {
        CHECK_EQUAL(out->ops->send(out, &i, sizeof i, false), sizeof i);
        CHECK_EQUAL(poll(&readable, 1, -1), 1);
        CHECK_EQUAL(in->ops->recv(in, &got, sizeof got), sizeof got);
        CHECK_EQUAL(got, i);
    }
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    CHECK_EQUAL(getsockopt(out->ops->descriptor(out), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    CHECK(info.tcpi_segs_in < MESSAGES * 3 / 4); /* half of them where no message takes 40 ms */
    out->ops->close(out);
    in->ops->close(in);
}

int main(void)
{
    TEST(short_messages_share_acknowledgements);
    return CHECK_RESULT();
}
