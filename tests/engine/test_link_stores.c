/* engine: link_shm.c bell.c stream.c */
/* How pieces are stored in a ring follows what the receiver measures. */
#include <stdlib.h>
#include <string.h>
#include "acomm.h"
#include "check.h"
#include "choice.h"
#include "link.h"

#define RING ((size_t)64 << 10)
#define BYTES ((size_t)4 << 10) /* one piece */
#define PIECES 128
#define A_TRY ((int)(CHOICE_TRY / BYTES)) /* messages */
#define LEARNT (CHOICE_LEARN * A_TRY)

static struct link *out, *in;
static struct link_ring *ring;
static uint64_t sent;

static void open_ring(void)
{
    size_t footprint = (link_shm_footprint(RING) + 4095) / 4096 * 4096;
    ring = aligned_alloc(4096, footprint);
    memset(ring, 0, footprint);
    out = link_shm_new(1, true, ring, RING, NULL, NULL);
    in = link_shm_new(0, false, ring, RING, NULL, NULL);
    sent = 0;
}

static void close_ring(void)
{
    out->ops->close(out);
    in->ops->close(in);
    free(ring);
}

/* Sends one piece and says whether it was stored past the caches, as its stamp tells. */
static bool pass(void)
{
    static char data[BYTES], back[BYTES];
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (char)(i * 7 + sent);
    out->row = in->row = BYTES;
    CHECK_EQUAL(out->ops->send(out, data, BYTES, false), BYTES);
    uint64_t stamp = *(uint64_t *)(void *)((char *)ring + 256 + 64 * (sent++ % PIECES));
    CHECK_EQUAL(stamp >> 30, sent);
    CHECK_EQUAL(in->ops->recv(in, back, BYTES), BYTES);
    CHECK(!memcmp(data, back, BYTES));
    return stamp >> 23 & 1;
}

/* Of 32 messages after both ways were tried, those stored past the caches, when the two take so many ns. */
static int stored_past(int64_t ordinary, int64_t past)
{
    int last = 0;
    open_ring();
    for (int i = 0; i < LEARNT + 32; i++) {
        bool how = pass();
        in->ops->took(in, BYTES, how ? past : ordinary);
        last += i >= LEARNT && how;
    }
    close_ring();
    return last;
}

static void the_cheaper_way_is_taken(void)
{
    CHECK(stored_past(1000, 5000) <= 1);
    CHECK(stored_past(5000, 1000) >= 31);
}

/* Cores move: what was cheap becomes dear, and the other way is found again. */
static void a_change_is_noticed(void)
{
    open_ring();
    for (int i = 0; i < LEARNT; i++)
        in->ops->took(in, BYTES, pass() ? 5000 : 1000);
    CHECK(!pass());
    in->ops->took(in, BYTES, 1000);
    int past = 0;
    for (int i = 0; i < 16 * A_TRY; i++) {
        bool how = pass();
        past += how;
        in->ops->took(in, BYTES, how ? 5000 : 50000);
    }
    CHECK(past > 8 * A_TRY);
    close_ring();
}

/* What is cheap for short rows need not be for long ones. */
static void sizes_learn_apart(void)
{
    open_ring();
    for (int i = 0; i < LEARNT; i++)
        in->ops->took(in, BYTES, pass() ? 1000 : 5000);
    CHECK(pass());
    out->row = in->row = 100 * BYTES;
    static char data[BYTES];
    CHECK_EQUAL(out->ops->send(out, data, BYTES, false), BYTES);
    uint64_t stamp = *(uint64_t *)(void *)((char *)ring + 256 + 64 * (sent % PIECES));
    CHECK(!(stamp >> 23 & 1));
    close_ring();
}

/* Both kinds in one measurement: it says nothing of either. */
static void mixed_pieces_teach_nothing(void)
{
    open_ring();
    for (int i = 0; i < LEARNT; i++)
        in->ops->took(in, BYTES, pass() ? 5000 : 1000);
    _Atomic uint64_t *wish = (_Atomic uint64_t *)(void *)((char *)ring + 128); /* the receiver's */
    *wish = UINT64_MAX;
    CHECK(pass());
    *wish = 0;
    CHECK(!pass());
    in->ops->took(in, BYTES, 1);
    int past = 0;
    for (int i = 0; i < 64; i++) {
        bool how = pass();
        past += how;
        in->ops->took(in, BYTES, how ? 5000 : 1000);
    }
    CHECK(past <= 1);
    close_ring();
}

int main(void)
{
    TEST(the_cheaper_way_is_taken);
    TEST(a_change_is_noticed);
    TEST(sizes_learn_apart);
    TEST(mixed_pieces_teach_nothing);
    return CHECK_RESULT();
}
