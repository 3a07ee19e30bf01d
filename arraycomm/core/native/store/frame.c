/* Frames: see store.h for the format. */
#include "store.h"
#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t get32(const char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static void put32(char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

int64_t store_frame_size(const char *start, size_t have)
{
    if (have < 4)
        return 0;
    int64_t size = 4 + (int64_t)get32(start);
    return size < STORE_HEAD || size > STORE_MAX_FRAME ? -1 : size;
}

bool store_frame_parse(struct store_frame *frame, const char *data, size_t size)
{
    if (size < STORE_HEAD || (size_t)get32(data) + 4 != size)
        return false;
    *frame = (struct store_frame){.code = (uint8_t)data[4], .milliseconds = get32(data + 5), .count = get32(data + 9),
                                  .lengths = data + STORE_HEAD};
    uint64_t total = STORE_HEAD + 4 * (uint64_t)frame->count;
    if (total > size)
        return false;
    frame->strings = data + total;
    for (uint32_t i = 0; i < frame->count; i++)
        total += get32(frame->lengths + 4 * (size_t)i);
    return total == size;
}

struct store_cursor store_frame_strings(const struct store_frame *frame)
{
    return (struct store_cursor){frame, 0, frame->strings};
}

bool store_frame_next(struct store_cursor *cursor, struct store_bytes *out)
{
    if (cursor->index == cursor->frame->count)
        return false;
    *out = (struct store_bytes){cursor->at, get32(cursor->frame->lengths + 4 * (size_t)cursor->index++)};
    cursor->at += out->size;
    return true;
}

struct store_bytes store_frame_first(const struct store_frame *frame)
{
    struct store_bytes first = {"", 0};
    struct store_cursor cursor = store_frame_strings(frame);
    store_frame_next(&cursor, &first);
    return first;
}

bool store_buffer_reserve(struct store_buffer *b, size_t more)
{
    size_t need = b->size + more;
    if (!b->failed)
        b->failed = b->large = need > STORE_MAX_FRAME; /* a request may name one large value many times */
    if (b->failed)
        return false;
    if (need <= b->room)
        return true;
    size_t room = need < 256 ? 256 : need + need / 2;
    char *data = realloc(b->data, room);
    if (!data)
        return !(b->failed = true);
    b->data = data;
    b->room = room;
    return true;
}

bool store_buffer_append(struct store_buffer *b, const char *data, size_t size)
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

void store_frame_begin(struct store_buffer *b, int code, uint32_t milliseconds, uint32_t count)
{
    b->size = 0;
    b->failed = false;
    size_t head = STORE_HEAD + 4 * (size_t)count;
    if (!store_buffer_reserve(b, head))
        return;
    b->data[4] = (char)code;
    put32(b->data + 5, milliseconds);
    put32(b->data + 9, count);
    b->size = head;
}

void store_frame_put(struct store_buffer *b, uint32_t index, const char *data, size_t size)
{
    if (store_buffer_append(b, data, size))
        put32(b->data + STORE_HEAD + 4 * (size_t)index, (uint32_t)size);
}

void store_frame_end(struct store_buffer *b)
{
    if (!b->failed)
        put32(b->data, (uint32_t)(b->size - 4));
}

void store_frame_text(struct store_buffer *b, int code, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    store_frame_begin(b, code, 0, 1);
    store_frame_put(b, 0, text, size < (int)sizeof text ? (size_t)size : sizeof text - 1);
    store_frame_end(b);
}
