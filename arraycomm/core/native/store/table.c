/* The data of a store: a tree of entries, each with a value, a queue, or waiters for one. */
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include "store.h"

#define SHOWN 100 /* bytes of a key in an error's text */

bool store_buffer_reserve(struct store_buffer *b, size_t more)
{
    size_t need = b->size + more;
    if (b->failed || (b->failed = need > STORE_MAX_ANSWER)) /* a request may name one large value many times */
        return false;
    if (need <= b->room)
        return true;
    size_t room = need + need / 2;
    char *data = realloc(b->data, room);
    if (!data)
        return !(b->failed = true);
    b->data = data;
    b->room = room;
    return true;
}

bool store_buffer_append(struct store_buffer *b, const void *data, size_t size)
{
    if (!store_buffer_reserve(b, size))
        return false;
    if (size)
        memcpy(b->data + b->size, data, size);
    b->size += size;
    return true;
}

void store_buffer_free(struct store_buffer *b)
{
    free(b->data);
    *b = (struct store_buffer){0};
}

struct store_table *store_table_new(void)
{
    struct store_table *t = calloc(1, sizeof *t);
    if (t)
        t->room = STORE_MAX_TOTAL;
    return t;
}

static int compare_keys(const void *a, const void *b)
{
    const struct store_bytes *x = a, *y = b;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

struct store_entry *store_table_entry(struct store_table *t, struct store_bytes key, bool create)
{
    void *found = tfind(&key, &t->tree, compare_keys);
    if (found || !create)
        return found ? *(struct store_entry **)found : NULL;
    struct store_entry *made = calloc(1, sizeof *made + key.size);
    if (!made)
        return NULL;
    made->key = (struct store_bytes){memcpy(made->text, key.data, key.size), key.size};
    if (!tsearch(made, &t->tree, compare_keys)) {
        free(made);
        return NULL;
    }
    made->next = t->entries;
    made->link = &t->entries;
    if (made->next)
        made->next->link = &made->next;
    t->entries = made;
    return made;
}

static void remove_entry(struct store_table *t, struct store_entry *entry)
{
    tdelete(entry, &t->tree, compare_keys);
    *entry->link = entry->next;
    if (entry->next)
        entry->next->link = entry->link;
    for (struct store_item *item = entry->head, *next; item; item = next) {
        next = item->next;
        free(item);
    }
    free(entry->value);
    free(entry);
}

void store_table_tidy(struct store_table *t, struct store_entry *entry)
{
    if (!entry->value && !entry->head && !entry->waiters)
        remove_entry(t, entry);
}

void store_table_free(struct store_table *t)
{
    while (t->entries)
        remove_entry(t, t->entries);
    free(t);
}

/* ---- values, and quotas ---- */

bool store_entry_listed(const struct store_entry *entry)
{
    return entry->key.size && entry->key.data[0] == '/';
}

struct store_bytes store_key_shown(struct store_bytes key)
{
    if (key.size && key.data[0] == '/')
        key = (struct store_bytes){key.data + 1, key.size - 1};
    return (struct store_bytes){key.data, key.size < SHOWN ? key.size : SHOWN};
}

bool store_table_fits(struct store_table *t, struct store_request *r, struct store_bytes key, uint64_t value, int64_t grows)
{
    struct store_bytes name = store_key_shown(key);
    if (key.size > STORE_MAX_KEY + 1)
        store_request_fail(r, STORE_OVER_QUOTA, "a key of %zu bytes; the store takes at most %u", key.size - 1, STORE_MAX_KEY);
    else if (value > STORE_MAX_VALUE)
        store_request_fail(r, STORE_OVER_QUOTA, "a value of %" PRIu64 " bytes for key '%.*s'; the store takes at most %u: "
                           "move data with collectives, the store is for addresses and counters", value, (int)name.size,
                           name.data, STORE_MAX_VALUE);
    else if (grows > t->room)
        store_request_fail(r, STORE_OVER_QUOTA, "the store is full: %" PRId64 " bytes for key '%.*s' do not fit into the %" PRId64
                           " left of %lld; delete keys that are no longer needed", grows, (int)name.size, name.data, t->room,
                           STORE_MAX_TOTAL);
    else
        return true;
    return false;
}

void store_table_bring(struct store_table *t, struct store_entry *entry)
{
    t->brought |= entry->brought = entry->waiters > 0;
}

bool store_table_make(struct store_table *t, struct store_bytes key, struct store_bytes a, struct store_bytes b,
                      struct store_made *made)
{
    made->size = (uint32_t)(a.size + b.size);
    made->value = malloc((size_t)made->size + 1); /* never of 0 bytes: NULL says that there is no value */
    made->entry = made->value ? store_table_entry(t, key, true) : NULL;
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

void store_table_keep(struct store_table *t, const struct store_made *made)
{
    struct store_entry *entry = made->entry;
    t->room += entry->value ? (int64_t)entry->value_size : -(int64_t)entry->key.size - STORE_OVERHEAD;
    t->room -= made->size;
    t->listed += !entry->value && store_entry_listed(entry);
    free(entry->value); /* the new value may be a copy of it */
    entry->value = made->value;
    entry->value_size = made->size;
    store_table_bring(t, entry);
}

struct store_bytes store_entry_value(const struct store_entry *entry)
{
    return entry && entry->value ? (struct store_bytes){entry->value, entry->value_size} : (struct store_bytes){NULL, 0};
}

bool store_table_write(struct store_table *t, struct store_request *r, struct store_bytes key, struct store_bytes a,
                       struct store_bytes b)
{
    struct store_entry *entry = store_table_entry(t, key, false);
    bool fresh = !entry || !entry->value;
    size_t size = a.size + b.size;
    struct store_made made;
    int64_t grows = (int64_t)size + (fresh ? (int64_t)key.size + STORE_OVERHEAD : -(int64_t)entry->value_size);
    if (!store_table_fits(t, r, key, size, grows))
        return false;
    if (!store_table_make(t, key, a, b, &made)) {
        store_request_no_memory(r);
        return false;
    }
    store_table_keep(t, &made);
    return true;
}
