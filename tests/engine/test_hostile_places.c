/* engine: all */
/* A rank that says of contents of any length that they lie in a cell, or beyond its area: the others read and write inside the
 * mapping. Where a rank's own contents lie it knows by itself, whatever stands where the others may write. */
#include "collectives/shared/rounds.h"
#include "group/group.h"
#define PIECE (1 << 20) /* longer than a cell */
#include "group/shared/region.h"
#include "shared_world.h"

static const uint32_t PLACES[] = {REGION_CELL, REGION_CELL + 1, REGION_CELL + 2, UINT32_MAX, REGION_CELL - 1, INT32_MAX, 1u << 14, SHARED_SHORTS};
static const size_t LENGTHS[] = {1, SHARED_TINY, SHARED_TINY + 1, SHARED_SHORT, SHARED_SHORT + 1, SHARED_CELL - 1, SHARED_CELL,
                                 SHARED_CELL + 1, PIECE - 1, PIECE};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static void say(const struct shared *s, int rank, uint32_t place)
{
    for (uint64_t round = 1; round <= SHARED_SLOTS; round++)
        slot_of(s, rank, round)->place = (struct shared_place){place, place};
}

static int look(acomm_group *g, int rank, int n)
{
    const struct shared *s = &g->shared;
    const char *start = (const char *)region_of(s, 0), *end = start + n * s->region_bytes;
    const char *own[COUNT(LENGTHS)];
    if (RUN_BARRIER(g))
        return 1;
    for (size_t i = 0; i < COUNT(LENGTHS); i++)
        own[i] = shared_data(s, rank, 1, LENGTHS[i]);
    for (size_t at = 0; at < COUNT(PLACES); at++) {
        if (RUN_BARRIER(g))
            return 1;
        if (rank == n - 1)
            for (int victim = 0; victim < n; victim++)
                say(s, victim, PLACES[at]);
        for (size_t i = 0; i < COUNT(LENGTHS); i++)
            for (int peer = 0; peer < n; peer++) {
                const char *data = shared_data(s, peer, 1, LENGTHS[i]);
                CHECK_MESSAGE(data >= start && data + LENGTHS[i] <= end, "place %u: %zu bytes of rank %d lie outside", PLACES[at],
                              LENGTHS[i], peer);
                CHECK_MESSAGE(peer != rank || data == own[i], "place %u: another one moves %zu bytes of ours", PLACES[at], LENGTHS[i]);
            }
    }
    return 0;
}

static void places_that_cannot_be(void)
{
    for (int n = 2; n <= 4; n++)
        run(n, look, 0);
}

/* All the while one rank says so, the others gather and reduce. */
static int forge(acomm_group *g, int rank, int n)
{
    static _Atomic int done;
    uint64_t count = PIECE / sizeof(int32_t);
    int32_t *in = calloc(count, sizeof *in), *out = calloc(count * (uint64_t)n, sizeof *out);
    int turns = 0;
    for (; turns < 20; turns++) {
        if (rank == n - 1)
            say(&g->shared, rank, PLACES[(size_t)turns % COUNT(PLACES)]);
        if (RUN(g, ACOMM_GATHER, 0, .in = in, .out = out, .count = count) || RUN_BARRIER(g))
            break;
    }
    free(in);
    free(out);
    done += 1;
    return 0; /* values may be wrong, or a call be taken for another one; nothing outside was touched */
}

static void contents_of_a_rank_that_lies(void)
{
    run(2, forge, 0);
    run(3, forge, 0);
}

int main(void)
{
    TEST(places_that_cannot_be);
    TEST(contents_of_a_rank_that_lies);
    return 0;
}
