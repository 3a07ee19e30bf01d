/* engine: stream.c */
/* The stores of long contents over MPI are those that cost writer and reader least together, whatever each of them finds alone. */
#include <stdlib.h>
#include <string.h>
#include "../../backends/mpi/engine/mpi_lanes_stores.c"
#include "check.h"

#define BYTES ((uint64_t)64 << 10)
#define DEAR 50000000 /* ns: what a reader says, beside which what the writer takes is nothing */

static char *from, *to;
static struct lane_memory *memory;
static struct mpi_lane *lane;

static void begin(void)
{
    memset(memory, 0, sizeof *memory);
    memset(lane, 0, sizeof *lane);
    lane->to_memory = lane->from_memory = memory;
}

/* A message in two pieces; its reader says that stores past the caches cost it so much, or ordinary ones. Its way. */
static int pass(uint32_t dear_past, uint32_t dear_kept)
{
    static uint32_t number;
    struct mpi_op sent = {.bytes = BYTES}, got = {.bytes = BYTES};
    memset(from, (int)++number, BYTES);
    lane_choose_stores(lane, &sent, false);
    uint64_t told = atomic_load(&memory->told);
    got.trial = sent.trial;
    for (uint64_t at = 0; at < BYTES; at += BYTES / 2) {
        bool last = at + BYTES / 2 == BYTES;
        lane_write(lane, &sent, memory->contents + at, from + at, BYTES / 2, last);
        lane_copy_out(lane, &got, to + at, memory->contents + at, BYTES / 2, last);
        CHECK((atomic_load(&memory->told) != told) == (last && sent.trial));
    }
    CHECK(!memcmp(from, to, BYTES));
    if (sent.trial) {
        CHECK_EQUAL(atomic_load(&memory->told) >> 32, sent.trial);
        CHECK(atomic_load(&memory->told) << 32 && lane->trial.ns > 0); /* both took their time */
        atomic_store(&memory->told, (uint64_t)sent.trial << 32 | (lane->way == PAST ? dear_past : dear_kept));
    }
    return lane->way;
}

/* Once known, the dear way is taken for a try now and then. */
static void the_reader_counts(void)
{
    for (int dear = KEPT; dear <= PAST; dear++) {
        int ways[WAYS] = {0}, per_try = (int)(CHOICE_TRY / BYTES);
        begin();
        for (int i = 0; i < WAYS * CHOICE_LEARN * per_try + 2; i++)
            ways[pass(dear == PAST ? DEAR : 0, dear == KEPT ? DEAR : 0)]++;
        CHECK(ways[KEPT] >= CHOICE_FIRST * per_try && ways[PAST] >= CHOICE_FIRST * per_try);
        int before = ways[dear];
        for (int i = 0; i < CHOICE_AGAIN * per_try; i++)
            ways[pass(dear == PAST ? DEAR : 0, dear == KEPT ? DEAR : 0)]++;
        CHECK(ways[dear] - before <= 2 * per_try);
        CHECK_EQUAL(ways[KEPT] + ways[PAST], (WAYS * CHOICE_LEARN + CHOICE_AGAIN) * per_try + 2);
    }
}

/* The contents were of another length than their receive, or nobody takes them: its trial is not waited for without end. */
static void what_nobody_reads_is_given_up(void)
{
    int trials = 0;
    begin();
    for (int i = 0; i < 10 * (int)(CHOICE_TRY / BYTES); i++) {
        struct mpi_op op = {.bytes = BYTES};
        lane_choose_stores(lane, &op, false);
        trials += op.trial != 0;
        CHECK_EQUAL(op.trial, op.trial ? trials : 0);
    }
    CHECK(trials >= 4 && trials <= 10 * (int)(CHOICE_TRY / BYTES) / PATIENCE);
    int way = lane->way;
    for (int i = 0; i < 2 * PATIENCE + 2 * (int)(CHOICE_TRY / BYTES); i++)
        way |= 2 << pass(0, 0);
    CHECK_EQUAL(way & 6, 6); /* it learns from the first one that somebody reads */
}

/* Nor are readers asked about short contents, or among more ranks than cores. */
static void others_are_no_trials(void)
{
    begin();
    for (int i = 0; i < 5000; i++) {
        struct mpi_op brief = {.bytes = STREAM_MIN - 1, .trial = 7}, long_one = {.bytes = BYTES, .trial = 7};
        lane_choose_stores(lane, &brief, false);
        CHECK(!brief.trial && lane->way == KEPT);
        lane_choose_stores(lane, &long_one, true);
        lane_write(lane, &long_one, to, from, BYTES, true);
        CHECK(!long_one.trial && !memcmp(to, from, BYTES));
    }
}

int main(void)
{
    from = malloc(BYTES), to = malloc(BYTES), lane = malloc(sizeof *lane);
    memory = aligned_alloc(4096, sizeof *memory + BYTES);
    TEST(the_reader_counts);
    TEST(what_nobody_reads_is_given_up);
    TEST(others_are_no_trials);
    free(from), free(to), free(lane), free(memory);
    return CHECK_RESULT();
}
