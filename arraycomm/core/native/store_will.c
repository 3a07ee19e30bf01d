/* Last wills: what the server writes when a client's connection ends. One per name; the last client that gave it owns it. */
#include <stdlib.h>
#include <string.h>
#include "store.h"

#define MAX_WILLS (64 << 10) /* bytes of one client's */

struct store_will {
    struct store_will *next;
    const void *owner;
    struct store_buffer frame; /* as it came: name, key, value, key, value... */
};

static struct store_bytes first_string(const struct store_buffer *data)
{
    struct store_frame frame;
    struct store_bytes name = {NULL, 0};
    store_frame_parse(&frame, data->data, data->size);
    struct store_cursor cursor = store_frame_strings(&frame);
    store_frame_next(&cursor, &name);
    return name;
}

static struct store_will **find(struct store_will **wills, struct store_bytes name)
{
    for (; *wills; wills = &(*wills)->next) {
        struct store_bytes other = first_string(&(*wills)->frame);
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

static bool record(struct store_will **wills, const void *owner, const char *data, size_t size)
{
    struct store_buffer frame = {0};
    struct store_frame parsed;
    if (!store_frame_parse(&parsed, data, size) || parsed.count % 2 == 0 || size + bytes_of(*wills, owner) > MAX_WILLS
        || !store_buffer_append(&frame, data, size))
        return false;
    struct store_will **old = find(wills, first_string(&frame)), *made = NULL;
    if (*old)
        remove_will(old);
    if (parsed.count > 1 && (made = malloc(sizeof *made))) {
        *made = (struct store_will){*wills, owner, frame};
        *wills = made;
        return true;
    }
    store_buffer_free(&frame);
    return parsed.count == 1;
}

void store_will_record(struct store_will **wills, const void *owner, const char *data, size_t size, struct store_buffer *answer)
{
    if (!record(wills, owner, data, size)) {
        store_frame_text(answer, STORE_BAD_REQUEST, "a will has a name, then keys and values; at most %d bytes", MAX_WILLS);
        return;
    }
    store_frame_begin(answer, STORE_OK, 0, 0);
    store_frame_end(answer);
}

bool store_will_entry(const struct store_buffer *will, uint32_t index, struct store_buffer *room, struct store_frame *request)
{
    struct store_frame frame;
    struct store_bytes key, value;
    if (!store_frame_parse(&frame, will->data, will->size) || 2 * (uint64_t)index + 2 >= frame.count)
        return false;
    struct store_cursor cursor = store_frame_strings(&frame);
    for (uint32_t i = 0; i < 2 * index + 2; i++) /* past the name, up to the key */
        store_frame_next(&cursor, &key);
    store_frame_next(&cursor, &value);
    store_frame_begin(room, STORE_COMPARE_SET, 0, 3);
    store_frame_put(room, 0, key.data, key.size);
    store_frame_put(room, 1, NULL, 0);
    store_frame_put(room, 2, value.data, value.size);
    store_frame_end(room);
    return !room->failed && store_frame_parse(request, room->data, room->size);
}

bool store_will_take(struct store_will **wills, const void *owner, struct store_buffer *frame)
{
    while (*wills && (*wills)->owner != owner)
        wills = &(*wills)->next;
    if (!*wills)
        return false;
    *frame = (*wills)->frame;
    (*wills)->frame = (struct store_buffer){0};
    remove_will(wills);
    return true;
}

void store_will_free(struct store_will *wills)
{
    while (wills)
        remove_will(&wills);
}
