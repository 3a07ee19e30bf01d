/* A client's end of a connection to a store's server.
 *
 * On one host requests and answers go through two pipes, which the client hands over on its Unix socket: a request and its
 * answer take two thirds of the time, and posted ones a third, because a pipe merges short messages where a socket keeps a
 * buffer for each. What was posted is in the kernel, so it gets there although the client be killed.
 * The socket stays for both ends to hang up. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "store.h"

#define SMALL (16 << 10)  /* bytes taken from the server at once */
#define POLL_NS 20000     /* about what sleeping and being woken cost */
#define MOST_SKIPPED 256
#define KEPT (64 << 10)   /* bytes of a buffer that is kept */
#define WAIT_NS 200000000 /* at a time: a signal that comes just before we sleep does not end that, and who called looks for one */
#define LOOK_NS 1000000   /* between two looks at whether the server is there, while requests are posted */

struct store_line {
    int sock, to, from; /* the two are the socket, or pipes */
    int kept;           /* the reading end of `to`: a pipe without one raises SIGPIPE */
    int64_t looked;
    struct store_exchange exchange; /* the one under way, and buffers for the next */
};

struct store_line *store_line_new(int sock)
{
    struct store_line *l = malloc(sizeof *l);
    if (l)
        *l = (struct store_line){.sock = sock, .to = sock, .from = sock, .kept = -1};
    return l;
}

static void close_pipes(const int pipes[4])
{
    for (int i = 0; i < 4; i++)
        if (pipes[i] >= 0)
            close(pipes[i]);
}

void store_line_free(struct store_line *l)
{
    if (l->kept >= 0)
        close_pipes((const int[]){l->to, l->from, l->kept, -1});
    store_buffer_free(&l->exchange.request);
    store_buffer_free(&l->exchange.answer);
    free(l);
}

struct store_exchange *store_line_begin(struct store_line *l, bool posted, int64_t end)
{
    struct store_exchange *x = &l->exchange;
    x->posted = posted;
    x->end = end;
    x->sent = x->answer.size = 0;
    return x;
}

void store_line_end(struct store_line *l)
{
    struct store_buffer *both[] = {&l->exchange.request, &l->exchange.answer};
    for (int i = 0; i < 2; i++)
        if (both[i]->room > KEPT || both[i]->failed)
            store_buffer_free(both[i]);
}

/* ---- bytes; nothing here blocks but await ---- */

static ssize_t put_some(const struct store_line *l, const char *data, size_t size)
{
    return l->kept < 0 ? send(l->sock, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : write(l->to, data, size);
}

static ssize_t get_some(const struct store_line *l, char *data, size_t room)
{
    return l->kept < 0 ? recv(l->sock, data, room, MSG_DONTWAIT) : read(l->from, data, room);
}

/* Waits for something to read, or for room to write where `writes`. 0, EINTR (a signal, or time to look for one), ETIMEDOUT;
 * ECONNRESET when the connection is of no use for that: hung up, or, while we write, with something to read: the goodbye. */
static int store_line_await(const struct store_line *l, bool writes, int64_t end)
{
    struct pollfd files[] = {{.fd = l->from, .events = POLLIN}, {.fd = l->sock}, {.fd = writes ? l->to : -1, .events = POLLOUT}};
    int64_t left = end - clock_now();
    if (left <= 0)
        return ETIMEDOUT;
    bool last = left <= WAIT_NS;
    int64_t wait = last ? left : WAIT_NS;
    struct timespec patience = {wait / 1000000000, wait % 1000000000};
    int found = ppoll(files, writes ? 3 : 2, &patience, NULL);
    if (found <= 0)
        return found ? errno : last ? ETIMEDOUT : EINTR;
    if (writes)
        return files[0].revents || files[1].revents ? ECONNRESET : 0;
    return files[1].revents && !(files[0].revents & POLLIN) ? ECONNRESET : 0;
}

/* Whether there is neither a goodbye nor an end to be read. */
static bool quiet(const struct store_line *l)
{
    struct pollfd files[] = {{.fd = l->from, .events = POLLIN}, {.fd = l->sock}};
    return !poll(files, 2, 0);
}

/* ---- requests and answers; 0 or an errno ---- */

static int store_line_put(struct store_line *l)
{
    struct store_exchange *x = &l->exchange;
    while (x->sent < x->request.size) {
        ssize_t sent = put_some(l, x->request.data + x->sent, x->request.size - x->sent);
        if (sent < 0 && errno != EAGAIN)
            return errno;
        int failed = sent < 0 ? store_line_await(l, true, x->end) : 0;
        if (failed)
            return failed;
        x->sent += sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

/* Whether the whole answer is there: 0, EAGAIN when not, or another errno. */
static int whole(const struct store_exchange *x)
{
    int64_t size = store_frame_size(x->answer.data, x->answer.size);
    if (size < 0)
        return EPROTO;
    return size && (size_t)size <= x->answer.size ? 0 : EAGAIN; /* more of it: the goodbye follows */
}

/* Polling saves the wake-ups, which cost more than all the rest where the processor is virtual. It pays only while the
 * server runs beside us: after a poll in vain, that many requests go without. Of the process; races do no harm. */
static _Atomic int skip, next_skip = 1;

static ssize_t poll_answer(const struct store_line *l, char *data, size_t room)
{
    if (skip > 0) {
        skip--;
        errno = EAGAIN;
        return -1;
    }
    for (int64_t until = clock_now() + POLL_NS; clock_now() < until;) {
        ssize_t size = get_some(l, data, room);
        if (size >= 0 || errno != EAGAIN) {
            next_skip = 1;
            return size;
        }
    }
    skip = next_skip;
    next_skip = next_skip < MOST_SKIPPED ? 4 * next_skip : MOST_SKIPPED;
    errno = EAGAIN;
    return -1;
}

static int store_line_get(struct store_line *l)
{
    struct store_exchange *x = &l->exchange;
    char data[SMALL];
    ssize_t size = poll_answer(l, data, sizeof data);
    while (true) {
        if (!size)
            return ECONNRESET;
        if (size < 0 && errno != EAGAIN)
            return errno;
        if (size > 0 && !store_buffer_append(&x->answer, data, (size_t)size))
            return ENOMEM;
        int state = size > 0 ? whole(x) : EAGAIN;
        if (state != EAGAIN)
            return state;
        int failed = store_line_await(l, false, x->end);
        if (failed)
            return failed;
        size = get_some(l, data, sizeof data);
    }
}

/* A posted request would not notice that the server went: the end of the connection tells, or the goodbye that lies there. */
int store_line_exchange(struct store_line *l)
{
    struct store_exchange *x = &l->exchange;
    if (x->posted && !x->sent && !quiet(l))
        x->posted = false;
    int failed = store_line_put(l);
    if (failed == EPIPE || failed == ECONNRESET)
        return store_line_get(l) ? failed : 0;
    return failed || x->posted ? failed : store_line_get(l);
}

bool store_line_post(struct store_line *l, const char *data, size_t size)
{
    if (l->kept < 0)
        return false; /* a socket of TCP may take a part */
    int64_t time = clock_now();
    if (time - l->looked > LOOK_NS) {
        if (!quiet(l))
            return false;
        l->looked = time;
    }
    return write(l->to, data, size) == (ssize_t)size;
}

/* ---- pipes in place of the socket ---- */

static int hand_over(int sock, const int *pipes)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } part = {.head = {.cmsg_len = CMSG_LEN(2 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char frame[STORE_HEAD] = {STORE_HEAD - 4, 0, 0, 0, STORE_PIPES};
    struct iovec piece = {frame, sizeof frame};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &part, .msg_controllen = sizeof part};
    memcpy(CMSG_DATA(&part.head), pipes, 2 * sizeof(int));
    return sendmsg(sock, &message, MSG_NOSIGNAL) == sizeof frame ? 0 : errno;
}

int store_line_offer(struct store_line *l, int64_t end)
{
    int pipes[4] = {-1, -1, -1, -1}; /* what the server gets, then the ends that stay here */
    int requests[2], answers[2];
    if (pipe2(requests, O_CLOEXEC | O_NONBLOCK))
        return 0; /* the socket does as well */
    pipes[0] = requests[0], pipes[2] = requests[1];
    struct store_exchange *x = store_line_begin(l, false, end);
    int failed = 0;
    bool taken = false;
    if (!pipe2(answers, O_CLOEXEC | O_NONBLOCK)) {
        pipes[1] = answers[1], pipes[3] = answers[0];
        failed = hand_over(l->sock, pipes);
        while (!failed && (failed = store_line_get(l)) == EINTR)
            failed = 0;
        taken = !failed && x->answer.data[4] == STORE_OK;
    }
    store_line_end(l);
    if (taken) {
        l->to = pipes[2], l->from = pipes[3], l->kept = pipes[0];
        pipes[0] = pipes[2] = pipes[3] = -1;
    }
    close_pipes(pipes);
    return failed;
}
