/* engine: memory/bounce.c memory/stream.c */
/* What the kernel's copy stumbles over goes by way of the cache; what it does not goes straight; and all of it arrives. */
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "base/clock.h"
#include "memory/bounce.h"
#include "memory/stream.h"

#define PAGE 4096u
#define SIZE ((size_t)1 << 20)

enum { QUICK = 100, SLOW = 400 }; /* us of a piece */

static struct bounce bounce;
static char *array;

static enum bounce_way piece(const char *to, int us)
{
    enum bounce_way way = bounce_way(&bounce, to);
    bounce_learn(&bounce, BOUNCE_PIECE, us * INT64_C(1000));
    bounce.received += BOUNCE_PIECE;
    return way;
}

/* An array that goes on where the last one ended, in pieces of us each: how many go around. */
static int pieces(const char *to, int straight, int around, int count)
{
    int found = 0;
    for (int i = 0; i < count; i++) {
        enum bounce_way way = bounce_way(&bounce, to + (size_t)i * BOUNCE_PIECE);
        bool bounces = way == BOUNCE_TRY_AROUND || way == BOUNCE_AROUND;
        found += bounces;
        piece(to + (size_t)i * BOUNCE_PIECE, bounces ? around : straight);
    }
    return found;
}

static void begin(void)
{
    memset(&bounce, 0, sizeof bounce);
    pieces(array, QUICK, QUICK, 3); /* one of either way, and what is kept to */
}

static void what_is_quick_goes_straight(void)
{
    memset(&bounce, 0, sizeof bounce);
    CHECK_EQUAL(piece(array, QUICK), BOUNCE_TRY_STRAIGHT);
    CHECK_EQUAL(piece(array + BOUNCE_PIECE, QUICK), BOUNCE_TRY_AROUND); /* nothing to compare with yet */
    CHECK_EQUAL(pieces(array + 2 * BOUNCE_PIECE, QUICK, QUICK, 10), 0);
    CHECK_EQUAL(pieces(array + 20 * BOUNCE_PIECE + 4, QUICK, QUICK, 10), 0);
}

static void what_stumbles_goes_around(void)
{
    begin();
    CHECK_EQUAL(pieces(array + 4, SLOW, QUICK, 10), 9); /* all but the first */
    CHECK_EQUAL(pieces(array + 4 + 10 * BOUNCE_PIECE, SLOW, QUICK, 10), 10); /* the same track */
    CHECK_EQUAL(pieces(array + 8, QUICK, QUICK, 10), 0);
    CHECK_EQUAL(pieces(array + 4, SLOW, QUICK, 10), 9);
}

/* A whole stream may be slower for a while. */
static void what_is_slow_either_way_goes_straight(void)
{
    begin();
    CHECK_EQUAL(pieces(array + 4, SLOW, SLOW, 10), 1);
    CHECK_EQUAL(pieces(array + 8, SLOW, SLOW * 3 / 4, 10), 1);
    CHECK_EQUAL(pieces(array + 12, SLOW, SLOW / 2, 10), 9);
}

/* What lay badly need not do so for ever. */
static void the_straight_way_is_tried_again(void)
{
    begin();
    CHECK_EQUAL(pieces(array + 4, SLOW, QUICK, 2 + BOUNCE_TURNS), 1 + BOUNCE_TURNS);
    CHECK_EQUAL(pieces(array + 4 + (2 + BOUNCE_TURNS) * BOUNCE_PIECE, QUICK, QUICK, 10), 0);
}

/* ---- a kernel whose stream lies `from` bytes into a page ---- */

struct kernel {
    uint64_t from, given;
    int strayed; /* calls whose target was not the array */
    unsigned seed;
};

static char byte_of(uint64_t at) { return (char)(at * 7 + at / 251); }

static ssize_t give(void *stream, char *to, size_t bytes)
{
    struct kernel *k = stream;
    unsigned draw = (unsigned)rand_r(&k->seed);
    size_t n = draw % 5 == 0 ? 0 : draw % 5 == 1 ? bytes / 2 : bytes; /* less than asked for, as sockets do */
    bool stumbles = ((uintptr_t)to - (k->from + k->given) - 1) % PAGE < 15;
    for (size_t i = 0; i < n; i++)
        to[i] = byte_of(k->given + i);
    int64_t until = clock_now() + (int64_t)n * (stumbles ? 16 : 1); /* beside it what filling takes is little */
    while (stumbles && clock_now() < until)
        ;
    k->strayed += to < array || to >= array + 2 * SIZE;
    k->given += n;
    return (ssize_t)n;
}

/* Arrays of all places in their pages and lengths arrive whole, and nothing beside them changes. */
static void all_of_it_arrives(void)
{
    struct kernel k = {.from = 1000, .seed = 5};
    memset(&bounce, 0, sizeof bounce);
    for (int turn = 0; turn < 60; turn++) {
        size_t bytes = 1 + (size_t)rand_r(&k.seed) % (turn % 3 ? SIZE : 3 * BOUNCE_LEAST), done = 0;
        uint64_t before = k.given;
        size_t place = turn % 2 ? (size_t)rand_r(&k.seed) % PAGE : (size_t)(k.from + k.given - (uintptr_t)array + 1 + (size_t)turn % 15) % PAGE;
        char *to = array + PAGE + place;
        to[-1] = to[bytes] = 99;
        while (done < bytes) {
            ssize_t n = bounce_receive(&bounce, give, &k, to + done, bytes - done);
            CHECK(n >= 0 && (size_t)n <= bytes - done);
            done += (size_t)n;
        }
        bool right = to[-1] == 99 && to[bytes] == 99;
        for (size_t i = 0; i < bytes; i++)
            right &= to[i] == byte_of(before + i);
        CHECK(right);
    }
    CHECK_EQUAL(bounce.received, k.given);
    CHECK((k.strayed > 0) == stream_has_strings());
}

static ssize_t fails(void *stream, char *to, size_t bytes)
{
    (void)to, (void)bytes;
    return *(ssize_t *)stream;
}

static void failures_are_told(void)
{
    for (ssize_t says = -9; says <= 0; says += 9) {
        memset(&bounce, 0, sizeof bounce);
        for (int way = BOUNCE_TRY_STRAIGHT; way <= BOUNCE_AROUND; way++) {
            bounce.way = (enum bounce_way)way;
            CHECK_EQUAL(bounce_receive(&bounce, fails, &says, array, SIZE), says);
            CHECK_EQUAL(bounce.received, 0);
        }
    }
}

int main(void)
{
    array = aligned_alloc(PAGE, 2 * SIZE + 2 * PAGE);
    TEST(what_is_quick_goes_straight);
    TEST(what_stumbles_goes_around);
    TEST(what_is_slow_either_way_goes_straight);
    TEST(the_straight_way_is_tried_again);
    TEST(all_of_it_arrives);
    TEST(failures_are_told);
    free(array);
    return CHECK_RESULT();
}
