/* engine: link/shm.c base/doorbell.c memory/stream.c */
/* Messages between two ends that lie where those of the other way lay. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "acomm.h"
#include "check.h"
#include "link/link.h"

#define RING ((size_t)64 << 10)
#define CELL (RING / 8)          /* bytes behind each ring */
#define MOST ((size_t)20 << 10)
enum { NONE, OURS, THEIRS };     /* what a stamp says of a piece: link/shm.c */

/* Both ends, the ring that each sends through, and how many pieces went through that. */
struct pair { struct link *out[2], *in[2]; char *ring[2]; uint64_t pieces[2]; };

static _Alignas(64) char source[MOST + 64], target[MOST + 64];

static struct pair open_pair(bool joined)
{
    struct pair p = {0};
    size_t footprint = (link_shm_footprint(RING) + 4095) / 4096 * 4096;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (char)(i * 31 + (i >> 8) * 7);
    for (int end = 0; end < 2; end++) {
        p.ring[end] = aligned_alloc(4096, footprint);
        memset(p.ring[end], 0, footprint);
        struct link_ring *ring = (struct link_ring *)(void *)p.ring[end];
        p.out[end] = link_shm_new(1 - end, true, ring, RING, NULL, NULL);
        p.in[1 - end] = link_shm_new(end, false, ring, RING, NULL, NULL);
    }
    for (int end = 0; joined && end < 2; end++)
        link_shm_join(p.out[end], p.in[end]);
    return p;
}

static void close_pair(struct pair p)
{
    for (int end = 0; end < 2; end++) {
        p.out[end]->ops->close(p.out[end]);
        p.in[end]->ops->close(p.in[end]);
        free(p.ring[end]);
    }
}

static uint64_t *stamp_of(const struct pair *p, int end, uint64_t piece)
{
    return (uint64_t *)(void *)(p->ring[end] + 256 + piece % 128 * 64);
}

/* A message from `end`: what its stamps say of where it lies, of all its pieces the same. */
static int send(struct pair *p, int end, size_t place, size_t bytes)
{
    p->out[end]->row = bytes;
    CHECK_EQUAL(p->out[end]->ops->frame(p->out[end], source, 40, source + place, bytes), 40 + bytes);
    int where = (int)(*stamp_of(p, end, p->pieces[end]) >> 16 & 3);
    for (; *stamp_of(p, end, p->pieces[end]) >> 36 == p->pieces[end] + 1; p->pieces[end]++)
        CHECK_EQUAL(*stamp_of(p, end, p->pieces[end]) >> 16 & 3, where);
    return where;
}

static void receive(struct pair *p, int end, size_t place, size_t bytes)
{
    struct link *in = p->in[end];
    in->row = in->whole = bytes;
    memset(target, 0, sizeof target);
    CHECK_EQUAL(in->ops->recv(in, target, 40), 40);
    for (size_t got = 0; got < bytes;) {
        ssize_t n = in->ops->recv(in, target + got, bytes - got);
        CHECK(n > 0);
        if (n <= 0)
            return;
        got += (size_t)n;
    }
    CHECK(!memcmp(target, source + place, bytes));
}

static const char *cell(const struct pair *p, int end)
{
    return p->ring[end] + link_shm_footprint(RING) - CELL;
}

static void answers_lie_where_questions_lay(void)
{
    struct pair p = open_pair(true);
    for (int turn = 0; turn < 300; turn++) {
        CHECK_EQUAL(send(&p, 0, (size_t)turn % 64, 5000), OURS);
        CHECK(!memcmp(cell(&p, 0), source + turn % 64, 5000));
        receive(&p, 1, (size_t)turn % 64, 5000);
        CHECK_EQUAL(send(&p, 1, 3, 700), THEIRS);
        CHECK(!memcmp(cell(&p, 0), source + 3, 700));
        receive(&p, 0, 3, 700);
    }
    close_pair(p);
}

/* Who has given its cell away, and got none, uses the ring; both may send before either receives. */
static void a_cell_is_used_by_one_at_a_time(void)
{
    struct pair p = open_pair(true);
    CHECK_EQUAL(send(&p, 0, 0, 1000), OURS);
    CHECK_EQUAL(send(&p, 0, 1, 1000), NONE);
    CHECK_EQUAL(send(&p, 1, 2, 1000), OURS);
    CHECK_EQUAL(send(&p, 1, 3, 1000), NONE);
    receive(&p, 1, 0, 1000);
    CHECK_EQUAL(send(&p, 1, 4, 1000), THEIRS);
    CHECK_EQUAL(send(&p, 1, 5, 1000), NONE);
    for (size_t i = 2; i < 6; i++)
        receive(&p, 0, i, 1000);
    receive(&p, 1, 1, 1000);
    CHECK_EQUAL(send(&p, 0, 6, 1000), THEIRS); /* both are ours now: the one that came last, or the other */
    CHECK_EQUAL(send(&p, 0, 7, 1000), OURS);
    CHECK_EQUAL(send(&p, 0, 8, 1000), NONE);
    for (size_t i = 6; i < 9; i++)
        receive(&p, 1, i, 1000);
    close_pair(p);
}

/* Nobody may know before the last byte is out that the cell is free. */
static void half_read_is_not_read(void)
{
    struct pair p = open_pair(true);
    CHECK_EQUAL(send(&p, 0, 0, 8000), OURS);
    p.in[1]->row = p.in[1]->whole = 8000;
    CHECK_EQUAL(p.in[1]->ops->recv(p.in[1], target, 40), 40);
    CHECK_EQUAL(p.in[1]->ops->recv(p.in[1], target, 7999), 7999);
    CHECK_EQUAL(send(&p, 1, 0, 100), OURS); /* its own, not that of the message */
    CHECK_EQUAL(p.in[1]->ops->recv(p.in[1], target + 7999, 1), 1);
    CHECK(!memcmp(target, source, 8000));
    CHECK_EQUAL(send(&p, 1, 0, 100), THEIRS);
    close_pair(p);
}

static void what_does_not_fit_or_is_not_whole(void)
{
    struct pair p = open_pair(true);
    CHECK_EQUAL(send(&p, 0, 0, CELL + 1), NONE);
    receive(&p, 1, 0, CELL + 1);
    CHECK_EQUAL(send(&p, 0, 0, 0), NONE);
    receive(&p, 1, 0, 0);
    p.out[0]->row = 5000; /* the rest comes later */
    CHECK_EQUAL(p.out[0]->ops->frame(p.out[0], source, 40, source, 2000), 2040);
    CHECK_EQUAL(*stamp_of(&p, 0, p.pieces[0]++) >> 16 & 3, NONE);
    CHECK_EQUAL(p.in[1]->ops->recv(p.in[1], target, 40), 40);
    CHECK_EQUAL(p.in[1]->ops->recv(p.in[1], target, 2000), 2000);
    CHECK_EQUAL(send(&p, 0, 0, CELL), OURS);
    receive(&p, 1, 0, CELL);
    close_pair(p);
}

/* Until there is a way back, cells that came are kept for it. */
static void joined_later(void)
{
    struct pair p = open_pair(false);
    CHECK_EQUAL(send(&p, 0, 0, 1000), OURS);
    receive(&p, 1, 0, 1000);
    CHECK_EQUAL(send(&p, 0, 0, 1000), NONE);
    receive(&p, 1, 0, 1000);
    link_shm_join(p.out[0], p.in[0]);
    link_shm_join(p.out[1], p.in[1]);
    CHECK_EQUAL(send(&p, 1, 0, 1000), THEIRS);
    receive(&p, 0, 0, 1000);
    CHECK_EQUAL(send(&p, 0, 0, 1000), OURS);
    close_pair(p);
}

static uint32_t chance = 1;

static uint32_t dice(uint32_t sides)
{
    chance = chance * 1664525 + 1013904223;
    return (chance >> 8) % sides;
}

/* Any order, up to three messages under way each way, of lengths up to beyond a cell. */
static void any_order(void)
{
    struct pair p = open_pair(true);
    struct { size_t place, bytes; } way[2][3];
    uint64_t sent[2] = {0}, got[2] = {0}, cells = 0;
    for (int turn = 0; turn < 60000; turn++) {
        int end = (int)dice(2);
        if (dice(2) && sent[end] - got[end] < 3) {
            size_t bytes = dice(4) ? dice(3000) : dice(12000), slot = sent[end]++ % 3;
            way[end][slot].place = dice(64);
            way[end][slot].bytes = bytes;
            cells += send(&p, end, way[end][slot].place, bytes) != NONE;
        } else if (sent[1 - end] > got[1 - end]) {
            size_t slot = got[1 - end]++ % 3;
            receive(&p, end, way[1 - end][slot].place, way[1 - end][slot].bytes);
        }
    }
    CHECK(cells > 5000 && cells < sent[0] + sent[1]);
    close_pair(p);
}

/* A stamp that no sender writes. */
static void nonsense_is_refused(void)
{
    static const struct { uint64_t cell, bytes; bool joined; } wrong[] = {
        {3, 100, true}, {THEIRS, 100, false}, {OURS, CELL + 1, true}, {THEIRS, CELL + 1, true}, {NONE, 1 << 19, true}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct pair p = open_pair(wrong[i].joined);
        *stamp_of(&p, 0, 0) = UINT64_C(1) << 36 | wrong[i].cell << 16 | wrong[i].bytes;
        CHECK_EQUAL(p.in[1]->ops->recv(p.in[1], target, sizeof target), ACOMM_PROTOCOL);
        close_pair(p);
    }
}

int main(void)
{
    TEST(answers_lie_where_questions_lay);
    TEST(a_cell_is_used_by_one_at_a_time);
    TEST(half_read_is_not_read);
    TEST(what_does_not_fit_or_is_not_whole);
    TEST(joined_later);
    TEST(any_order);
    TEST(nonsense_is_refused);
    return CHECK_RESULT();
}
