/* Last wills: values that the server writes when a client's connection ends. One per name, owned by its last writer. */
#include <stdlib.h>
#include <string.h>
#include "store.h"

#define MAX_WILLS (64 << 10) /* bytes of one client's */

struct store_will {
    struct store_will *next;
    const void *owner; /* NULL: has disconnected */
    struct store_request request;
    char data[];       /* the request, as received */
};

static struct store_bytes name_of(struct store_will *will)
{
    will->request.at = will->request.first;
    return store_request_bytes(&will->request, will->data);
}

static struct store_will **find_will(struct store_will **wills, struct store_bytes name)
{
    for (; *wills; wills = &(*wills)->next) {
        struct store_bytes other = name_of(*wills);
        if ((*wills)->owner && other.size == name.size && !memcmp(other.data, name.data, name.size))
            break;
    }
    return wills;
}

static void remove_will(struct store_will **at)
{
    struct store_will *will = *at;
    *at = will->next;
    free(will);
}

static size_t bytes_of(const struct store_will *will, const void *owner)
{
    size_t size = 0;
    for (; will; will = will->next)
        size += will->owner == owner ? will->request.size : 0;
    return size;
}

static struct store_will *new_will(const void *owner, const struct store_request *r, const char *data)
{
    struct store_will *made = malloc(sizeof *made + r->size);
    if (!made)
        return NULL;
    *made = (struct store_will){.owner = owner, .request = *r};
    memcpy(made->data, data, r->size);
    return made;
}

void store_will_record(struct store_will **wills, const void *owner, struct store_request *r, const char *data)
{
    if (!r->times || r->size + bytes_of(*wills, owner) > MAX_WILLS) {
        store_request_fail(r, STORE_BAD_REQUEST, "a will has a name, then keys and values; at most %d bytes", MAX_WILLS);
        return;
    }
    struct store_will *made = r->times > 1 ? new_will(owner, r, data) : NULL;
    if (!made && r->times > 1) { /* the one before stays */
        store_request_no_memory(r);
        return;
    }
    r->at = r->first;
    struct store_will **old = find_will(wills, store_request_bytes(r, data));
    if (*old)
        remove_will(old);
    if (made) {
        made->next = *wills;
        *wills = made;
    }
}

bool store_will_due(struct store_will *wills, const void *owner)
{
    bool due = false;
    for (; wills; wills = wills->next)
        if (wills->owner == owner) {
            wills->owner = NULL;
            due = true;
        }
    return due;
}

static bool write_will(struct store_will *will, struct store_table *t)
{
    bool written = true;
    name_of(will);
    store_request_bytes(&will->request, will->data); /* of the name */
    for (int64_t i = 1; i < will->request.times; i++) {
        struct store_bytes key = store_request_bytes(&will->request, will->data);
        struct store_bytes value = store_request_bytes(&will->request, will->data);
        const struct store_entry *entry = store_table_entry(t, key, false);
        if (!entry || !entry->value)
            written &= store_table_write(t, &will->request, key, value, (struct store_bytes){"", 0});
    }
    return written;
}

bool store_will_execute(struct store_will **wills, struct store_table *t)
{
    bool all = true;
    while (*wills) {
        if (!(*wills)->owner && write_will(*wills, t)) {
            remove_will(wills);
            continue;
        }
        all &= (*wills)->owner != NULL;
        wills = &(*wills)->next;
    }
    return all;
}

void store_will_free(struct store_will *wills)
{
    while (wills)
        remove_will(&wills);
}
