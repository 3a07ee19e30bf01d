/* engine: memory/stream.c; also -O3 */
/* Copies by all ways of storing: what arrives, and that nothing beside it is touched. */
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "memory/stream.h"

#define ROOM ((size_t)6 << 20) /* more than is written past the caches until ordinary stores are tried again */
#define EDGE 64

static char *from, *to;

static void prepare(size_t bytes)
{
    memset(to, 0x55, ROOM + 2 * EDGE);
    for (size_t i = 0; i < bytes + EDGE; i++)
        from[i] = (char)(i * 131 + i / 4096);
}

static void check(const char *written, const char *source, size_t bytes)
{
    CHECK(!memcmp(written, source, bytes));
    for (const char *c = written < to + EDGE ? to : written - EDGE; c < written; c++)
        CHECK_EQUAL(*c, 0x55);
    for (size_t i = 0; i < EDGE; i++)
        CHECK_EQUAL(written[bytes + i], 0x55);
}

static void fill(bool past, size_t bytes, size_t shift)
{
    struct stream_path way = {.past = past};
    prepare(bytes);
    stream_fill(&way, to + shift, from + shift / 2, bytes);
    check(to + shift, from + shift / 2, bytes);
}

static void every_way_writes_the_same(void)
{
    static const size_t BYTES[] = {0, 1, 63, 1000, 1023, 1024, 3071, 4095, 4096, 4097, 65535, 65536, 65537, 200001, ROOM - EDGE};
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES; i++)
        for (size_t shift = 0; shift < EDGE; shift += 21)
            for (int past = 0; past < 2; past++)
                fill(past, BYTES[i], shift);
}

/* Many small pieces: the looks at the clock fall anywhere. */
static void pieces_that_follow_each_other(void)
{
    for (int past = 0; past < 2; past++) {
        struct stream_path way = {.past = past};
        prepare(ROOM - EDGE);
        size_t at = 0;
        for (size_t piece = 1; at + piece <= ROOM - EDGE; at += piece, piece = piece * 3 % 50021 + 1)
            stream_fill(&way, to + at, from + at, piece);
        check(to, from, at);
    }
}

/* Four bytes take as long as a look at the clock: that says nothing about the cores. */
static void few_bytes_are_not_judged(void)
{
    struct stream_path way = {.bytes = ROOM};
    prepare(16388);
    stream_fill(&way, to, from, 16388);
    CHECK(way.ordinary > 0); /* of the first 16384; the last four were no trial of the other stores */
    stream_fill(&way, to, from, 1023);
    CHECK(way.ordinary > 0);
    stream_fill(&way, to, from, 1024);
    CHECK(way.ordinary == 0);
    CHECK_EQUAL(way.bytes, 0);
}

/* Neither way is kept for good, however slow or fast it once looked. */
static void both_ways_are_tried_again(void)
{
    for (int past = 0; past < 2; past++) {
        struct stream_path way = {.past = past};
        prepare(ROOM - EDGE);
        stream_fill(&way, to, from, ROOM - EDGE);
        CHECK(way.bytes < ROOM / 2); /* since the trial */
        check(to, from, ROOM - EDGE);
    }
}

static void long_results(void)
{
    prepare(100000);
    stream_long(to + 3, from, 100000, STREAM_LONG);
    check(to + 3, from, 100000);
    prepare(100000);
    stream_long(to + 3, from, 100000, STREAM_LONG - 1);
    check(to + 3, from, 100000);
}

int main(void)
{
    from = malloc(ROOM + 2 * EDGE);
    to = malloc(ROOM + 2 * EDGE);
    CHECK(from && to);
    TEST(every_way_writes_the_same);
    TEST(pieces_that_follow_each_other);
    TEST(few_bytes_are_not_judged);
    TEST(both_ways_are_tried_again);
    TEST(long_results);
    free(from);
    free(to);
    return CHECK_RESULT();
}
