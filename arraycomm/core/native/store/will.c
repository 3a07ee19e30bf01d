/* Last wills: what the server writes when a client's connection ends. One per name; the last client that gave it owns it. */
#include <stdlib.h>
#include <string.h>
#include "store.h"

#define MAX_WILLS (64 << 10) /* bytes of one client's */

struct store_will {
    struct store_will *next;
    const void *owner;         /* NULL: has gone */
    struct store_buffer frame; /* as it came: name, key, value, key, value... */
};

static struct store_will **store_will_find(struct store_will **wills, struct store_bytes name)
{
    for (; *wills; wills = &(*wills)->next) {
        if (!(*wills)->owner)
            continue;
        struct store_frame frame;
        store_frame_parse(&frame, (*wills)->frame.data, (*wills)->frame.size);
        struct store_bytes other = store_frame_first(&frame);
        if (other.size == name.size && !memcmp(other.data, name.data, name.size))
            break;
    }
    return wills;
}

static void remove_will(struct store_will **at)
{
    struct store_will *will = *at;
    *at = will->next;
    store_buffer_free(&will->frame);
    free(will);
}

static size_t bytes_of(const struct store_will *will, const void *owner)
{
    size_t size = 0;
    for (; will; will = will->next)
        size += will->owner == owner ? will->frame.size : 0;
    return size;
}

static bool may_be(const struct store_frame *frame)
{
    struct store_cursor cursor = store_frame_strings(frame);
    struct store_bytes string;
    bool fits = frame->count % 2;
    for (uint32_t i = 0; fits && store_frame_next(&cursor, &string); i++)
        fits = i % 2 == 0 || string.size <= STORE_MAX_KEY;
    return fits;
}

static struct store_will *new_will(const void *owner, const char *data, size_t size)
{
    struct store_will *made = calloc(1, sizeof *made);
    if (made && !store_buffer_append(&made->frame, data, size)) {
        free(made);
        return NULL;
    }
    if (made)
        made->owner = owner;
    return made;
}

void store_will_record(struct store_will **wills, const void *owner, const char *data, size_t size, struct store_buffer *answer)
{
    struct store_frame frame;
    if (!store_frame_parse(&frame, data, size) || !may_be(&frame) || size + bytes_of(*wills, owner) > MAX_WILLS) {
        store_frame_text(answer, STORE_BAD_REQUEST, "a will has a name, then keys of at most %u bytes and values; at most %d bytes",
                         STORE_MAX_KEY, MAX_WILLS);
        return;
    }
    store_frame_begin(answer, STORE_OK, 0, 0);
    bool told = store_buffer_reserve(answer, STORE_TOLD);
    struct store_will *made = told && frame.count > 1 ? new_will(owner, data, size) : NULL;
    if (!told || (!made && frame.count > 1)) { /* the one before stays */
        store_frame_text(answer, STORE_OVER_QUOTA, "the store's process is out of memory");
        return;
    }
    struct store_will **old = store_will_find(wills, store_frame_first(&frame));
    if (*old)
        remove_will(old);
    if (made) {
        made->next = *wills;
        *wills = made;
    }
    store_frame_end(answer);
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

bool store_will_execute(struct store_will **wills, store_leave *leave, void *server)
{
    bool all = true;
    while (*wills) {
        struct store_frame frame;
        struct store_bytes key, value;
        bool written = !(*wills)->owner && store_frame_parse(&frame, (*wills)->frame.data, (*wills)->frame.size);
        struct store_cursor cursor = store_frame_strings(&frame);
        bool due = written && store_frame_next(&cursor, &key); /* its name */
        while (due && store_frame_next(&cursor, &key) && store_frame_next(&cursor, &value))
            written &= leave(server, key, value);
        all &= !due || written;
        if (due && written)
            remove_will(wills);
        else
            wills = &(*wills)->next;
    }
    return all;
}

void store_will_free(struct store_will *wills)
{
    while (wills)
        remove_will(&wills);
}
