/* Requests to a store's table, and their answers. Each request is a row of one table: its fields and its handler. */
#include <endian.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "store.h"

#define ROOM 512            /* bytes of an answer beside its values */
#define PIECE (64 << 10)    /* bytes of values that a client of torch's kind is sent at once, or one value */
#define MOST_KEYS (1 << 20) /* of one request */
#define OWN_KEYS 1          /* that torch's num_keys counts */

static const char greeting[4] = {(char)0xce, (char)0xf7, (char)0x85, 0x3c};
static const char barriers[] = "\0barrier/"; /* before a barrier's key: all have arrived */
static const struct store_bytes nothing = {"", 0};

/* Common state of the handlers below. */
struct work {
    struct store_table *t;
    struct store_request *r;
    const char *data;
    struct store_buffer *answer;
    struct store_bytes missing;
};

enum store_result store_request_fail(struct store_request *r, int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->text, sizeof r->text, format, arguments);
    va_end(arguments);
    r->status = status;
    return STORE_FAILED;
}

enum store_result store_request_no_memory(struct store_request *r)
{
    return store_request_fail(r, STORE_OVER_QUOTA, "the store's process is out of memory");
}

/* ---- fields ---- */

static int64_t number_at(const char *at)
{
    uint64_t bits;
    memcpy(&bits, at, sizeof bits);
    return (int64_t)le64toh(bits);
}

static int64_t next_number(struct work *w)
{
    int64_t number = number_at(w->data + w->r->at);
    w->r->at += sizeof number;
    return number;
}

struct store_bytes store_request_bytes(struct store_request *r, const char *data)
{
    size_t size = (size_t)number_at(data + r->at);
    struct store_bytes bytes = {data + r->at + sizeof(int64_t), size};
    r->at += sizeof(int64_t) + size;
    return bytes;
}

static struct store_bytes next_bytes(struct work *w)
{
    return store_request_bytes(w->r, w->data);
}

static void put_number(struct work *w, int64_t number)
{
    uint64_t bits = htole64((uint64_t)number);
    store_buffer_append(w->answer, &bits, sizeof bits);
}

static void put_bytes(struct work *w, struct store_bytes bytes)
{
    put_number(w, (int64_t)bytes.size);
    store_buffer_append(w->answer, bytes.data, bytes.size);
}

static enum store_result put_byte(struct work *w, char byte)
{
    store_buffer_append(w->answer, &byte, 1);
    return STORE_DONE;
}

/* ---- the handlers ---- */

static enum store_result request_validate(struct work *w)
{
    if (!memcmp(w->data + w->r->at, greeting, sizeof greeting))
        return STORE_DONE;
    return store_request_fail(w->r, STORE_BAD_REQUEST, "it does not speak the protocol of torch's store");
}

static enum store_result request_ping(struct work *w)
{
    store_buffer_append(w->answer, w->data + w->r->at, sizeof greeting);
    return STORE_DONE;
}

/* Of a client that cancels its wait, or of a wait that was answered meanwhile. */
static enum store_result request_cancel(struct work *w)
{
    w->answer->size -= w->r->member; /* its status says so */
    return put_byte(w, STORE_CANCELLED);
}

/* All values are made before the first is kept. False without memory. */
static bool set_values(struct work *w)
{
    int64_t count = w->r->times, done = 0;
    struct store_made *made = calloc((size_t)count + 1, sizeof *made);
    while (made && done < count) {
        struct store_bytes key = next_bytes(w), value = next_bytes(w);
        if (!store_table_make(w->t, key, value, nothing, &made[done]))
            break;
        done++;
    }
    bool all = made && done == count;
    for (int64_t i = 0; i < done; i++)
        if (all)
            store_table_keep(w->t, &made[i]);
        else
            free(made[i].value);
    w->r->at = w->r->first;
    for (int64_t i = 0; i < done && !all; i++) {
        struct store_entry *entry = store_table_entry(w->t, next_bytes(w), false);
        if (entry) /* a key that occurs twice has one value */
            store_table_tidy(w->t, entry);
        next_bytes(w);
    }
    free(made);
    return all;
}

/* All of it is checked first; existing keys count as new ones. */
static enum store_result request_multi_set(struct work *w)
{
    int64_t need = 0;
    for (int64_t i = 0; i < w->r->times; i++)
        need += (int64_t)(next_bytes(w).size + next_bytes(w).size) + STORE_OVERHEAD;
    w->r->at = w->r->first;
    for (int64_t i = 0; i < w->r->times; i++) {
        struct store_bytes key = next_bytes(w);
        if (!store_table_fits(w->t, w->r, key, next_bytes(w).size, need))
            return STORE_FAILED;
    }
    w->r->at = w->r->first;
    return set_values(w) ? STORE_DONE : store_request_no_memory(w->r);
}

static enum store_result request_set(struct work *w)
{
    struct store_bytes key = next_bytes(w);
    return store_table_write(w->t, w->r, key, next_bytes(w), nothing) ? STORE_DONE : STORE_FAILED;
}

static enum store_result request_append(struct work *w)
{
    struct store_bytes key = next_bytes(w), old = store_entry_value(store_table_entry(w->t, key, false));
    return store_table_write(w->t, w->r, key, old, next_bytes(w)) ? STORE_DONE : STORE_FAILED;
}

static enum store_result request_compare_set(struct work *w)
{
    struct store_bytes key = next_bytes(w), expected = next_bytes(w), desired = next_bytes(w);
    struct store_bytes now = store_entry_value(store_table_entry(w->t, key, false));
    bool equal = now.size == expected.size && (!now.size || !memcmp(now.data, expected.data, now.size));
    if (!equal) {
        put_bytes(w, now.data ? now : expected);
        return STORE_DONE;
    }
    if (!store_buffer_reserve(w->answer, ROOM + desired.size))
        return store_request_no_memory(w->r);
    if (!store_table_write(w->t, w->r, key, desired, nothing))
        return STORE_FAILED;
    put_bytes(w, desired);
    return STORE_DONE;
}

/* A whole decimal number. */
static bool parse_number(struct store_bytes text, int64_t *out)
{
    char copy[24] = {0}, *end;
    if (!text.size || text.size >= sizeof copy || strspn(memcpy(copy, text.data, text.size), "-0123456789") != text.size)
        return false;
    intmax_t number = strtoimax(copy, &end, 10);
    *out = number;
    return !*end && (number != INTMAX_MAX || !strcmp(copy, "9223372036854775807"))
           && (number != INTMAX_MIN || !strcmp(copy, "-9223372036854775808"));
}

static bool add_number(struct work *w, struct store_bytes key, int64_t more, int64_t *sum)
{
    struct store_bytes old = store_entry_value(store_table_entry(w->t, key, false)), name = store_key_shown(key);
    char text[24];
    *sum = 0;
    if ((old.data && !parse_number(old, sum)) || __builtin_add_overflow(*sum, more, sum)) {
        store_request_fail(w->r, STORE_BAD_REQUEST, "cannot add to key '%.*s': its value is not a decimal number, or the sum "
                           "does not fit 64 bits", (int)name.size, name.data);
        return false;
    }
    struct store_bytes value = {text, (size_t)snprintf(text, sizeof text, "%" PRId64, *sum)};
    return store_table_write(w->t, w->r, key, value, nothing);
}

static enum store_result request_add(struct work *w)
{
    struct store_bytes key = next_bytes(w);
    int64_t sum;
    if (!add_number(w, key, next_number(w), &sum))
        return STORE_FAILED;
    put_number(w, sum);
    return STORE_DONE;
}

static enum store_result request_delete(struct work *w)
{
    struct store_entry *entry = store_table_entry(w->t, next_bytes(w), false);
    bool there = entry && entry->value;
    if (there) {
        w->t->room += (int64_t)(entry->key.size + entry->value_size) + STORE_OVERHEAD;
        w->t->listed -= store_entry_listed(entry);
        free(entry->value);
        entry->value = NULL;
        store_table_tidy(w->t, entry);
    }
    put_number(w, there);
    return STORE_DONE;
}

/* All keys of the request; a queue with entries counts as a key, except for a request for values. */
static bool all_there(struct work *w, bool values)
{
    for (int64_t i = 0; i < w->r->times; i++) {
        struct store_bytes key = next_bytes(w);
        const struct store_entry *entry = store_table_entry(w->t, key, false);
        if (!entry || !(entry->value || (entry->head && !values))) {
            w->missing = key;
            return false;
        }
    }
    return true;
}

static enum store_result request_await(struct work *w)
{
    if (!all_there(w, false))
        return STORE_WAITS;
    return w->r->member ? STORE_DONE : put_byte(w, STORE_OK);
}

static enum store_result request_check(struct work *w)
{
    return put_byte(w, !all_there(w, false));
}

static enum store_result request_values(struct work *w)
{
    if (!w->r->more) {
        if (w->r->op == STORE_AWAIT_VALUES && !all_there(w, true))
            return STORE_WAITS;
        w->r->at = w->r->first;
        w->r->rest = w->r->times;
    }
    for (; w->r->rest; w->r->rest--) {
        if (!w->r->member && w->answer->size > PIECE)
            return STORE_MORE;
        struct store_bytes value = store_entry_value(store_table_entry(w->t, next_bytes(w), false));
        if (!value.data)
            return store_request_fail(w->r, STORE_BAD_REQUEST,
                                      "it asks for a key that is not there, without having waited for it");
        put_bytes(w, value);
    }
    return STORE_DONE;
}

static enum store_result request_barrier(struct work *w)
{
    char text[sizeof barriers + STORE_MAX_KEY];
    struct store_bytes key = next_bytes(w), complete = {text, sizeof barriers - 1 + key.size};
    int64_t size = next_number(w), came = 0;
    if (!store_table_fits(w->t, w->r, key, 0, 0))
        return STORE_FAILED;
    memcpy(text, barriers, sizeof barriers - 1);
    memcpy(text + sizeof barriers - 1, key.data, key.size);
    if (!w->r->counted && !add_number(w, key, 1, &came))
        return STORE_FAILED;
    w->r->counted = true;
    if (came >= size && !store_table_write(w->t, w->r, complete, nothing, nothing))
        return STORE_FAILED;
    struct store_entry *entry = store_table_entry(w->t, complete, true); /* its key belongs to the waiting client */
    if (!entry)
        return store_request_no_memory(w->r);
    w->missing = entry->key;
    if (!entry->value)
        return STORE_WAITS;
    return w->r->member ? STORE_DONE : put_byte(w, STORE_OK);
}

static enum store_result request_num_keys(struct work *w)
{
    put_number(w, (int64_t)w->t->listed + OWN_KEYS);
    return STORE_DONE;
}

static enum store_result request_list_keys(struct work *w)
{
    put_number(w, (int64_t)w->t->listed);
    for (struct store_entry *entry = w->t->entries; entry; entry = entry->next)
        if (entry->value && store_entry_listed(entry))
            put_bytes(w, entry->key);
    return STORE_DONE;
}

static enum store_result request_push(struct work *w)
{
    struct store_bytes key = next_bytes(w), value = next_bytes(w);
    int64_t grows = (int64_t)(key.size + value.size) + STORE_OVERHEAD;
    if (!store_table_fits(w->t, w->r, key, value.size, grows))
        return STORE_FAILED;
    struct store_item *item = malloc(sizeof *item + value.size);
    struct store_entry *entry = item ? store_table_entry(w->t, key, true) : NULL;
    if (!entry) {
        free(item);
        return store_request_no_memory(w->r);
    }
    item->next = NULL;
    item->size = (uint32_t)value.size;
    memcpy(item->data, value.data, value.size);
    *(entry->head ? &entry->tail->next : &entry->head) = item;
    entry->tail = item;
    entry->queued++;
    w->t->room -= grows;
    store_table_bring(w->t, entry);
    return STORE_DONE;
}

static enum store_result request_pop(struct work *w)
{
    struct store_entry *entry = store_table_entry(w->t, next_bytes(w), false);
    struct store_item *item = entry ? entry->head : NULL;
    put_number(w, item != NULL);
    if (!item)
        return STORE_DONE;
    put_bytes(w, (struct store_bytes){item->data, item->size});
    if (w->answer->failed)
        return store_request_no_memory(w->r); /* it stays */
    entry->head = item->next;
    entry->queued--;
    w->t->room += (int64_t)(entry->key.size + item->size) + STORE_OVERHEAD;
    free(item);
    store_table_tidy(w->t, entry);
    return STORE_DONE;
}

static enum store_result request_queue_len(struct work *w)
{
    const struct store_entry *entry = store_table_entry(w->t, next_bytes(w), false);
    put_number(w, entry ? entry->queued : 0);
    return STORE_DONE;
}

static const struct {
    const char *holds; /* k: key, v: value, n: number, 4: so many bytes */
    bool many;         /* a number says how often */
    enum store_result (*handle)(struct work *w);
} rows[STORE_OPS] = {
    [STORE_VALIDATE] = {"4", false, request_validate},
    [STORE_SET] = {"kv", false, request_set},
    [STORE_COMPARE_SET] = {"kvv", false, request_compare_set},
    [STORE_GET] = {"k", false, request_values},
    [STORE_ADD] = {"kn", false, request_add},
    [STORE_CHECK] = {"k", true, request_check},
    [STORE_WAIT] = {"k", true, request_await},
    [STORE_NUM_KEYS] = {"", false, request_num_keys},
    [STORE_DELETE] = {"k", false, request_delete},
    [STORE_APPEND] = {"kv", false, request_append},
    [STORE_MULTI_GET] = {"k", true, request_values},
    [STORE_MULTI_SET] = {"kv", true, request_multi_set},
    [STORE_CANCEL] = {"", false, request_cancel},
    [STORE_PING] = {"4", false, request_ping},
    [STORE_PUSH] = {"kv", false, request_push},
    [STORE_POP] = {"k", false, request_pop},
    [STORE_QUEUE_LEN] = {"k", false, request_queue_len},
    [STORE_LIST_KEYS] = {"", false, request_list_keys},
    [STORE_BARRIER] = {"kn", false, request_barrier},
    [STORE_AWAIT_VALUES] = {"k", true, request_values},
    [STORE_WILL] = {"kv", true, NULL}, /* for the server, which knows the disconnected clients */
};

/* ---- reading and running ---- */

static int refuse_request(struct store_request *r, const char *what, int64_t size)
{
    store_request_fail(r, STORE_BAD_REQUEST, "%s %" PRId64, what, size);
    return -1;
}

/* The request's first byte, and how often its fields come. */
static int begin_request(struct store_request *r, const char *data, size_t size)
{
    r->op = size ? (uint8_t)data[0] : 0;
    if (r->op >= (r->member ? STORE_OPS : STORE_BARRIER + 1))
        return refuse_request(r, "an unknown request,", r->op);
    bool many = rows[r->op].many;
    r->first = many ? 1 + sizeof(int64_t) : 1;
    if (size < r->first)
        return 0;
    r->times = many ? number_at(data + 1) : 1;
    if (r->times < 0 || r->times > MOST_KEYS)
        return refuse_request(r, "a list of", r->times);
    r->left = r->times * (int64_t)strlen(rows[r->op].holds);
    r->size = r->first;
    return 1;
}

/* The bytes of a field, 0 while that is not known, -1 for an invalid one. A member's may be too long: its answer reports it. */
static int64_t field_size(struct store_request *r, const char *at, size_t have, char what)
{
    if (what == '4')
        return sizeof greeting;
    if (what == 'n' || have < sizeof(int64_t))
        return what == 'n' ? (int64_t)sizeof(int64_t) : 0;
    int64_t size = number_at(at), most = r->member ? STORE_MAX_TOTAL : what == 'k' ? STORE_MAX_KEY + 1 : STORE_MAX_VALUE;
    return size < 0 || size > most ? refuse_request(r, "a key or value whose bytes are", size) : (int64_t)sizeof(int64_t) + size;
}

int store_request_read(struct store_request *r, const char *data, size_t size)
{
    int state = r->size ? 1 : begin_request(r, data, size);
    if (state <= 0)
        return state;
    const char *holds = rows[r->op].holds;
    int64_t each = (int64_t)strlen(holds);
    for (; r->left; r->left--) {
        int64_t field = field_size(r, data + r->size, size - r->size, holds[(each - r->left % each) % each]);
        if (field <= 0 || (size_t)field > size - r->size)
            return field < 0 ? -1 : 0;
        r->size += (size_t)field;
    }
    return 1;
}

/* A member gets an error; nothing has changed, and there is capacity for the text. */
static enum store_result tell_failure(struct work *w, size_t before)
{
    w->answer->size = before;
    w->answer->failed = false;
    put_byte(w, (char)w->r->status);
    put_bytes(w, (struct store_bytes){w->r->text, strlen(w->r->text)});
    return STORE_DONE;
}

enum store_result store_request_run(struct store_table *t, struct store_request *r, const char *data,
                                    struct store_buffer *answer, struct store_bytes *missing)
{
    struct work w = {t, r, data, answer, nothing};
    size_t before = answer->size;
    if (!store_buffer_reserve(answer, ROOM))
        return store_request_no_memory(r);
    if (!r->more) {
        r->at = r->first;
        if (r->member)
            put_byte(&w, STORE_OK);
    }
    enum store_result result = r->status ? STORE_FAILED : rows[r->op].handle ? rows[r->op].handle(&w) : STORE_DONE;
    if (answer->failed)
        result = store_request_fail(r, STORE_OVER_QUOTA, "the store's process has no memory for the answer, or it is larger than "
                                    "%lld bytes", STORE_MAX_ANSWER);
    r->more = result == STORE_MORE;
    *missing = w.missing;
    if (result == STORE_WAITS)
        answer->size = before;
    return result == STORE_FAILED && r->member ? tell_failure(&w, before) : result;
}
