/* engine: base/process.c */
/* The MPI backend's links, over a stand-in for MPI in this process: both ends are here, each with a fabric of its own. */
#include "fake_mpi.h"

struct pair { struct link *out, *in; };

static struct pair pair_open(uint64_t group)
{
    int fds[2];
    struct pair p = {link_mpi_new(&ends[0]->base, group, 1, 1, true), link_mpi_new(&ends[1]->base, group, 0, 0, false)};
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    CHECK_EQUAL(p.out->ops->send(p.out, "x", 1, false), 0); /* not before it is told */
    CHECK_EQUAL(p.in->ops->recv(p.in, (char[1]){0}, 1), 0);
    CHECK(!p.out->ops->complete(p.out) && p.out->connections == 1);
    CHECK_EQUAL(p.out->ops->attach(p.out, p.out->first + 1, fds[0]), ACOMM_ARGUMENT);
    CHECK_EQUAL(p.out->ops->attach(p.out, p.out->first, fds[0]), 0);
    CHECK_EQUAL(p.in->ops->attach(p.in, p.out->first, fds[1]), 0);
    CHECK(p.out->ops->complete(p.out) && p.in->ops->complete(p.in));
    return p;
}

static size_t pull(struct link *in, char *to, size_t bytes)
{
    ssize_t n = in->ops->recv(in, to, bytes);
    CHECK(n >= 0);
    return (size_t)n;
}

/* As many bytes as are sent come, whatever the pieces are on each side. */
static void stream(bool slow)
{
    enum { BYTES = 3 << 20 };
    static char sent[BYTES], got[BYTES];
    rendezvous = slow;
    open_ends();
    struct pair p = pair_open(7);
    size_t given = 0, taken = 0, piece = 1;
    for (int i = 0; i < BYTES; i++)
        sent[i] = (char)(i * 7 + i / 251);
    while (taken < BYTES) {
        piece = piece * 3 % 300007 + 1;
        size_t n = given + piece < BYTES ? piece : BYTES - given;
        given += (size_t)p.out->ops->send(p.out, sent + given, n, given + n < BYTES && piece % 2);
        taken += pull(p.in, got + taken, piece % 70001 < BYTES - taken ? piece % 70001 : BYTES - taken);
    }
    CHECK(!memcmp(sent, got, BYTES));
    CHECK_EQUAL(pull(p.in, got, 1), 0);
    p.out->ops->close(p.out);
    CHECK_EQUAL(p.in->ops->recv(p.in, got, 1), ACOMM_LOST);
    CHECK_EQUAL(p.in->ops->recv(p.in, got, 1), ACOMM_LOST);
    p.in->ops->close(p.in);
    close_ends();
    rendezvous = false;
}

static void test_stream(void)
{
    stream(false);
}

/* Sends that end when they are received. */
static void test_stream_rendezvous(void)
{
    stream(true);
}

/* Who does not receive is not sent to without limit. */
static void test_bound(void)
{
    open_ends();
    struct pair p = pair_open(7);
    p.in->ops->close(p.in);
    fabrics_look(); /* it still takes what comes, and drops it: so a receiver that never came at all */
    struct link *lone = link_mpi_new(&ends[0]->base, 8, 1, 1, true);
    CHECK(lone->first != p.out->first);
    CHECK_EQUAL(lone->ops->attach(lone, lone->first, dup(0)), 0);
    int sends = 0;
    while (lone->ops->send(lone, "12345678", 8, false) == 8)
        CHECK(++sends < 100);
    CHECK(sends >= SYNCHRONOUS - 1);
    struct link *late = link_mpi_new(&ends[1]->base, 8, 0, 0, false);
    CHECK_EQUAL(late->ops->attach(late, lone->first, dup(0)), 0);
    struct link *links[] = {p.out, lone, late};
    for (int i = 0; i < 3; i++)
        links[i]->ops->close(links[i]);
    fabrics_look();
    close_ends();
}

/* A receiver that closes first takes the rest, so that the sender's memory comes free. */
static void test_rest(void)
{
    static char data[2 * CHUNK];
    rendezvous = true;
    open_ends();
    struct pair p = pair_open(7);
    CHECK_EQUAL(p.out->ops->send(p.out, data, sizeof data, false), (ssize_t)sizeof data);
    CHECK_EQUAL(pull(p.in, data, 100), 100);
    p.in->ops->close(p.in);
    CHECK_EQUAL(fabrics_look(), LINK_DRAINS);
    CHECK_EQUAL(p.out->ops->send(p.out, data, 8, false), 8);
    p.out->ops->close(p.out);
    fabrics_look();
    fabrics_look();
    CHECK(!ends[0]->links && !ends[1]->links);
    close_ends();
    rendezvous = false;
}

/* Tags come round: those of open links are left out, and what an earlier link of a tag has left is dropped. */
static void test_tags(void)
{
    char got[4] = "";
    open_ends();
    struct pair p = pair_open(7);
    ends[0]->tags[1] = LINK_TAGS - 1;
    struct link *last = link_mpi_new(&ends[0]->base, 8, 1, 1, true), *next = link_mpi_new(&ends[0]->base, 9, 1, 1, true);
    CHECK_EQUAL(last->first, LINK_TAGS);
    CHECK_EQUAL(next->first, p.out->first + 1);
    struct { uint64_t group, bytes; char data[3]; } old = {6, 3, "old"};
    uint64_t request;
    CHECK_EQUAL(fake_isend(&old, sizeof old, 0, 1, p.out->first, 0, &request), 0);
    CHECK_EQUAL(p.out->ops->send(p.out, "new", 3, false), 3);
    CHECK_EQUAL(pull(p.in, got, 3), 3);
    CHECK(!strcmp(got, "new"));
    struct link *links[] = {last, next, p.out, p.in};
    for (int i = 0; i < 4; i++)
        links[i]->ops->close(links[i]);
    close_ends();
}

/* An error is the next call's, though the fabric's thread has met it. */
static void test_errors(void)
{
    open_ends();
    struct pair p = pair_open(7);
    failing = 1;
    CHECK_EQUAL(p.out->ops->send(p.out, "x", 1, false), ACOMM_LIBRARY);
    CHECK(!strcmp(p.out->why, "error 16"));
    CHECK_EQUAL(p.out->ops->send(p.out, "x", 1, false), ACOMM_LIBRARY);
    CHECK_EQUAL(link_culprit(p.out, ACOMM_LIBRARY), -1);
    p.out->ops->close(p.out);
    p.in->ops->close(p.in);
    close_ends();
}

/* After the end of MPI every link, old or new, says that it is closed. */
static void test_end(void)
{
    open_ends();
    struct pair p = pair_open(7);
    fabrics_let_go();
    struct link *late = link_mpi_new(&ends[0]->base, 8, 1, 1, true);
    CHECK_EQUAL(late->connections, 0);
    CHECK_EQUAL(late->ops->send(late, "x", 1, false), ACOMM_CLOSED);
    CHECK_EQUAL(p.out->ops->send(p.out, "x", 1, false), ACOMM_CLOSED);
    CHECK_EQUAL(p.in->ops->recv(p.in, (char[1]){0}, 1), ACOMM_CLOSED);
    for (struct request *r = requests; r < requests + REQUESTS; r++)
        CHECK(!r->used || r->cancelled);
    late->ops->close(late);
}

int main(void)
{
    TEST(test_stream);
    TEST(test_stream_rendezvous);
    TEST(test_bound);
    TEST(test_rest);
    TEST(test_tags);
    TEST(test_errors);
    TEST(test_end);
    forget();
    return CHECK_RESULT();
}
