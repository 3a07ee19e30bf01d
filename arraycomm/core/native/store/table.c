/* The data of a store: a hash table of entries, each with a value, a queue, or somebody who waits for one. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "store.h"

#define FIRST_ROWS 64
#define PRIME ((1ull << 61) - 1)
#define WORD 7 /* bytes that are a number below it */

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
