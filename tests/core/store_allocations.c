/* A store's server and its clients, again and again: with each allocation of the server's that fails once, no key is lost and no
 * answer wrong. Who cannot be answered is told that there is no memory, or is disconnected. Compiled by test_store_allocations.py with
 * allocations.h before everything, and with store_given_back.c. */
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include "store/store.h"

#define PATIENCE 30000 /* ms; then it hangs */
#define ROOM (4u << 20)
#define GONE (-1)      /* instead of a code: it was disconnected */
#define LONG (600u << 10)

static char request[ROOM], answer[ROOM], text[LONG + 1];
static struct store_server *server;
static long failing;
static int wrong, complaints[2];

int given_back(void); /* store_given_back.c: how many things are wrong */

static void check(bool good, const char *what)
{
    if (!good && ++wrong < 20)
        printf("allocation %ld: %s\n", failing, what);
}

static bool has_failed(void)
{
    return failing && !atomic_load(&allocations_left);
}

/* Our end of a new client's connection. A first try may be what fails. */
static int client(bool torch)
{
    int ends[2];
    for (int try = 0; try < 2; try++) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
            continue;
        if (!store_server_admit(server, ends[1], torch ? complaints[1] : STORE_MEMBER))
            return ends[0];
        check(errno == ENOMEM, "a client was refused for another reason");
        close(ends[0]);
        close(ends[1]);
    }
    check(false, "no client was admitted");
    return -1;
}

static void put(int fd, const char *data, size_t size)
{
    for (ssize_t n; size; data += n, size -= (size_t)n)
        if ((n = send(fd, data, size, MSG_NOSIGNAL)) <= 0)
            return; /* it was disconnected: the answer tells */
}

/* All of `size`; false at the end of the connection. */
static bool get(int fd, char *to, size_t size)
{
    while (size) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        int there = poll(&one, 1, PATIENCE);
        check(there > 0, "it hangs");
        ssize_t n = there > 0 ? recv(fd, to, size, 0) : 0;
        if (n <= 0)
            return false;
        to += n;
        size -= (size_t)n;
    }
    return true;
}

/* A request of strings, up to NULL, and of `more` bytes of text behind the last. `times`: where it says how often, else -1. */
static void ask_long(int fd, int op, int64_t times, size_t more, ...)
{
    char *at = request;
    va_list list;
    *at++ = (char)op;
    if (times >= 0)
        memcpy(at, &times, sizeof times), at += sizeof times;
    va_start(list, more);
    for (const char *string = va_arg(list, const char *), *next; string; string = next) {
        next = va_arg(list, const char *);
        uint64_t size = strlen(string), all = size + (next ? 0 : more);
        memcpy(at, &all, sizeof all);
        memcpy(at + sizeof all, string, size);
        memcpy(at + sizeof all + size, text, all - size);
        at += sizeof all + all;
    }
    va_end(list);
    put(fd, request, (size_t)(at - request));
}
#define ask(fd, op, times, ...) ask_long(fd, op, times, 0, __VA_ARGS__, (const char *)NULL)

static void ask_sum(int fd, const char *key, int64_t amount)
{
    uint64_t size = strlen(key);
    request[0] = STORE_ADD;
    memcpy(request + 1, &size, sizeof size);
    memcpy(request + 9, key, size);
    memcpy(request + 9 + size, &amount, sizeof amount);
    put(fd, request, 17 + size);
}

static bool get_number(int fd, int64_t *number)
{
    return get(fd, (char *)number, sizeof *number);
}

/* A value, as text. */
static bool get_bytes(int fd)
{
    int64_t size;
    if (!get_number(fd, &size) || size < 0 || size >= ROOM || !get(fd, answer, (size_t)size))
        return false;
    answer[size] = 0;
    return true;
}

/* What stands behind the status. */
static bool get_rest(int fd, int op)
{
    int64_t count = op == STORE_AWAIT_VALUES || op == STORE_COMPARE_SET;
    if (op == STORE_CHECK)
        return get(fd, answer, 1) && (answer[0] = answer[0] ? '0' : '1', answer[1] = 0, true);
    if (op == STORE_ADD || op == STORE_DELETE || op == STORE_QUEUE_LEN)
        return get_number(fd, &count) && snprintf(answer, ROOM, "%lld", (long long)count);
    if ((op == STORE_POP || op == STORE_LIST_KEYS) && !get_number(fd, &count))
        return false;
    for (answer[0] = 0; count; count--)
        if (!get_bytes(fd))
            return false;
    return true;
}

/* The status of a request's answer; `first` is the value, or the number as text. */
static int told(int fd, int op, const char **first)
{
    char code;
    *first = answer;
    answer[0] = 0;
    if (fd < 0 || !get(fd, &code, 1))
        return GONE;
    if (code == STORE_OK)
        return get_rest(fd, op) ? STORE_OK : GONE;
    bool memory = code == STORE_OVER_QUOTA && get_bytes(fd) && strstr(answer, "memory");
    check(memory, "an answer that nobody expects");
    check(has_failed(), "there is no memory, and nothing has failed");
    return code;
}

/* After it was disconnected, which only want of memory does, another one takes its place. */
static void stay(int *fd, int code)
{
    if (code != GONE)
        return;
    check(has_failed(), "it was disconnected, and nothing has failed");
    close(*fd);
    *fd = client(false);
}

/* Asks, and again where there was no memory; if it was disconnected, what it asked for may have been done: `twice` does no harm.
 * The answer. */
#define DO(fd, want, op, ...)                                                   \
    do {                                                                        \
        const char *first;                                                      \
        int code;                                                               \
        ask(*(fd), op, __VA_ARGS__);                                            \
        code = told(*(fd), op, &first);                                         \
        stay(fd, code);                                                         \
        if (code != STORE_OK) {                                                 \
            ask(*(fd), op, __VA_ARGS__);                                        \
            code = told(*(fd), op, &first);                                     \
        }                                                                       \
        check(code == STORE_OK, "it fails twice: " #__VA_ARGS__);               \
        check(!(want) || !strcmp(first, (want) ? (want) : ""), "another answer: " #__VA_ARGS__); \
    } while (0)

/* Whole or not at all: keys whose values a failed request did not write are as before. */
static void many(int *fd)
{
    const char *first;
    ask(*fd, STORE_MULTI_SET, 4, "m1", "a", "m2", "b", "m3", "c", "m1", "d");
    int code = told(*fd, STORE_MULTI_SET, &first);
    stay(fd, code);
    ask(*fd, STORE_CHECK, 1, "m1");
    bool there = told(*fd, STORE_CHECK, &first) == STORE_OK && !strcmp(first, "1");
    ask(*fd, STORE_CHECK, 3, "m1", "m2", "m3");
    bool all = told(*fd, STORE_CHECK, &first) == STORE_OK && !strcmp(first, "1");
    check(there == all, "a part of a request was carried out");
    check(code == GONE || all == (code == STORE_OK), "the answer says otherwise");
    DO(fd, NULL, STORE_MULTI_SET, 3, "m1", "a", "m2", "b", "m3", "c");
}

static void counts(int *fd)
{
    const char *first;
    int sum = 0;
    for (int i = 0; i < 3; i++) {
        ask_sum(*fd, "sum", 5);
        int code = told(*fd, STORE_ADD, &first);
        bool lost = code == GONE;
        sum += code == STORE_OK ? 5 : 0;
        stay(fd, code);
        ask_sum(*fd, "sum", 0);
        code = told(*fd, STORE_ADD, &first);
        stay(fd, code);
        if (lost && code == STORE_OK)
            sum = atoi(first) == sum + 5 ? sum + 5 : sum;
        check(code != STORE_OK || atoi(first) == sum, "a sum that was not told");
    }
}

/* A queue's items come once, in their order. */
static void queue(int *fd)
{
    const char *first;
    ask(*fd, STORE_PUSH, -1, "q", "one");
    int code = told(*fd, STORE_PUSH, &first);
    stay(fd, code);
    ask(*fd, STORE_QUEUE_LEN, -1, "q");
    int again = told(*fd, STORE_QUEUE_LEN, &first);
    stay(fd, again);
    bool pushed = again == STORE_OK ? !strcmp(first, "1") : code == STORE_OK;
    check(code != STORE_OVER_QUOTA || !pushed, "what could not be pushed is there");
    check(code != STORE_OK || pushed, "what was pushed is lost");
    if (!pushed)
        return;
    ask(*fd, STORE_POP, -1, "q");
    code = told(*fd, STORE_POP, &first);
    check(code != STORE_OK || !strcmp(first, "one"), "another item");
    stay(fd, code);
    if (code == STORE_OVER_QUOTA)
        DO(fd, "one", STORE_POP, -1, "q");
}

/* Who waits is answered once the key is there, or is disconnected. */
static void waits(int *fd, int *other)
{
    const char *first;
    ask(*other, STORE_WAIT, 1, "awaited");
    DO(fd, NULL, STORE_SET, -1, "awaited", "");
    int code = told(*other, STORE_WAIT, &first);
    check(code == STORE_OK || has_failed(), "who waited was not told");
    stay(other, code);
    ask(*other, STORE_WAIT, 1, "items");
    DO(fd, NULL, STORE_PUSH, -1, "items", "item");
    code = told(*other, STORE_WAIT, &first);
    check(code == STORE_OK || has_failed(), "who waited for an item was not told");
    stay(other, code);
}

/* What a client leaves is written, and who waits for it is told; the last will that it was told of counts, or the one before. */
static void wills(int *fd)
{
    const char *first;
    int dying = client(false), code, last;
    ask(dying, STORE_WILL, 2, "will", "", "left", "old");
    code = told(dying, STORE_WILL, &first);
    if (code == STORE_OVER_QUOTA) {
        ask(dying, STORE_WILL, 2, "will", "", "left", "old");
        code = told(dying, STORE_WILL, &first);
    }
    if (code == GONE) { /* what it has asked for may be done, or not */
        close(dying);
        return;
    }
    ask(dying, STORE_WILL, 3, "will", "", "left", "new", "more", "much");
    last = told(dying, STORE_WILL, &first);
    close(dying);
    DO(fd, NULL, STORE_WAIT, 1, "left");
    ask(*fd, STORE_AWAIT_VALUES, 1, "left");
    code = told(*fd, STORE_AWAIT_VALUES, &first);
    stay(fd, code);
    if (code != STORE_OK)
        return;
    check(last == GONE || !strcmp(first, last == STORE_OK ? "new" : "old"), "another will");
    if (!strcmp(first, "new"))
        DO(fd, "much", STORE_AWAIT_VALUES, 1, "more");
}

static void long_values(int *fd)
{
    for (int i = 0; i < 2; i++) {
        const char *first;
        ask_long(*fd, STORE_SET, -1, LONG, "long", "", (const char *)NULL);
        int code = told(*fd, STORE_SET, &first);
        stay(fd, code);
        if (code != STORE_OK)
            continue;
        ask(*fd, STORE_AWAIT_VALUES, 1, "long");
        code = told(*fd, STORE_AWAIT_VALUES, &first);
        stay(fd, code);
        check(code != STORE_OK || strlen(first) == LONG, "a long value is cut");
    }
}

/* ---- of torch's kind ---- */

static bool value(int fd, const char *want)
{
    bool there = get_bytes(fd);
    check(!there || !strcmp(answer, want), "another value for torch");
    return there;
}

static void torch(void)
{
    static const char greeting[5] = {0, (char)0xce, (char)0xf7, (char)0x85, 0x3c};
    int fd = client(true);
    char byte = 0, ping[5] = {13, 1, 2, 3, 4};
    put(fd, greeting, sizeof greeting);
    put(fd, ping, sizeof ping);
    bool there = get(fd, answer, 4);
    ask(fd, STORE_SET, -1, "/t1", "one");
    ask(fd, STORE_SET, -1, "/t2", "two");
    ask(fd, STORE_GET, -1, "/t1");
    there = there && value(fd, "one");
    ask(fd, STORE_MULTI_GET, 2, "/t1", "/t2");
    there = there && value(fd, "one") && value(fd, "two");
    ask(fd, STORE_WAIT, 1, "/t2");
    there = there && get(fd, &byte, 1) && !byte;
    ask(fd, STORE_WAIT, 1, "/missing");
    put(fd, "\14", 1); /* gives that up */
    there = there && get(fd, &byte, 1);
    check(!there || byte == 1, "another answer to who gives up");
    check(there || has_failed(), "it was disconnected, and nothing has failed");
    close(fd);
}

/* ---- */

static void all_is_there(int *fd)
{
    DO(fd, "a", STORE_AWAIT_VALUES, 1, "m1");
    DO(fd, "c", STORE_AWAIT_VALUES, 1, "m3");
    DO(fd, "1", STORE_CHECK, 4, "k0", "k20", "k69", "awaited");
    DO(fd, "firstmore", STORE_AWAIT_VALUES, 1, "whole");
}

static void many_keys(int *fd)
{
    char key[16];
    for (int i = 0; i < 70; i++) { /* the table grows */
        snprintf(key, sizeof key, "k%d", i);
        DO(fd, NULL, STORE_SET, -1, key, "value");
    }
    const char *first;
    ask_long(*fd, STORE_LIST_KEYS, -1, 0, (const char *)NULL, (const char *)NULL);
    stay(fd, told(*fd, STORE_LIST_KEYS, &first));
}

static void appended(int *fd)
{
    const char *first;
    DO(fd, "first", STORE_COMPARE_SET, -1, "whole", "", "first");
    DO(fd, "first", STORE_COMPARE_SET, -1, "whole", "other", "third");
    ask(*fd, STORE_APPEND, -1, "whole", "more");
    int code = told(*fd, STORE_APPEND, &first);
    stay(fd, code);
    if (code == STORE_OVER_QUOTA)
        DO(fd, NULL, STORE_APPEND, -1, "whole", "more");
    if (code == GONE)
        DO(fd, NULL, STORE_SET, -1, "whole", "firstmore");
    DO(fd, NULL, STORE_DELETE, -1, "nothing");
}

/* Whether so many allocations were made. */
static bool with_failing(long number)
{
    failing = number;
    atomic_store(&allocations_left, number);
    server = store_server_new();
    if (!server) {
        check(errno == ENOMEM, "no server, for another reason");
        return true;
    }
    int fd = client(false), other = client(false);
    many(&fd);
    counts(&fd);
    appended(&fd);
    queue(&fd);
    many_keys(&fd);
    waits(&fd, &other);
    wills(&fd);
    long_values(&fd);
    torch();
    bool failed = has_failed();
    atomic_store(&allocations_left, 0);
    all_is_there(&fd);
    close(fd);
    close(other);
    store_server_end(server, 0);
    return failed;
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    memset(text, 'x', LONG);
    if (pipe(complaints))
        return 1;
    long number = 1;
    alarm(110);
    wrong = given_back();
    check(!with_failing(0), "something has failed where nothing was to");
    while (with_failing(number) && wrong < 20) {
        char lines[4096];
        struct pollfd some = {.fd = complaints[0], .events = POLLIN};
        while (poll(&some, 1, 0) > 0 && read(complaints[0], lines, sizeof lines) > 0)
            ;
        number++;
    }
    printf("%ld allocations failed, %d answers were wrong\n", number - 1, wrong);
    return wrong || number < 40;
}
