/* engine: memory/stream.c */
/* The stores into a ring are those that cost writer and reader least together, whatever each of them finds alone. */
#include <stdlib.h>
#include <string.h>
#include "memory/stores.c"
#include "check.h"

#define ROOM ((uint64_t)1 << 20)
#define PIECE ((uint64_t)16 << 10)
#define WHOLE ((uint64_t)64 << 10)
#define TRY (int)(CHOICE_TRY / PIECE) /* pieces */
#define DEAR 50000000 /* ns: what a reader says, beside which what the writer takes is nothing */

static char *from, *to, *ring;
static struct stores_talk talk;
static struct stores stores;
static struct stores_reader reader;
static uint64_t at;

static void begin(void)
{
    memset(&talk, 0, sizeof talk);
    memset(&stores, 0, sizeof stores);
    memset(&reader, 0, sizeof reader);
    at = 0;
}

/* Whether it was asked about. */
static bool put(uint64_t bytes)
{
    static unsigned number;
    uint64_t asked = atomic_load(&talk.asked);
    memset(from, (int)(++number % 255), bytes);
    stores_write(&stores, &talk, at, ring + at % ROOM, from, bytes, WHOLE);
    return atomic_load(&talk.asked) != asked;
}

static void get(uint64_t bytes, uint64_t step)
{
    for (uint64_t done = 0; done < bytes; done += step) {
        uint64_t part = bytes - done < step ? bytes - done : step;
        stores_read(&reader, &talk, at + done, to + done, ring + (at + done) % ROOM, part, WHOLE);
    }
    at += bytes;
}

/* The way of a piece that goes through the ring, of which its reader says that `dear` costs it so much. */
static int pass(int dear)
{
    bool asked = put(PIECE);
    uint64_t told = atomic_load(&talk.told);
    int way = stores_choice_of(&stores, WHOLE)->agreed;
    get(PIECE, PIECE / 2);
    CHECK(!memcmp(from, to, PIECE));
    CHECK_EQUAL(atomic_load(&talk.told) != told, asked);
    if (asked) {
        CHECK_EQUAL(atomic_load(&talk.told) >> HALF, atomic_load(&talk.asked) >> HALF);
        CHECK(atomic_load(&talk.told) << HALF && stores.trial.ns > 0); /* both took their time */
        atomic_store(&talk.told, atomic_load(&talk.told) >> HALF << HALF | (way == dear ? DEAR : 0));
    }
    return way;
}

/* Once known, the dear way is taken for a try now and then. */
static void the_reader_counts(void)
{
    for (int dear = 0; dear < ways(); dear++) {
        int taken[CHOICE_WAYS] = {0};
        begin();
        for (int i = 0; i < ways() * CHOICE_LEARN * TRY + 2; i++)
            taken[pass(dear)]++;
        for (int way = 0; way < ways(); way++)
            CHECK(taken[way] >= CHOICE_FIRST * TRY);
        int before = taken[dear];
        for (int i = 0; i < SELDOM * TRY; i++)
            taken[pass(dear)]++;
        CHECK_MESSAGE(taken[dear] > before && taken[dear] - before <= 2 * TRY, "%d tries of the dear way", (taken[dear] - before) / TRY);
    }
}

/* Cores may have moved since: each way has one try more, which is enough for the dear one. */
static void another_length_begins_with_what_is_known(void)
{
    int taken[CHOICE_WAYS] = {0}, shorter = choice_class(WHOLE / STREAM_MIN) - 1;
    begin();
    stores.choices[shorter].tries = CHOICE_KNOWN;
    for (int way = 0; way < ways(); way++)
        stores.choices[shorter].cost[way] = way == 1 ? 1e-6f : 10;
    for (int i = 0; i < 4 * ways() * TRY; i++)
        taken[pass(-1)]++;
    for (int way = 0; way < ways(); way++)
        CHECK(taken[way] >= TRY - 1);
    begin();
    stores.choices[shorter].tries = 1; /* too little to go by */
    stores.choices[shorter].cost[0] = 10;
    CHECK_EQUAL(stores_choice_of(&stores, WHOLE)->cost[0], 0);
}

/* Contents may be refused, or nobody takes them: their trial is not waited for without end. */
static void what_nobody_reads_is_given_up(void)
{
    int asked = 0, taken = 0;
    begin();
    for (int i = 0; i < 10 * TRY; i++) {
        asked += put(PIECE);
        at += PIECE;
    }
    CHECK(asked >= 4 && asked <= 10 * TRY / PATIENCE);
    for (int i = 0; i < 2 * PATIENCE + ways() * TRY; i++)
        taken |= 1 << pass(-1);
    CHECK_EQUAL(taken, (1 << ways()) - 1); /* it learns from the first one that somebody reads */
}

/* Nor are readers asked about short pieces, or among more ranks than cores. */
static void others_are_no_trials(void)
{
    begin();
    for (int i = 0; i < 5000; i++) {
        CHECK(!put(STREAM_MIN - 1));
        get(STREAM_MIN - 1, PIECE);
        CHECK(!memcmp(from, to, STREAM_MIN - 1));
        stores_write(&stores, NULL, at, ring + at % ROOM, from, PIECE / 2, WHOLE);
        get(PIECE / 2, PIECE);
        CHECK(!memcmp(from, to, PIECE / 2));
        at = (at + PIECE) / PIECE * PIECE;
    }
    CHECK_EQUAL(atomic_load(&talk.asked) | atomic_load(&talk.told), 0);
}

/* By the time to write: past the caches, or by strings, where those are a way of their own; shorter ones by vectors. */
static void long_ones_among_more_ranks_than_cores(void)
{
    begin();
    for (int i = 0; i < 5; i++, at += PIECE) {
        memset(from, 1 + i, PIECE);
        stores_write(&stores, NULL, at, ring + at % ROOM, from, PIECE, STRINGS);
        CHECK(!memcmp(from, ring + at % ROOM, PIECE));
    }
    CHECK_EQUAL(stores.alone.near, stream_has_strings() ? STREAM_STRING : STREAM_KEPT);
    stores_write(&stores, NULL, at, ring + at % ROOM, from, PIECE, STRINGS - 1);
    CHECK_EQUAL(stores.alone.near, STREAM_KEPT);
    CHECK_EQUAL(stores.alone.bytes, 6 * PIECE);
}

/* Several pieces in one copy, of which one is asked about: it alone is timed, and told once all of it is out. */
static void several_pieces_at_once(void)
{
    int told = 0, asked = 0;
    begin();
    for (int i = 0; i < 40 * TRY; i += 4) {
        uint64_t before = atomic_load(&talk.told), start = at;
        for (int piece = 0; piece < 4; piece++, at += PIECE)
            asked += put(PIECE);
        at = start;
        memset(to, 0, 4 * PIECE);
        get(4 * PIECE, i % 3 ? 4 * PIECE : 5000);
        CHECK(!memcmp(to, ring + start % ROOM, 4 * PIECE));
        told += atomic_load(&talk.told) != before;
    }
    CHECK(asked > 40 && told == asked);
}

/* Whatever stands in the memory of both, contents are copied as they are. */
static void words_that_nobody_wrote(void)
{
    uint64_t words[] = {0, 1, PIECE, PIECE - 1, UINT32_MAX, (uint64_t)1 << HALF, (uint64_t)7 << HALF | 5, UINT64_MAX, UINT64_MAX - 4095};
    int n = sizeof words / sizeof *words;
    begin();
    for (int i = 0; i < n * n * n; i++) {
        put(PIECE);
        atomic_store(&talk.asked, words[i % n]);
        atomic_store(&talk.at, words[i / n % n] + (i % 2 ? at : 0));
        atomic_store(&talk.told, words[i / n / n]);
        memset(to, 0, PIECE);
        get(PIECE, 3000);
        CHECK(!memcmp(from, to, PIECE));
    }
}

/* Sources and targets that lie as strings are slow for, too. */
static void strings_anywhere(void)
{
    begin();
    for (int apart = -70; apart <= 70; apart++) {
        char *target = ring + 100 + apart;
        memset(ring, 0, PIECE + 200);
        for (uint64_t i = 0; i < PIECE; i++)
            from[i] = (char)(i * 7 + (uint64_t)apart);
        stream_store(STREAM_STRING, target, from, PIECE);
        CHECK(!memcmp(target, from, PIECE) && !target[-1] && !target[PIECE]);
    }
}

int main(void)
{
    from = malloc(4 * PIECE), to = malloc(4 * PIECE), ring = malloc(ROOM + 4 * PIECE);
    TEST(the_reader_counts);
    TEST(another_length_begins_with_what_is_known);
    TEST(what_nobody_reads_is_given_up);
    TEST(others_are_no_trials);
    TEST(long_ones_among_more_ranks_than_cores);
    TEST(several_pieces_at_once);
    TEST(words_that_nobody_wrote);
    TEST(strings_anywhere);
    free(from), free(to), free(ring);
    return CHECK_RESULT();
}
