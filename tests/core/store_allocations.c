/* A store's server and its clients, again and again: with each allocation of the server's that fails once, no key is lost and no answer
 * wrong. Who cannot be answered is told that there is no memory, or is disconnected. Compiled by test_store_allocations.py with
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
        struct store_torch *translator = torch ? store_torch_new(2, complaints[1]) : NULL;
        if ((torch && !translator) || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
            continue;
        if (!store_server_admit(server, ends[1], translator))
            return ends[0];
        check(errno == ENOMEM, "a client was refused for another reason");
        store_torch_free(translator);
        close(ends[0]);
        close(ends[1]);
    }
    check(false, "no client was admitted");
    return -1;
}

static void put32(char *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static uint32_t get32(const char *at) { uint32_t value; memcpy(&value, at, sizeof value); return value; }

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

/* A request of strings, up to NULL, and of `more` bytes of text behind the last. */
static void ask_long(int fd, int op, uint32_t ms, uint32_t more, ...)
{
    const char *strings[160];
    uint32_t count = 0, size = STORE_HEAD;
    va_list list;
    va_start(list, more);
    while ((strings[count] = va_arg(list, const char *)))
        count++;
    va_end(list);
    request[4] = (char)op;
    put32(request + 5, ms);
    put32(request + 9, count);
    size += 4 * count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = (uint32_t)strlen(strings[i]);
        memcpy(request + size, strings[i], length);
        size += length;
        if (i == count - 1) {
            memcpy(request + size, text, more);
            size += more;
            length += more;
        }
        put32(request + STORE_HEAD + 4 * i, length);
    }
    put32(request, size - 4);
    put(fd, request, size);
}
#define ask(fd, op, ms, ...) ask_long(fd, op, ms, 0, __VA_ARGS__, (const char *)NULL)

/* The code; `first` is the first string. */
static int told(int fd, const char **first)
{
    *first = "";
    if (fd < 0 || !get(fd, answer, STORE_HEAD))
        return GONE;
    uint32_t rest = get32(answer) + 4 - STORE_HEAD;
    if (!get(fd, answer + STORE_HEAD, rest))
        return GONE;
    answer[STORE_HEAD + rest] = 0;
    uint32_t count = get32(answer + 9);
    if (count == 1)
        *first = answer + STORE_HEAD + 4;
    int code = answer[4];
    bool memory = code == STORE_OVER_QUOTA && strstr(answer + STORE_HEAD + 4 * count, "memory");
    check(code != STORE_OVER_QUOTA || memory, "an error that says nothing of memory");
    check(code == STORE_OK || memory || code == STORE_TIMED_OUT, "an answer that nobody expects");
    check(!memory || has_failed(), "there is no memory, and nothing has failed");
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

/* Asks, and again where there was no memory; if it was disconnected, what it asked for may have been done: `twice` does no harm. The
 * answer. */
#define DO(fd, want, ...)                                                       \
    do {                                                                        \
        const char *first;                                                      \
        int code;                                                               \
        ask(*(fd), __VA_ARGS__);                                                \
        code = told(*(fd), &first);                                             \
        stay(fd, code);                                                         \
        if (code != STORE_OK) {                                                 \
            ask(*(fd), __VA_ARGS__);                                            \
            code = told(*(fd), &first);                                         \
        }                                                                       \
        check(code == STORE_OK, "it fails twice: " #__VA_ARGS__);               \
        check(!(want) || !strcmp(first, (want) ? (want) : ""), "another answer: " #__VA_ARGS__); \
    } while (0)

/* Whole or not at all: keys whose values a failed request did not write are as before. */
static void many(int *fd)
{
    const char *first;
    ask(*fd, STORE_SET, 0, "m1", "a", "m2", "b", "m3", "c", "m1", "d");
    int code = told(*fd, &first);
    stay(fd, code);
    ask(*fd, STORE_CHECK, 0, "m1");
    bool there = told(*fd, &first) == STORE_OK && !strcmp(first, "1");
    ask(*fd, STORE_CHECK, 0, "m1", "m2", "m3");
    bool all = told(*fd, &first) == STORE_OK && !strcmp(first, "1");
    check(there == all, "a part of a request was carried out");
    check(code == GONE || all == (code == STORE_OK), "the answer says otherwise");
    DO(fd, NULL, STORE_SET, 0, "m1", "a", "m2", "b", "m3", "c");
}

static void counts(int *fd)
{
    const char *first;
    int sum = 0;
    for (int i = 0; i < 3; i++) {
        ask(*fd, STORE_ADD, 0, "sum", "5");
        int code = told(*fd, &first);
        bool lost = code == GONE;
        sum += code == STORE_OK ? 5 : 0;
        stay(fd, code);
        ask(*fd, STORE_ADD, 0, "sum", "0");
        code = told(*fd, &first);
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
    ask(*fd, STORE_PUSH, 0, "q", "one");
    int code = told(*fd, &first);
    stay(fd, code);
    ask(*fd, STORE_QUEUE_LEN, 0, "q");
    int again = told(*fd, &first);
    stay(fd, again);
    bool pushed = again == STORE_OK ? !strcmp(first, "1") : code == STORE_OK;
    check(code != STORE_OVER_QUOTA || !pushed, "what could not be pushed is there");
    check(code != STORE_OK || pushed, "what was pushed is lost");
    if (!pushed)
        return;
    ask(*fd, STORE_POP, 0, "q");
    code = told(*fd, &first);
    check(code != STORE_OK || !strcmp(first, "one"), "another item");
    stay(fd, code);
    if (code == STORE_OVER_QUOTA)
        DO(fd, "one", STORE_POP, 0, "q");
}

/* Who waits is answered once the key is there, or is disconnected. */
static void waits(int *fd, int *other)
{
    const char *first;
    ask(*other, STORE_WAIT, PATIENCE, "awaited");
    DO(fd, NULL, STORE_SET, 0, "awaited", "");
    int code = told(*other, &first);
    check(code == STORE_OK || has_failed(), "who waited was not told");
    stay(other, code);
    ask(*other, STORE_POP, PATIENCE, "items");
    DO(fd, NULL, STORE_PUSH, 0, "items", "item");
    code = told(*other, &first);
    check(code != STORE_OK || !strcmp(first, "item"), "another item");
    stay(other, code);
}

/* A posted request's failure comes with the next answer. */
static void posted(int *fd)
{
    const char *first;
    ask(*fd, STORE_SET | STORE_POSTED, 0, "posted", "1");
    ask(*fd, STORE_CHECK, 0, "posted");
    int code = told(*fd, &first);
    stay(fd, code);
    check(code != STORE_OK || !strcmp(first, "1"), "what was posted is lost without a word");
}

/* What a client leaves is written, and who waits for it is told; the last will that it was told of counts, or the one before. */
static void wills(int *fd)
{
    const char *first;
    int dying = client(false), code, last;
    ask(dying, STORE_WILL, 0, "will", "left", "old");
    code = told(dying, &first);
    if (code == STORE_OVER_QUOTA) {
        ask(dying, STORE_WILL, 0, "will", "left", "old");
        code = told(dying, &first);
    }
    if (code == GONE) { /* what it has asked for may be done, or not */
        close(dying);
        return;
    }
    ask(dying, STORE_WILL, 0, "will", "left", "new", "more", "much");
    last = told(dying, &first);
    close(dying);
    DO(fd, NULL, STORE_WAIT, PATIENCE, "left");
    ask(*fd, STORE_GET, 0, "left");
    code = told(*fd, &first);
    stay(fd, code);
    if (code != STORE_OK)
        return;
    check(last == GONE || !strcmp(first, last == STORE_OK ? "new" : "old"), "another will");
    if (!strcmp(first, "new"))
        DO(fd, "much", STORE_GET, PATIENCE, "more");
}

static void long_values(int *fd)
{
    for (int i = 0; i < 2; i++) {
        const char *first;
        ask_long(*fd, STORE_SET, 0, LONG, "long", "", (const char *)NULL);
        int code = told(*fd, &first);
        stay(fd, code);
        if (code != STORE_OK)
            continue;
        ask(*fd, STORE_GET, 0, "long");
        code = told(*fd, &first);
        stay(fd, code);
        check(code != STORE_OK || strlen(first) == LONG, "a long value is cut");
    }
}

/* ---- of torch's kind ---- */

static size_t put_bytes(char *at, const char *bytes)
{
    uint64_t size = strlen(bytes);
    memcpy(at, &size, sizeof size);
    memcpy(at + sizeof size, bytes, size);
    return sizeof size + size;
}

/* A request of strings; `times` where it says how often, else 0. */
static void ask_torch(int fd, int code, int64_t times, ...)
{
    char *at = request;
    va_list list;
    *at++ = (char)code;
    if (times)
        memcpy(at, &times, sizeof times), at += sizeof times;
    va_start(list, times);
    for (const char *string; (string = va_arg(list, const char *));)
        at += put_bytes(at, string);
    va_end(list);
    put(fd, request, (size_t)(at - request));
}

static bool value(int fd, const char *want)
{
    uint64_t size;
    if (!get(fd, (char *)&size, sizeof size) || size >= ROOM || !get(fd, answer, size))
        return false;
    answer[size] = 0;
    check(!strcmp(answer, want), "another value for torch");
    return true;
}

static void torch(void)
{
    static const char greeting[5] = {0, (char)0xce, (char)0xf7, (char)0x85, 0x3c};
    int fd = client(true);
    char byte = 0, ping[5] = {13, 1, 2, 3, 4};
    put(fd, greeting, sizeof greeting);
    put(fd, ping, sizeof ping);
    bool there = get(fd, answer, 4);
    ask_torch(fd, 1, 0, "/t1", "one", NULL);
    ask_torch(fd, 1, 0, "/t2", "two", NULL);
    ask_torch(fd, 3, 0, "/t1", NULL);
    there = there && value(fd, "one");
    ask_torch(fd, 10, 2, "/t1", "/t2", NULL);
    there = there && value(fd, "one") && value(fd, "two");
    ask_torch(fd, 6, 1, "/t2", NULL);
    there = there && get(fd, &byte, 1) && !byte;
    ask_torch(fd, 6, 1, "/missing", NULL);
    put(fd, "\14", 1); /* gives that up */
    there = there && get(fd, &byte, 1);
    check(!there || byte == 1, "another answer to who gives up");
    check(there || has_failed(), "it was disconnected, and nothing has failed");
    close(fd);
}

/* ---- */

static void all_is_there(int *fd)
{
    DO(fd, "a", STORE_GET, 0, "m1");
    DO(fd, "c", STORE_GET, 0, "m3");
    DO(fd, "1", STORE_CHECK, 0, "k0", "k20", "k69", "awaited");
    DO(fd, "firstmore", STORE_GET, 0, "whole");
}

static void many_keys(int *fd)
{
    char key[16];
    for (int i = 0; i < 70; i++) { /* the table grows */
        snprintf(key, sizeof key, "k%d", i);
        DO(fd, NULL, STORE_SET, 0, key, "value");
    }
    const char *first;
    ask(*fd, STORE_LIST_KEYS, 0, (const char *)NULL);
    stay(fd, told(*fd, &first));
}

static void appended(int *fd)
{
    const char *first;
    DO(fd, "first", STORE_COMPARE_SET, 0, "whole", "", "first");
    DO(fd, "first", STORE_COMPARE_SET, 0, "whole", "other", "third");
    ask(*fd, STORE_APPEND, 0, "whole", "more");
    int code = told(*fd, &first);
    stay(fd, code);
    if (code == STORE_OVER_QUOTA)
        DO(fd, NULL, STORE_APPEND, 0, "whole", "more");
    if (code == GONE)
        DO(fd, NULL, STORE_SET, 0, "whole", "firstmore");
    DO(fd, NULL, STORE_DELETE, 0, "nothing");
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
    posted(&fd);
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
