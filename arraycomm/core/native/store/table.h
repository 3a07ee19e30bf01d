/* Inside a store's table: for store/table.c (its entries) and store/requests.c (what is asked of it). */
#ifndef STORE_TABLE_H
#define STORE_TABLE_H
#include "store.h"

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
static inline bool store_listed(const struct store_entry *entry)
{
    return !entry->key_size || entry->key[0];
}
#endif
