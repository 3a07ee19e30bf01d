/* What is asked of a store's table, and what it answers. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "store.h"

#define OVERHEAD 100 /* bytes that an entry costs beyond key and value */
#define SHOWN 100    /* bytes of a key in an error's text */

/* What the handlers below share: the request, where the answer goes, and the first strings. */
struct work {
    struct store_table *t;
    const struct store_frame *request;
    struct store_buffer *answer;
    struct store_bytes arg[3];
    struct store_bytes missing;
};

static int shown(struct store_bytes key)
{
    return key.size < SHOWN ? (int)key.size : SHOWN;
}

/* Whether an entry of this key and value may be written and the store grow by `grows` bytes; answers if not. */
static bool store_requests_fits(struct work *w, struct store_bytes key, uint64_t value, int64_t grows)
{
    if (key.size > STORE_MAX_KEY)
        store_frame_text(w->answer, STORE_OVER_QUOTA, "a key of %u bytes; the store takes at most %u", key.size, STORE_MAX_KEY);
    else if (value > STORE_MAX_VALUE)
        store_frame_text(w->answer, STORE_OVER_QUOTA, "a value of %" PRIu64 " bytes for key '%.*s'; the store takes at most %u: "
                         "move data with collectives, the store is for addresses and counters", value, shown(key), key.data,
                         STORE_MAX_VALUE);
    else if (grows > w->t->room)
        store_frame_text(w->answer, STORE_OVER_QUOTA, "the store is full: %" PRId64 " bytes for key '%.*s' do not fit into the %"
                         PRId64 " left of %lld; delete keys that are no longer needed", grows, shown(key), key.data, w->t->room,
                         STORE_MAX_TOTAL);
    else
        return true;
    return false;
}

static void no_memory(struct work *w)
{
    store_frame_text(w->answer, STORE_OVER_QUOTA, "the store's process is out of memory");
}

static void store_requests_answer(struct work *w, struct store_bytes value)
{
    store_frame_begin(w->answer, STORE_OK, 0, 1);
    store_frame_put(w->answer, 0, value.data, value.size);
    store_frame_end(w->answer);
}

static void answer_number(struct work *w, int64_t number)
{
    char text[24];
    store_requests_answer(w, (struct store_bytes){text, (uint32_t)snprintf(text, sizeof text, "%" PRId64, number)});
}

static void answer_nothing(struct work *w)
{
    store_frame_begin(w->answer, STORE_OK, 0, 0);
    store_frame_end(w->answer);
}

static struct store_bytes value_of(const struct store_entry *entry)
{
    return entry && entry->value ? (struct store_bytes){entry->value, entry->value_size} : (struct store_bytes){NULL, 0};
}

static const struct store_bytes nothing = {"", 0};

/* A value that its entry has not got yet. */
struct made {
    struct store_entry *entry;
    char *value;
    uint32_t size;
};

/* False without memory. */
static bool make(const struct work *w, struct store_bytes key, struct store_bytes a, struct store_bytes b, struct made *made)
{
    made->size = a.size + b.size;
    made->value = malloc((size_t)made->size + 1); /* never of 0 bytes: NULL says that there is no value */
    made->entry = made->value ? store_table_entry(w->t, key, true) : NULL;
    if (!made->entry) {
        free(made->value);
        return false;
    }
    if (a.size)
        memcpy(made->value, a.data, a.size);
    if (b.size)
        memcpy(made->value + a.size, b.data, b.size);
    return true;
}

static void store_requests_keep(struct store_table *t, const struct made *made)
{
    struct store_entry *entry = made->entry;
    t->room += entry->value ? (int64_t)entry->value_size : -(int64_t)entry->key_size - OVERHEAD;
    t->room -= made->size;
    t->listed += !entry->value && store_listed(entry);
    free(entry->value); /* what was made may be a copy of it */
    entry->value = made->value;
    entry->value_size = made->size;
}

/* The value of a key becomes a, then b. False when there is no room: answered. */
static bool write_value(struct work *w, struct store_bytes key, struct store_bytes a, struct store_bytes b)
{
    struct store_entry *entry = store_table_entry(w->t, key, false);
    bool fresh = !entry || !entry->value;
    uint64_t size = (uint64_t)a.size + b.size;
    int64_t grows = fresh ? (int64_t)(key.size + size) + OVERHEAD : (int64_t)size - entry->value_size;
    if (!store_requests_fits(w, key, size, grows))
        return false;
    if (!fresh && size == entry->value_size) { /* in place; `a` may lie there already */
        memmove(entry->value, a.data, a.size);
        memmove(entry->value + a.size, b.data, b.size);
        return true;
    }
    struct made made;
    if (!make(w, key, a, b, &made)) {
        no_memory(w);
        return false;
    }
    store_requests_keep(w->t, &made);
    return true;
}

bool store_table_leave(struct store_table *t, struct store_bytes key, struct store_bytes value, struct store_buffer *room)
{
    struct work w = {.t = t, .answer = room};
    const struct store_entry *entry = store_table_entry(t, key, false);
    return (entry && entry->value) || write_value(&w, key, value, nothing);
}

/* All values are made before the first is kept. False without memory. */
static bool set_all(struct work *w)
{
    size_t count = w->request->count / 2, done = 0;
    struct made *made = calloc(count ? count : 1, sizeof *made);
    struct store_cursor cursor = store_frame_strings(w->request);
    struct store_bytes key, value;
    while (made && store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value) && make(w, key, value, nothing, &made[done]))
        done++;
    bool all = made && done == count;
    for (size_t i = 0; i < done; i++)
        if (all)
            store_requests_keep(w->t, &made[i]);
        else
            free(made[i].value);
    cursor = store_frame_strings(w->request);
    for (size_t i = 0; i < done && !all && store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value); i++) {
        struct store_entry *entry = store_table_entry(w->t, key, false);
        if (entry) /* a key that stands there twice has one */
            store_table_tidy(w->t, entry);
    }
    free(made);
    return all;
}

/* All of it is checked first; keys that are there already are counted as if they were new. */
static void set(struct work *w)
{
    struct store_cursor cursor = store_frame_strings(w->request);
    struct store_bytes key, value;
    int64_t need = 0;
    while (store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value))
        need += (int64_t)key.size + value.size + OVERHEAD;
    cursor = store_frame_strings(w->request);
    while (store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value))
        if (!store_requests_fits(w, key, value.size, w->request->count > 2 ? need : 0))
            return;
    if (w->request->count > 2 && !set_all(w))
        no_memory(w);
    else if (w->request->count != 2 || write_value(w, w->arg[0], w->arg[1], nothing))
        answer_nothing(w);
}

static void store_requests_get(struct work *w)
{
    struct store_cursor cursor = store_frame_strings(w->request);
    store_frame_begin(w->answer, STORE_OK, 0, w->request->count);
    for (struct store_bytes key; store_frame_next(&cursor, &key);) {
        const struct store_entry *entry = store_table_entry(w->t, key, false);
        if (!entry || !entry->value) {
            w->missing = key;
            return;
        }
        store_frame_put(w->answer, cursor.index - 1, entry->value, entry->value_size);
    }
    store_frame_end(w->answer);
}

static bool parse_number(struct store_bytes text, int64_t *out)
{
    char copy[24], *end;
    if (!text.size || text.size >= sizeof copy)
        return false;
    memcpy(copy, text.data, text.size);
    copy[text.size] = 0;
    errno = 0;
    *out = strtoll(copy, &end, 10);
    return !errno && end == copy + text.size;
}

static void add(struct work *w)
{
    const struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    int64_t old = 0, more;
    char text[24];
    if ((entry && entry->value && !parse_number(value_of(entry), &old)) || !parse_number(w->arg[1], &more)
        || __builtin_add_overflow(old, more, &old)) {
        store_frame_text(w->answer, STORE_BAD_REQUEST, "cannot add to key '%.*s': its value is not a decimal number, or the sum "
                         "does not fit 64 bits", shown(w->arg[0]), w->arg[0].data);
        return;
    }
    struct store_bytes sum = {text, (uint32_t)snprintf(text, sizeof text, "%" PRId64, old)};
    if (write_value(w, w->arg[0], sum, nothing))
        store_requests_answer(w, sum);
}

static void compare_set(struct work *w)
{
    const struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    struct store_bytes current = value_of(entry), expected = w->arg[1];
    bool there = current.data;
    if (!there && expected.size)
        store_requests_answer(w, expected);
    else if (there && (current.size != expected.size || memcmp(current.data, expected.data, current.size)))
        store_requests_answer(w, current);
    else if (write_value(w, w->arg[0], w->arg[2], nothing))
        store_requests_answer(w, w->arg[2]);
}

static void store_requests_append(struct work *w)
{
    if (write_value(w, w->arg[0], value_of(store_table_entry(w->t, w->arg[0], false)), w->arg[1]))
        answer_nothing(w);
}

static void delete(struct work *w)
{
    struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    bool there = entry && entry->value;
    if (there) {
        w->t->room += (int64_t)entry->key_size + entry->value_size + OVERHEAD;
        w->t->listed -= store_listed(entry);
        free(entry->value);
        entry->value = NULL;
        store_table_tidy(w->t, entry);
    }
    answer_number(w, there);
}

/* A queue that is not empty is there too. */
static bool all_there(struct work *w)
{
    struct store_cursor cursor = store_frame_strings(w->request);
    for (struct store_bytes key; store_frame_next(&cursor, &key);) {
        const struct store_entry *entry = store_table_entry(w->t, key, false);
        if (!entry || !(entry->value || entry->head)) {
            w->missing = key;
            return false;
        }
    }
    return true;
}

static void store_requests_wait(struct work *w)
{
    if (all_there(w))
        answer_nothing(w);
}

static void check(struct work *w)
{
    answer_number(w, all_there(w));
    w->missing.data = NULL; /* nothing is waited for */
}

static void num_keys(struct work *w)
{
    answer_number(w, (int64_t)w->t->listed);
}

static void list_keys(struct work *w)
{
    uint32_t index = 0;
    store_frame_begin(w->answer, STORE_OK, 0, (uint32_t)w->t->listed);
    for (size_t row = 0; row <= w->t->mask; row++)
        for (struct store_entry *entry = w->t->rows[row]; entry; entry = entry->next)
            if (entry->value && store_listed(entry))
                store_frame_put(w->answer, index++, entry->key, entry->key_size);
    store_frame_end(w->answer);
}

static void push(struct work *w)
{
    struct store_bytes key = w->arg[0], value = w->arg[1];
    int64_t grows = (int64_t)key.size + value.size + OVERHEAD;
    if (!store_requests_fits(w, key, value.size, grows))
        return;
    struct store_item *item = malloc(sizeof *item + value.size);
    struct store_entry *entry = item ? store_table_entry(w->t, key, true) : NULL;
    if (!entry) {
        free(item);
        no_memory(w);
        return;
    }
    item->next = NULL;
    item->size = value.size;
    memcpy(item->data, value.data, value.size);
    *(entry->head ? &entry->tail->next : &entry->head) = item;
    entry->tail = item;
    entry->queued++;
    w->t->room -= grows;
    answer_nothing(w);
}

static void pop(struct work *w)
{
    struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    struct store_item *item = entry ? entry->head : NULL;
    if (!item) {
        w->missing = w->arg[0];
        return;
    }
    store_requests_answer(w, (struct store_bytes){item->data, item->size});
    if (w->answer->failed)
        return; /* it stays */
    entry->head = item->next;
    entry->queued--;
    w->t->room += (int64_t)entry->key_size + item->size + OVERHEAD;
    free(item);
    store_table_tidy(w->t, entry);
}

static void queue_len(struct work *w)
{
    const struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    answer_number(w, entry ? entry->queued : 0);
}

#define ANY 255
static const struct {
    void (*handle)(struct work *w); /* sets w->missing where that has to come first */
    uint8_t strings;
} handlers[STORE_OPS] = {
    {set, ANY}, {store_requests_get, ANY}, {add, 2}, {compare_set, 3}, {store_requests_append, 2}, {delete, 1}, {store_requests_wait, ANY}, {check, ANY},
    {num_keys, 0}, {list_keys, 0}, {push, 2}, {pop, 1}, {queue_len, 1},
};

bool store_table_apply(struct store_table *t, const struct store_frame *request, struct store_buffer *answer_to,
                       struct store_bytes *missing)
{
    struct work w = {.t = t, .request = request, .answer = answer_to};
    int op = request->code & ~STORE_POSTED;
    if (op >= STORE_OPS) {
        store_frame_text(answer_to, STORE_BAD_REQUEST, "unknown request %d", op);
        return false;
    }
    uint8_t strings = handlers[op].strings;
    if (strings != ANY ? request->count != strings : op == STORE_SET && request->count % 2) {
        store_frame_text(answer_to, STORE_BAD_REQUEST, "request %d does not take %u strings", op, request->count);
        return false;
    }
    struct store_cursor cursor = store_frame_strings(request);
    for (int i = 0; i < 3 && store_frame_next(&cursor, &w.arg[i]); i++)
        ;
    store_frame_begin(answer_to, STORE_OK, 0, 0);
    if (!store_buffer_reserve(answer_to, STORE_TOLD + (op == STORE_COMPARE_SET ? w.arg[2].size : 0))) {
        no_memory(&w);
        return false;
    }
    handlers[op].handle(&w);
    *missing = w.missing;
    if (!missing->data && answer_to->failed) /* nothing has changed: what tells of changes has room */
        store_frame_text(answer_to, STORE_OVER_QUOTA, answer_to->large ? "the answer is larger than %lld bytes"
                         : "the store's process has no memory for the answer, of less than %lld bytes", STORE_MAX_FRAME);
    return missing->data;
}
