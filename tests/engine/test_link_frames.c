/* engine: link/shm.c base/doorbell.c memory/stream.c */
/* Heads that travel beside a stamp, and what is behind them. */
#include <stdlib.h>
#include <string.h>
#include "acomm.h"
#include "check.h"
#include "link/link.h"

#define RING ((size_t)8 << 10)

static struct link_ring *open_ring_of(size_t bytes, struct link **out, struct link **in)
{
    size_t footprint = (link_shm_footprint(bytes) + 4095) / 4096 * 4096;
    struct link_ring *ring = aligned_alloc(4096, footprint);
    memset(ring, 0, footprint);
    *out = link_shm_new(1, true, ring, bytes, NULL, NULL);
    *in = link_shm_new(0, false, ring, bytes, NULL, NULL);
    return ring;
}

static struct link_ring *open_ring(struct link **out, struct link **in)
{
    return open_ring_of(RING, out, in);
}

static void close_ring(struct link *out, struct link *in, struct link_ring *ring)
{
    out->ops->close(out);
    in->ops->close(in);
    free(ring);
}

/* A frame's head comes alone, and its body where the reader wants it, over as many pieces as it takes. */
static void frames(void)
{
    const size_t sizes[] = {0, 1, 57, 4000, RING / 2 + 3};
    struct link *out, *in;
    struct link_ring *ring = open_ring(&out, &in);
    _Alignas(64) char body[RING], back[RING];
    for (size_t i = 0; i < sizeof body; i++)
        body[i] = (char)(i * 31 + (i >> 8) * 7);
    for (int turn = 0; turn < 100; turn++) {
        size_t bytes = sizes[turn % 5], head = turn % 3 ? 40 : LINK_BESIDE;
        CHECK_EQUAL(out->ops->frame(out, body + turn, head, body, bytes), head + bytes);
        CHECK(in->ops->waiting(in));
        CHECK_EQUAL(in->ops->recv(in, back, sizeof back), head);
        CHECK(!memcmp(back, body + turn, head));
        CHECK_EQUAL(in->ops->waiting(in), bytes > 0);
        CHECK_EQUAL(in->ops->recv(in, back, sizeof back), bytes);
        CHECK(!memcmp(back, body, bytes));
    }
    close_ring(out, in, ring);
}

/* The head is taken with the first of the body, or not at all; what does not fit then is sent as any other bytes. */
static void frames_in_a_full_ring(void)
{
    struct link *out, *in;
    struct link_ring *ring = open_ring(&out, &in);
    _Alignas(64) char body[2 * RING] = {0}, back[2 * RING];
    body[RING] = 7;
    CHECK_EQUAL(out->ops->frame(out, "head", 4, body, sizeof body), 4 + RING);
    CHECK_EQUAL(out->ops->frame(out, "head", 4, body, 1), 0);
    CHECK_EQUAL(in->ops->recv(in, back, sizeof back), 4);
    CHECK(!memcmp(back, "head", 4));
    CHECK_EQUAL(in->ops->recv(in, back, sizeof back), RING);
    CHECK_EQUAL(out->ops->send(out, body + RING, RING, false), RING);
    CHECK_EQUAL(in->ops->recv(in, back, sizeof back), RING);
    CHECK_EQUAL(back[0], 7);
    close_ring(out, in, ring);
}

/* A row is cut into at most four pieces, of 8 KiB and more, so that both sides copy at once. */
static void pieces_of_a_row(void)
{
    const size_t rows[] = {0, 1000, 4 << 10, 8 << 10, 16 << 10, 40 << 10, 1 << 20};
    const size_t pieces[] = {32 << 10, 1000, 4 << 10, 8 << 10, 8 << 10, 10 << 10, 32 << 10};
    const size_t room = (size_t)2 << 20;
    struct link_ring *ring = aligned_alloc(4096, (link_shm_footprint(room) + 4095) / 4096 * 4096);
    char *data = aligned_alloc(4096, room);
    memset(data, 0, room);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memset(ring, 0, link_shm_footprint(room));
        struct link *out = link_shm_new(1, true, ring, room, NULL, NULL);
        out->row = rows[i];
        CHECK_EQUAL(out->ops->frame(out, "head", 4, data, rows[i] ? rows[i] : room / 2), 4 + (rows[i] ? rows[i] : room / 2));
        uint64_t stamp = *(uint64_t *)(void *)((char *)ring + 256);
        CHECK_EQUAL(stamp & ((1 << 16) - 1), pieces[i]);
        CHECK_EQUAL(stamp >> 24, 1 << 12 | 4);
        out->ops->close(out);
    }
    free(data);
    free(ring);
}

/* What is left of a row because its first piece ended with a line goes with the last piece, as far as the ring has room. */
static void rest_of_a_row(void)
{
    const size_t rows[] = {4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10};
    const uint64_t pieces[] = {1, 1, 2, 4, 8};
    _Alignas(4096) static char data[(256 << 10) + 16], back[256 << 10];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct link *out, *in;
        struct link_ring *ring = open_ring_of((size_t)1 << 20, &out, &in);
        uint64_t *stamp = (uint64_t *)(void *)((char *)ring + 256);
        out->row = in->row = rows[i];
        memset(data + 16, (int)i + 1, rows[i]);
        CHECK_EQUAL(out->ops->frame(out, "head", 4, data + 16, rows[i]), 4 + rows[i]);
        CHECK_EQUAL(stamp[8 * (pieces[i] - 1)] >> 36, pieces[i]);
        CHECK_EQUAL(stamp[8 * pieces[i]], 0);
        CHECK_EQUAL(in->ops->recv(in, back, sizeof back), 4);
        CHECK_EQUAL(in->ops->recv(in, back, rows[i]), rows[i]);
        CHECK(!memcmp(back, data + 16, rows[i]));
        close_ring(out, in, ring);
    }
}

/* Wherever in a line an array begins, through a ring that is full again and again. */
static void places_of_lines(void)
{
    enum { BYTES = 30000 };
    static char from[BYTES + 64], to[BYTES];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)(i * 31 + (i >> 8) * 7);
    for (size_t place = 0; place < 64; place += 7)
        for (size_t bytes = BYTES - 70; bytes < BYTES; bytes += 23) {
            struct link *out, *in;
            struct link_ring *ring = open_ring(&out, &in);
            out->row = in->row = bytes;
            in->patient = true;
            for (size_t sent = 0, got = 0; got < bytes;) {
                if (sent < bytes)
                    sent += (size_t)out->ops->send(out, from + place + sent, bytes - sent, false);
                got += (size_t)in->ops->recv(in, to + got, got + 1000 < bytes ? 1000 : bytes - got);
                CHECK(got <= sent && sent <= bytes);
            }
            CHECK(!memcmp(to, from + place, bytes));
            CHECK(!in->ops->waiting(in));
            close_ring(out, in, ring);
        }
}

enum { LONGEST = 200 << 10, GUARD = 64 };

struct message {
    size_t bytes, from, to; /* contents; where in a line sender's and receiver's arrays begin */
    bool framed, patient;
    size_t turn;            /* bytes at most that one call of the receiver asks for */
};

/* One message through the ring, and nothing but it. */
static void carry(struct link *out, struct link *in, const struct message *m, const char *source, char *target)
{
    const char *body = source + m->from;
    char *to = target + GUARD + m->to, head[24];
    size_t sent = 0, got = 0, n = 0;
    out->row = in->row = in->whole = m->bytes;
    in->patient = m->patient;
    memset(target, 0x5a, m->bytes + 3 * (size_t)GUARD);
    if (m->framed) {
        CHECK((n = (size_t)out->ops->frame(out, source, sizeof head, body, m->bytes)) >= sizeof head);
        sent = n - sizeof head;
        CHECK_EQUAL(in->ops->recv(in, head, sizeof head), sizeof head);
        CHECK(!memcmp(head, source, sizeof head));
    }
    while (got < m->bytes) {
        size_t before = sent + got;
        if (sent < m->bytes)
            sent += (size_t)out->ops->send(out, body + sent, m->bytes - sent, false);
        got += (size_t)in->ops->recv(in, to + got, m->bytes - got < m->turn ? m->bytes - got : m->turn);
        CHECK(got <= sent && sent <= m->bytes && sent + got > before);
        if (sent + got == before)
            return;
    }
    CHECK(!memcmp(to, body, m->bytes));
    for (size_t i = 0; i < GUARD; i++)
        CHECK(to[-1 - (ptrdiff_t)i] == 0x5a && to[m->bytes + i] == 0x5a);
    CHECK(!in->ops->waiting(in));
}

/* Every short length, and those around the lengths of pieces: through one ring, which so begins them at all its places. */
static void all_lengths_and_places(void)
{
    static const size_t rings[] = {256, 8 << 10, 64 << 10, 256 << 10};
    _Alignas(64) static char source[LONGEST + GUARD], target[LONGEST + 4 * GUARD];
    uint32_t chance = 1;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (char)(i * 31 + (i >> 8) * 7 + (i >> 16) * 3);
    for (size_t r = 0; r < sizeof rings / sizeof *rings; r++) {
        struct link *out, *in;
        struct link_ring *ring = open_ring_of(rings[r], &out, &in);
        for (size_t bytes = 0; bytes <= LONGEST; bytes += bytes < 1000 || (bytes + 70) % 16384 < 140 ? 1 + r : 137) {
            chance = chance * 1664525 + 1013904223;
            struct message m = {.bytes = bytes, .from = chance >> 26, .to = chance >> 20 & 63, .framed = chance >> 19 & 1,
                                .patient = chance >> 18 & 1, .turn = chance >> 17 & 1 ? LONGEST : 1 + (chance >> 8 & 0xffff)};
            carry(out, in, &m, source, target);
        }
        close_ring(out, in, ring);
    }
}

int main(void)
{
    TEST(frames);
    TEST(all_lengths_and_places);
    TEST(frames_in_a_full_ring);
    TEST(pieces_of_a_row);
    TEST(rest_of_a_row);
    TEST(places_of_lines);
    return CHECK_RESULT();
}
