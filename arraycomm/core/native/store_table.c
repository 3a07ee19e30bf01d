/* The data of a store: a hash table of entries, each with a value, a queue, or somebody who waits for one. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "store.h"

#define OVERHEAD 100 /* bytes that an entry costs beyond key and value */
#define SHOWN 100    /* bytes of a key in an error's text */
#define FIRST_ROWS 64
#define PRIME ((1ull << 61) - 1)
#define WORD 7 /* bytes that are a number below it */

struct store_item {
    struct store_item *next;
    uint32_t size;
    char data[];
};

struct store_table {
    struct store_entry **rows;
    size_t count, mask;
    uint64_t point; /* see hash_of() */
    int64_t room;
    uint64_t listed; /* values under keys that are not the store's own */
};

/* Keys of the store's own start with NUL; LIST_KEYS and NUM_KEYS pass over them. */
static bool listed(const struct store_entry *entry)
{
    return !entry->key_size || entry->key[0];
}

struct store_table *store_table_new(void)
{
    struct store_table *t = calloc(1, sizeof *t);
    struct store_entry **rows = calloc(FIRST_ROWS, sizeof *rows);
    if (!t || !rows) {
        free(t);
        free(rows);
        return NULL;
    }
    *t = (struct store_table){.rows = rows, .mask = FIRST_ROWS - 1, .room = STORE_MAX_TOTAL};
    if (getrandom(&t->point, sizeof t->point, GRND_NONBLOCK) != sizeof t->point) /* early at boot, or in a sandbox */
        t->point = (uint64_t)(uintptr_t)rows * 0x9e3779b97f4a7c15u;
    t->point = t->point % (PRIME - 1) + 1;
    return t;
}

static void free_entry(struct store_entry *entry)
{
    for (struct store_item *item = entry->head, *next; item; item = next) {
        next = item->next;
        free(item);
    }
    free(entry->value);
    free(entry);
}

void store_table_free(struct store_table *t)
{
    for (size_t row = 0; row <= t->mask; row++)
        for (struct store_entry *entry = t->rows[row], *next; entry; entry = next) {
            next = entry->next;
            free_entry(entry);
        }
    free(t->rows);
    free(t);
}

/* The key as a polynomial over the numbers modulo a prime, at a point that nobody knows: so nobody can make up keys that all fall
 * into one row (Carter and Wegman's universal hashing). */
static uint64_t hash_of(const struct store_table *t, struct store_bytes key)
{
    uint64_t hash = key.size;
    for (uint32_t at = 0; at < key.size; at += WORD) {
        uint64_t word = 0;
        memcpy(&word, key.data + at, key.size - at < WORD ? key.size - at : WORD);
        unsigned __int128 next = (unsigned __int128)hash * t->point + word;
        hash = (uint64_t)(next & PRIME) + (uint64_t)(next >> 61);
        hash -= hash >= PRIME ? PRIME : 0;
    }
    return hash;
}

static void grow(struct store_table *t)
{
    size_t size = 2 * (t->mask + 1);
    struct store_entry **rows = calloc(size, sizeof *rows);
    if (!rows)
        return; /* longer chains, nothing worse */
    for (size_t row = 0; row <= t->mask; row++)
        for (struct store_entry *entry = t->rows[row], *next; entry; entry = next) {
            struct store_entry **to = &rows[entry->hash & (size - 1)];
            next = entry->next;
            entry->next = *to;
            *to = entry;
        }
    free(t->rows);
    t->rows = rows;
    t->mask = size - 1;
}

struct store_entry *store_table_entry(struct store_table *t, struct store_bytes key, bool create)
{
    uint64_t hash = hash_of(t, key);
    for (struct store_entry *entry = t->rows[hash & t->mask]; entry; entry = entry->next)
        if (entry->hash == hash && entry->key_size == key.size && !memcmp(entry->key, key.data, key.size))
            return entry;
    struct store_entry *made = create ? calloc(1, sizeof *made + key.size) : NULL;
    if (!made)
        return NULL;
    if (++t->count > t->mask)
        grow(t);
    made->hash = hash;
    made->key_size = key.size;
    memcpy(made->key, key.data, key.size);
    made->next = t->rows[hash & t->mask];
    t->rows[hash & t->mask] = made;
    return made;
}

void store_table_tidy(struct store_table *t, struct store_entry *entry)
{
    if (entry->value || entry->head || entry->first_waiter)
        return;
    struct store_entry **at = &t->rows[entry->hash & t->mask];
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    t->count--;
    free_entry(entry);
}

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
static bool fits(struct work *w, struct store_bytes key, uint64_t value, int64_t grows)
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

static void answer(struct work *w, struct store_bytes value)
{
    store_frame_begin(w->answer, STORE_OK, 0, 1);
    store_frame_put(w->answer, 0, value.data, value.size);
    store_frame_end(w->answer);
}

static void answer_number(struct work *w, int64_t number)
{
    char text[24];
    answer(w, (struct store_bytes){text, (uint32_t)snprintf(text, sizeof text, "%" PRId64, number)});
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

/* The value of a key becomes a, then b. False when there is no room: answered. */
static bool write_value(struct work *w, struct store_bytes key, struct store_bytes a, struct store_bytes b)
{
    struct store_entry *entry = store_table_entry(w->t, key, false);
    bool fresh = !entry || !entry->value;
    uint64_t size = (uint64_t)a.size + b.size;
    int64_t grows = fresh ? (int64_t)(key.size + size) + OVERHEAD : (int64_t)size - entry->value_size;
    if (!fits(w, key, size, grows))
        return false;
    if (!fresh && size == entry->value_size) { /* in place; `a` may lie there already */
        memmove(entry->value, a.data, a.size);
        memmove(entry->value + a.size, b.data, b.size);
        return true;
    }
    char *value = malloc(size + 1); /* never of 0 bytes: NULL says that there is no value */
    entry = value ? store_table_entry(w->t, key, true) : NULL;
    if (!entry) {
        free(value);
        no_memory(w);
        return false;
    }
    if (a.size)
        memcpy(value, a.data, a.size);
    if (b.size)
        memcpy(value + a.size, b.data, b.size);
    free(entry->value); /* after the copy: `a` may lie in it */
    entry->value = value;
    entry->value_size = (uint32_t)size;
    w->t->room -= grows;
    w->t->listed += fresh && listed(entry);
    return true;
}

static const struct store_bytes nothing = {"", 0};

/* All of it is checked first; keys that are there already are counted as if they were new. */
static bool set(struct work *w)
{
    struct store_cursor cursor = store_frame_strings(w->request);
    struct store_bytes key, value;
    int64_t need = 0;
    while (store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value))
        need += (int64_t)key.size + value.size + OVERHEAD;
    cursor = store_frame_strings(w->request);
    while (store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value))
        if (!fits(w, key, value.size, w->request->count > 2 ? need : 0))
            return true;
    cursor = store_frame_strings(w->request);
    while (store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value))
        if (!write_value(w, key, value, nothing))
            return true;
    answer_nothing(w);
    return true;
}

static bool get(struct work *w)
{
    struct store_cursor cursor = store_frame_strings(w->request);
    store_frame_begin(w->answer, STORE_OK, 0, w->request->count);
    for (struct store_bytes key; store_frame_next(&cursor, &key);) {
        const struct store_entry *entry = store_table_entry(w->t, key, false);
        if (!entry || !entry->value) {
            w->missing = key;
            return false;
        }
        store_frame_put(w->answer, cursor.index - 1, entry->value, entry->value_size);
    }
    store_frame_end(w->answer);
    return true;
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

static bool add(struct work *w)
{
    const struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    int64_t old = 0, more;
    char text[24];
    if ((entry && entry->value && !parse_number(value_of(entry), &old)) || !parse_number(w->arg[1], &more)
        || __builtin_add_overflow(old, more, &old)) {
        store_frame_text(w->answer, STORE_BAD_REQUEST, "cannot add to key '%.*s': its value is not a decimal number, or the sum "
                         "does not fit 64 bits", shown(w->arg[0]), w->arg[0].data);
        return true;
    }
    struct store_bytes sum = {text, (uint32_t)snprintf(text, sizeof text, "%" PRId64, old)};
    if (write_value(w, w->arg[0], sum, nothing))
        answer(w, sum);
    return true;
}

static bool compare_set(struct work *w)
{
    const struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    struct store_bytes current = value_of(entry), expected = w->arg[1];
    bool there = current.data;
    if (!there && expected.size)
        answer(w, expected);
    else if (there && (current.size != expected.size || memcmp(current.data, expected.data, current.size)))
        answer(w, current);
    else if (write_value(w, w->arg[0], w->arg[2], nothing))
        answer(w, w->arg[2]);
    return true;
}

static bool append(struct work *w)
{
    if (write_value(w, w->arg[0], value_of(store_table_entry(w->t, w->arg[0], false)), w->arg[1]))
        answer_nothing(w);
    return true;
}

static bool delete(struct work *w)
{
    struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    bool there = entry && entry->value;
    if (there) {
        w->t->room += (int64_t)entry->key_size + entry->value_size + OVERHEAD;
        w->t->listed -= listed(entry);
        free(entry->value);
        entry->value = NULL;
        store_table_tidy(w->t, entry);
    }
    answer_number(w, there);
    return true;
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

static bool wait(struct work *w)
{
    bool there = all_there(w);
    if (there)
        answer_nothing(w);
    return there;
}

static bool check(struct work *w)
{
    answer_number(w, all_there(w));
    return true;
}

static bool num_keys(struct work *w)
{
    answer_number(w, (int64_t)w->t->listed);
    return true;
}

static bool list_keys(struct work *w)
{
    uint32_t index = 0;
    store_frame_begin(w->answer, STORE_OK, 0, (uint32_t)w->t->listed);
    for (size_t row = 0; row <= w->t->mask; row++)
        for (struct store_entry *entry = w->t->rows[row]; entry; entry = entry->next)
            if (entry->value && listed(entry))
                store_frame_put(w->answer, index++, entry->key, entry->key_size);
    store_frame_end(w->answer);
    return true;
}

static bool push(struct work *w)
{
    struct store_bytes key = w->arg[0], value = w->arg[1];
    int64_t grows = (int64_t)key.size + value.size + OVERHEAD;
    if (!fits(w, key, value.size, grows))
        return true;
    struct store_item *item = malloc(sizeof *item + value.size);
    struct store_entry *entry = item ? store_table_entry(w->t, key, true) : NULL;
    if (!entry) {
        free(item);
        no_memory(w);
        return true;
    }
    item->next = NULL;
    item->size = value.size;
    memcpy(item->data, value.data, value.size);
    *(entry->head ? &entry->tail->next : &entry->head) = item;
    entry->tail = item;
    entry->queued++;
    w->t->room -= grows;
    answer_nothing(w);
    return true;
}

static bool pop(struct work *w)
{
    struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    struct store_item *item = entry ? entry->head : NULL;
    if (!item) {
        w->missing = w->arg[0];
        return false;
    }
    answer(w, (struct store_bytes){item->data, item->size});
    if (w->answer->failed)
        return true; /* it stays */
    entry->head = item->next;
    entry->queued--;
    w->t->room += (int64_t)entry->key_size + item->size + OVERHEAD;
    free(item);
    store_table_tidy(w->t, entry);
    return true;
}

static bool queue_len(struct work *w)
{
    const struct store_entry *entry = store_table_entry(w->t, w->arg[0], false);
    answer_number(w, entry ? entry->queued : 0);
    return true;
}

#define ANY 255
static const struct {
    bool (*handle)(struct work *w); /* false: w->missing has to come first */
    uint8_t strings;
} handlers[STORE_OPS] = {
    {set, ANY}, {get, ANY}, {add, 2}, {compare_set, 3}, {append, 2}, {delete, 1}, {wait, ANY}, {check, ANY},
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
    bool waits = !handlers[op].handle(&w);
    *missing = w.missing;
    if (!waits && answer_to->failed)
        store_frame_text(answer_to, STORE_OVER_QUOTA, "the answer is larger than %lld bytes, or memory ran out", STORE_MAX_FRAME);
    return waits;
}

bool store_table_brings(const struct store_frame *request, uint32_t *every)
{
    int op = request->code & ~STORE_POSTED;
    *every = op == STORE_SET ? 2 : UINT32_MAX;
    return op == STORE_SET || op == STORE_ADD || op == STORE_COMPARE_SET || op == STORE_APPEND || op == STORE_PUSH;
}
