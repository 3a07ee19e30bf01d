/* A store's table and its wills, without a server: what keys that come and go leave behind, which is nothing. */
#include <stdio.h>
#include <string.h>
#include "store/store.h"

static int wrong;

static void check(bool good, const char *what)
{
    if (!good && ++wrong < 20)
        printf("given back: %s\n", what);
}

static struct store_buffer request_of(int op, const char *key, const char *first, const char *second)
{
    const char *strings[] = {key, first, second};
    uint32_t count = second ? 3 : first ? 2 : 1;
    struct store_buffer asked = {0};
    store_frame_begin(&asked, op, 0, count);
    for (uint32_t i = 0; i < count; i++)
        store_frame_put(&asked, i, strings[i], strlen(strings[i]));
    store_frame_end(&asked);
    return asked;
}

static void apply(struct store_table *t, int op, const char *key, const char *first, const char *second)
{
    struct store_buffer asked = request_of(op, key, first, second), told = {0};
    struct store_frame frame;
    struct store_bytes missing;
    check(store_frame_parse(&frame, asked.data, asked.size), "a frame of ours");
    check(!store_table_apply(t, &frame, &told, &missing) && told.data[4] == STORE_OK, "an answer in process");
    store_buffer_free(&asked);
    store_buffer_free(&told);
}

/* Keys that come and go, by every request that brings some, leave a table as empty and as small as it was, with as much room. */
static void nothing_stays(void)
{
    struct store_table *t = store_table_new();
    int64_t room = t->room;
    size_t mask = t->mask;
    for (int i = 0; i < 300; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s%d", i % 2 ? "key" : "another key", i);
        apply(t, STORE_PUSH, key, "item", NULL);
        apply(t, STORE_PUSH, key, "a longer item", NULL);
        apply(t, STORE_SET, key, "value", NULL);
        apply(t, STORE_APPEND, key, "more", NULL);
        apply(t, STORE_SET, key, "", NULL);
        apply(t, STORE_COMPARE_SET, key, "", "12345");
        apply(t, STORE_ADD, key, "99999999", NULL);
        apply(t, STORE_DELETE, key, NULL, NULL);
        apply(t, STORE_POP, key, NULL, NULL);
        apply(t, STORE_POP, key, NULL, NULL);
        check(!store_table_entry(t, (struct store_bytes){key, (uint32_t)strlen(key)}, false), "a key that was deleted is there");
    }
    check(t->room == room, "room that is not given back");
    check(!t->count && !t->listed, "keys that are counted and are not there");
    check(t->mask == mask, "a table that grows though nothing is in it");
    store_table_free(t);
}

static bool leave(void *told, struct store_bytes key, struct store_bytes value)
{
    strncat(told, key.data, key.size);
    return value.size == 1;
}

/* One that is due stands beside a new one of its name, until it is written. */
static void wills_of_one_name(void)
{
    struct store_will *wills = NULL;
    char told[16] = "", owners[2];
    for (int i = 0; i < 2; i++) {
        struct store_buffer asked = request_of(STORE_WILL, "name", i ? "new " : "old ", "x"), answered = {0};
        store_will_record(&wills, &owners[i], asked.data, asked.size, &answered);
        check(answered.data[4] == STORE_OK && (i || store_will_due(wills, &owners[0])), "a will that is not recorded");
        store_buffer_free(&asked);
        store_buffer_free(&answered);
    }
    check(store_will_execute(&wills, leave, told) && !strcmp(told, "old "), "another one is written");
    check(store_will_due(wills, &owners[1]) && store_will_execute(&wills, leave, told) && !strcmp(told, "old new "), "it is lost");
    store_will_free(wills);
}

int given_back(void)
{
    nothing_stays();
    wills_of_one_name();
    return wrong;
}
