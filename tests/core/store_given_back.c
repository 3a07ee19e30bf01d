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

/* A request of strings; with `times` it is said how often its fields come. */
static struct store_buffer request_of(int op, int64_t times, const char *key, const char *first, const char *second,
                                      const char *third)
{
    const char *strings[] = {key, first, second, third};
    struct store_buffer asked = {0};
    char code = (char)op;
    store_buffer_append(&asked, &code, 1);
    if (times)
        store_buffer_append(&asked, &times, sizeof times);
    for (int i = 0; i < 4 && strings[i]; i++) {
        uint64_t size = strlen(strings[i]);
        if (op != STORE_ADD || !i) /* the other one is a number as it is */
            store_buffer_append(&asked, &size, sizeof size);
        store_buffer_append(&asked, strings[i], size);
    }
    return asked;
}

static void apply(struct store_table *t, int op, const char *key, const char *first, const char *second)
{
    struct store_buffer asked = request_of(op, 0, key, first, second, NULL), told = {0};
    struct store_request request = {.member = true};
    struct store_bytes missing;
    check(store_request_read(&request, asked.data, asked.size) == 1 && request.size == asked.size, "a request of ours");
    check(store_request_run(t, &request, asked.data, &told, &missing) == STORE_DONE && told.data[0] == STORE_OK,
          "an answer in process");
    store_buffer_free(&asked);
    store_buffer_free(&told);
}

/* Keys that come and go, by every request that brings some, leave a table as empty and as small as it was, with as much room. */
static void nothing_stays(void)
{
    struct store_table *t = store_table_new();
    int64_t room = t->room;
    for (int i = 0; i < 300; i++) {
        char key[32];
        snprintf(key, sizeof key, "/%s%d", i % 2 ? "key" : "another key", i);
        apply(t, STORE_PUSH, key, "item", NULL);
        apply(t, STORE_PUSH, key, "a longer item", NULL);
        apply(t, STORE_SET, key, "value", NULL);
        apply(t, STORE_APPEND, key, "more", NULL);
        apply(t, STORE_SET, key, "", NULL);
        apply(t, STORE_COMPARE_SET, key, "", "12345");
        apply(t, STORE_ADD, key, "a number", NULL); /* of 8 bytes */
        apply(t, STORE_DELETE, key, NULL, NULL);
        apply(t, STORE_POP, key, NULL, NULL);
        apply(t, STORE_POP, key, NULL, NULL);
        check(!store_table_entry(t, (struct store_bytes){key, (uint32_t)strlen(key)}, false), "a key that was deleted is there");
    }
    check(t->room == room, "room that is not given back");
    check(!t->tree && !t->entries && !t->listed, "keys that are counted and are not there");
    store_table_free(t);
}

/* One that is due stands beside a new one of its name, until it is written. */
static void wills_of_one_name(void)
{
    struct store_table *t = store_table_new();
    struct store_will *wills = NULL;
    char owners[2];
    for (int i = 0; i < 2; i++) {
        struct store_buffer asked = request_of(STORE_WILL, 2, "name", "", i ? "new" : "old", "x");
        struct store_request request = {.member = true};
        check(store_request_read(&request, asked.data, asked.size) == 1, "a will of ours");
        store_will_record(&wills, &owners[i], &request, asked.data);
        check(!request.status, "a will that is not recorded");
        check(i || store_will_due(wills, &owners[0]), "a will that is not due");
        store_buffer_free(&asked);
    }
    struct store_bytes old = {"old", 3}, new = {"new", 3};
    check(store_will_execute(&wills, t) && store_table_entry(t, old, false), "a will that is not written");
    check(!store_table_entry(t, new, false), "another one is written");
    check(store_will_due(wills, &owners[1]) && store_will_execute(&wills, t) && store_table_entry(t, new, false), "it is lost");
    store_will_free(wills);
    store_table_free(t);
}

int given_back(void)
{
    nothing_stays();
    wills_of_one_name();
    return wrong;
}
