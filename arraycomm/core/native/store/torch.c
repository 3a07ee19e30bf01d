/* See store/store.h. Each request is a row of one table: what it holds, what it is on our table, and how that is answered. */
#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "store.h"

#define MOST_KEYS (1 << 20) /* of one request */
#define FOREVER UINT32_MAX  /* ms; the client itself gives up */
#define OWN_KEYS 1          /* that torch's num_keys counts */

static const char greeting[5] = {0, (char)0xce, (char)0xf7, (char)0x85, 0x3c};
static const struct store_bytes counter = {"init/", 5};       /* torch's, of workers; the users' keys start with a slash */
static const struct store_bytes workers = {"\0workers", 8};   /* as tcp.py */
static const struct store_bytes complete = {"\0complete", 9}; /* as tcp.py */
static const struct store_bytes others = {"\0torch/", 7};
static const struct store_bytes nothing = {"", 0};
static const struct store_bytes barriers = {"\0barrier/", 9}; /* as request.py */

enum { ADD = 4, WAIT = 6, MULTI_GET = 10, CANCEL_WAIT = 12, PING = 13, BARRIER = 18 };
enum answer { SILENT, VALUES, NUMBER, COUNT_KEYS, THERE, CAME, MAYBE, NAMES };
static const struct {
    const char *holds; /* k: key, v: value, n: number. NULL: not known */
    uint8_t op;
    bool many;         /* a number says how often */
    enum answer answer;
} rows[] = {
    [1] = {"kv", STORE_SET, false, SILENT},
    [2] = {"kvv", STORE_COMPARE_SET, false, VALUES},
    [3] = {"k", STORE_GET, false, VALUES},
    [ADD] = {"kn", STORE_ADD, false, NUMBER},
    [5] = {"k", STORE_CHECK, true, THERE},
    [WAIT] = {"k", STORE_WAIT, true, CAME},
    [7] = {"", STORE_NUM_KEYS, false, COUNT_KEYS},
    [8] = {"k", STORE_DELETE, false, NUMBER},
    [9] = {"kv", STORE_APPEND, false, SILENT},
    [MULTI_GET] = {"k", STORE_WAIT, true, VALUES}, /* and then a get of each, see store_torch_next */
    [11] = {"kv", STORE_SET, true, SILENT},
    [14] = {"kv", STORE_PUSH, false, SILENT},
    [15] = {"k", STORE_POP, false, MAYBE},
    [16] = {"k", STORE_QUEUE_LEN, false, NUMBER},
    [17] = {"", STORE_LIST_KEYS, false, NAMES},
    [BARRIER] = {"kn", STORE_ADD, false, CAME}, /* and then a wait, see store_torch_next */
};

struct store_torch *store_torch_new(int64_t world_size, int complaints)
{
    struct store_torch *t = calloc(1, sizeof *t);
    if (t)
        *t = (struct store_torch){.world_size = world_size, .next = STORE_OPS, .complaints = complaints};
    return t;
}

void store_torch_free(struct store_torch *t)
{
    if (t) {
        store_buffer_free(&t->frame);
        store_buffer_free(&t->list);
    }
    free(t);
}

/* One that nobody reads is lost: the pipe does not block. */
void store_torch_complain(const struct store_torch *t, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text - 1, format, arguments);
    va_end(arguments);
    size = size < (int)sizeof text - 1 ? size : (int)sizeof text - 2;
    for (char *at = text; (at = memchr(at, '\n', (size_t)(text + size - at)));)
        *at = ' '; /* a key may hold any bytes, and a line is one complaint */
    text[size] = '\n';
    ssize_t written = write(t->complaints, text, (size_t)size + 1);
    (void)written;
}

/* ---- what comes ---- */

struct reader {
    const char *at, *end;
    bool wrong;
    const struct store_torch *t;
};

static bool take_number(struct reader *r, int64_t *out)
{
    if (r->end - r->at < 8)
        return false;
    uint64_t bits;
    memcpy(&bits, r->at, sizeof bits);
    *out = (int64_t)le64toh(bits);
    r->at += 8;
    return true;
}

static bool take_bytes(struct reader *r, int64_t most, struct store_bytes *out)
{
    int64_t size;
    if (!take_number(r, &size))
        return false;
    if (size < 0 || size > most) {
        r->wrong = true;
        store_torch_complain(r->t, "a key or value of %" PRId64 " bytes; up to %" PRId64 " are allowed", size, most);
        return false;
    }
    if (r->end - r->at < size)
        return false;
    *out = (struct store_bytes){r->at, (uint32_t)size};
    r->at += size;
    return true;
}

static void put_pair(struct store_buffer *frame, uint32_t index, struct store_bytes start, struct store_bytes rest)
{
    store_frame_put(frame, index, start.data, start.size);
    if (!frame->failed && store_buffer_append(frame, rest.data, rest.size)) {
        uint32_t size = htole32(start.size + rest.size);
        memcpy(frame->data + STORE_HEAD + 4 * (size_t)index, &size, sizeof size);
    }
}

static void put_key(struct store_buffer *frame, uint32_t index, struct store_bytes key)
{
    if (key.size && key.data[0] == '/')
        store_frame_put(frame, index, key.data + 1, key.size - 1);
    else if (key.size == counter.size && !memcmp(key.data, counter.data, key.size))
        store_frame_put(frame, index, workers.data, workers.size);
    else
        put_pair(frame, index, others, key);
}

static void store_torch_put_number(struct store_torch *t, uint32_t index, int64_t number)
{
    char text[24];
    if (t->request == BARRIER) {
        t->barrier = number;
        number = 1;
    }
    store_frame_put(&t->frame, index, text, (size_t)snprintf(text, sizeof text, "%" PRId64, number));
}

/* The next field of a request, into the frame where `put` says so. False when it is not whole, or wrong. */
static bool take_field(struct store_torch *t, struct reader *r, int64_t field, bool put)
{
    const char *holds = rows[t->request].holds;
    char what = holds[field % (int64_t)strlen(holds)];
    struct store_bytes bytes = nothing;
    int64_t number = 0;
    if (what == 'n' ? !take_number(r, &number) : !take_bytes(r, what == 'k' ? STORE_MAX_KEY : STORE_MAX_VALUE, &bytes))
        return false;
    if (put && what == 'k')
        put_key(&t->frame, (uint32_t)field, bytes);
    else if (put && what == 'v')
        store_frame_put(&t->frame, (uint32_t)field, bytes.data, bytes.size);
    else if (put)
        store_torch_put_number(t, (uint32_t)field, number);
    return true;
}

static bool begin_request(struct store_torch *t, struct reader *r, const char *data)
{
    t->times = 1;
    if (rows[t->request].many && !take_number(r, &t->times))
        return false;
    if (t->times < 0 || t->times > MOST_KEYS) {
        r->wrong = true;
        store_torch_complain(t, "a list of %" PRId64, t->times);
        return false;
    }
    t->fields = 0;
    t->reached = (size_t)(r->at - data);
    return true;
}

/* The request that begins at `data`, once whole, as t->frame. */
static bool translate(struct store_torch *t, struct reader *r, const char *data)
{
    if (!t->reached && !begin_request(t, r, data))
        return false;
    int64_t count = t->times * (int64_t)strlen(rows[t->request].holds);
    r->at = data + t->reached;
    for (; t->fields < count && take_field(t, r, t->fields, false); t->fields++)
        t->reached = (size_t)(r->at - data);
    if (r->wrong || (t->fields < count && r->end - data > STORE_TORCH_MOST)) {
        if (!r->wrong)
            store_torch_complain(t, "a request of more than %u bytes", STORE_TORCH_MOST);
        return !(r->wrong = true);
    }
    if (t->fields < count)
        return false;
    struct reader again = {.at = data + 1 + (rows[t->request].many ? 8 : 0), .end = r->end, .t = t};
    store_frame_begin(&t->frame, rows[t->request].op, t->request == WAIT ? FOREVER : 0, (uint32_t)count);
    for (int64_t field = 0; field < count; field++)
        take_field(t, &again, field, true);
    store_frame_end(&t->frame);
    r->at = again.at;
    t->reached = 0;
    r->wrong = t->frame.failed;
    return !r->wrong;
}

static int64_t greet(struct store_torch *t, const char *data, size_t size)
{
    if (memcmp(data, greeting, size < sizeof greeting ? size : sizeof greeting)) {
        store_torch_complain(t, "it does not speak the protocol of torch's store");
        return -1;
    }
    t->greeted = size >= sizeof greeting;
    return t->greeted ? (int64_t)sizeof greeting : 0;
}

int64_t store_torch_read(struct store_torch *t, const char *data, size_t size, struct store_buffer *answer)
{
    t->frame.size = answer->size = 0;
    answer->failed = false;
    if (!size || !t->greeted)
        return size ? greet(t, data, size) : 0;
    t->request = (uint8_t)data[0];
    if (store_torch_cancels(data, size, answer)) /* of a wait that was answered meanwhile */
        return 1;
    if (t->request == PING)
        return size < 5 ? 0 : (store_buffer_append(answer, data + 1, 4), 5);
    if (t->request >= sizeof rows / sizeof *rows || !rows[t->request].holds) {
        store_torch_complain(t, "request %d is not known", t->request);
        return -1;
    }
    struct reader r = {.at = data + 1, .end = data + size, .t = t};
    return translate(t, &r, data) ? r.at - data : r.wrong ? -1 : 0;
}

bool store_torch_cancels(const char *data, size_t size, struct store_buffer *answer)
{
    answer->size = 0;
    if (!size || data[0] != CANCEL_WAIT)
        return false;
    store_buffer_append(answer, "\1", 1); /* or it is failed */
    return true;
}

/* ---- what goes ---- */

static void say_number(struct store_buffer *answer, int64_t number)
{
    uint64_t bits = htole64((uint64_t)number);
    store_buffer_append(answer, (const char *)&bits, sizeof bits);
}

static void say_bytes(struct store_buffer *answer, struct store_bytes start, struct store_bytes rest)
{
    say_number(answer, (int64_t)start.size + rest.size);
    store_buffer_append(answer, start.data, start.size);
    store_buffer_append(answer, rest.data, rest.size);
}

/* The decimal number that our table answers with. */
static int64_t number_in(const struct store_frame *frame)
{
    struct store_bytes text = store_frame_first(frame);
    char copy[24] = {0};
    memcpy(copy, text.data, text.size < sizeof copy ? text.size : sizeof copy - 1);
    return strtoll(copy, NULL, 10);
}

static void say_strings(struct store_buffer *answer, const struct store_frame *frame, struct store_bytes start)
{
    struct store_cursor cursor = store_frame_strings(frame);
    for (struct store_bytes string; store_frame_next(&cursor, &string);)
        say_bytes(answer, start, string);
}

static void say(struct store_torch *t, const struct store_frame *frame, struct store_buffer *answer)
{
    bool found = frame->code == STORE_OK;
    switch (rows[t->request].answer) {
    case SILENT:
        return;
    case NUMBER:
        return say_number(answer, number_in(frame));
    case COUNT_KEYS:
        return say_number(answer, number_in(frame) + OWN_KEYS);
    case THERE:
        store_buffer_append(answer, number_in(frame) ? "\0" : "\1", 1);
        return;
    case CAME:
        store_buffer_append(answer, "\0", 1);
        return;
    case MAYBE:
        say_number(answer, found);
        break;
    case NAMES:
        say_number(answer, frame->count);
        return say_strings(answer, frame, (struct store_bytes){"/", 1});
    case VALUES:
        break;
    }
    if (found)
        say_strings(answer, frame, nothing);
}

/* What else belongs to the request: before a barrier's wait, or behind the last worker that counts itself in, the word that all
 * have come. */
static enum store_op next_after(const struct store_torch *t, const struct store_frame *done, const struct store_frame *answer)
{
    struct store_bytes key = store_frame_first(done);
    if (done->code == STORE_SET && t->request == BARRIER)
        return STORE_WAIT;
    if (t->request == MULTI_GET && (done->code == STORE_WAIT ? done->count : t->rest.index < t->listed.count))
        return STORE_GET;
    if (done->code != STORE_ADD)
        return STORE_OPS;
    if (t->request == BARRIER)
        return number_in(answer) >= t->barrier ? STORE_SET : STORE_WAIT;
    bool counts = t->world_size && key.size == workers.size && !memcmp(key.data, workers.data, key.size);
    return counts && number_in(answer) >= t->world_size ? STORE_SET : STORE_OPS;
}

bool store_torch_answer(struct store_torch *t, const struct store_buffer *from, struct store_buffer *answer)
{
    struct store_frame done, got;
    if (from->failed || !store_frame_parse(&done, t->frame.data, t->frame.size) || !store_frame_parse(&got, from->data, from->size)) {
        store_torch_complain(t, "the server has no memory for its request");
        return false;
    }
    if (got.code == STORE_TIMED_OUT && rows[t->request].answer != MAYBE) {
        store_torch_complain(t, "it asks for a key that is not there, without having waited for it");
        return false;
    }
    if (got.code != STORE_OK && got.code != STORE_TIMED_OUT) {
        struct store_bytes text = store_frame_first(&got);
        store_torch_complain(t, "%.*s", (int)text.size, text.data);
        return false;
    }
    t->next = next_after(t, &done, &got);
    if (t->request == MULTI_GET || done.code == (t->request == BARRIER ? STORE_WAIT : rows[t->request].op))
        say(t, &got, answer);
    return !answer->failed;
}

/* The next key of a list, whose first value comes after the request that looked whether all are there. */
static bool next_of_list(struct store_torch *t)
{
    struct store_bytes key = nothing;
    if (!t->list.size) {
        t->list = t->frame;
        t->frame = (struct store_buffer){0};
        if (!store_frame_parse(&t->listed, t->list.data, t->list.size))
            return !(t->frame.failed = true);
        t->rest = store_frame_strings(&t->listed);
    }
    store_frame_next(&t->rest, &key);
    store_frame_begin(&t->frame, STORE_GET, 0, 1);
    store_frame_put(&t->frame, 0, key.data, key.size);
    store_frame_end(&t->frame);
    t->next = STORE_OPS;
    return !t->frame.failed;
}

bool store_torch_next(struct store_torch *t)
{
    struct store_frame done;
    struct store_buffer frame = {0};
    if (t->next != STORE_GET)
        store_buffer_free(&t->list);
    if (t->next == STORE_OPS)
        return false;
    if (t->next == STORE_GET)
        return next_of_list(t);
    if (!store_frame_parse(&done, t->frame.data, t->frame.size))
        return !(t->frame.failed = true);
    struct store_bytes key = store_frame_first(&done);
    store_frame_begin(&frame, t->next, t->next == STORE_WAIT ? FOREVER : 0, t->next == STORE_WAIT ? 1 : 2);
    if (t->request == ADD)
        store_frame_put(&frame, 0, complete.data, complete.size);
    else
        put_pair(&frame, 0, done.code == STORE_ADD ? barriers : nothing, key);
    if (t->next == STORE_SET)
        store_frame_put(&frame, 1, "", 0);
    store_frame_end(&frame);
    store_buffer_free(&t->frame);
    t->frame = frame;
    t->next = STORE_OPS;
    return !frame.failed;
}
