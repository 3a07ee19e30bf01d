/* engine: p2p/ memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
/* Frames that no peer of this version sends. */
#include "p2p_world.h"

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2246822519u ^ b * 3266489917u ^ 668265263u;
    h = (h ^ (h >> 15)) * 2246822519u;
    return h ^ (h >> 13);
}

/* Rank 0 writes to its link by hand; rank 1 reads it. */
static void feed(struct world *w, const void *bytes, size_t size, struct acomm_op *receive)
{
    struct acomm_group *g = &w->groups[1];
    for (size_t sent = 0; sent < size && !atomic_load(&g->poisoned);) {
        ssize_t n = w->out[0][1]->ops->send(w->out[0][1], (const char *)bytes + sent, size - sent, false);
        CHECK(n >= 0);
        sent += (size_t)n;
        p2p_wait_until(g->p2p, receive, 0);
        p2p_wait_until(g->p2p, receive, 0); /* answers too */
    }
}

/* What rank 1 does to frames from rank 0, with a receive (tag 1) and a large send under way: the group's code. */
static int after_frames(const struct wire_frame *frames, size_t count, size_t ring)
{
    struct world *w = world_open(2, ring);
    struct acomm_group *g = &w->groups[1];
    static char large[WIRE_EAGER_MAX + 1], to[100];
    struct acomm_op receive, send;
    world_start(g, &receive, ACOMM_RECV, to, sizeof to, 0, 1);
    world_start(g, &send, ACOMM_SEND, large, sizeof large, 0, 1);
    for (size_t i = 0; i < count; i++)
        feed(w, &frames[i], sizeof frames[i], &receive);
    int64_t until = clock_now() + SECOND / 50;
    while (clock_now() < until && !atomic_load(&g->poisoned))
        p2p_wait_until(g->p2p, &receive, clock_now() + SECOND / 1000);
    int code = atomic_load(&g->poisoned);
    CHECK(!code || g->failure.culprit == 0);
    world_close(w);
    return code;
}

static void frames_of_no_peer(void)
{
    static const struct { int code; struct wire_frame frame; } cases[] = {
        {0, {.kind = WIRE_EAGER, .tag = 2, .dtype = ACOMM_UINT8}},
        {0, {.kind = WIRE_RTS, .tag = 2, .dtype = ACOMM_UINT8, .count = 1ull << 40}},
        {0, {.kind = WIRE_CTS, .id = 0}},
        {0, {.kind = WIRE_NACK, .id = 0}},
        {ACOMM_PROTOCOL, {.kind = WIRE_EAGER, .magic = 5}},
        {ACOMM_PROTOCOL, {.kind = WIRE_FRAMES}},
        {0, {.kind = WIRE_EAGER, .tag = 2, .dtype = ACOMM_OPAQUE_END - 1}},
        {ACOMM_PROTOCOL, {.kind = WIRE_EAGER, .dtype = ACOMM_DTYPES}},
        {ACOMM_PROTOCOL, {.kind = WIRE_EAGER, .dtype = ACOMM_OPAQUE_HEADER}},
        {ACOMM_PROTOCOL, {.kind = WIRE_EAGER, .dtype = ACOMM_OPAQUE_END}},
        {ACOMM_PROTOCOL, {.kind = WIRE_EAGER, .consumed = 1}},
        {ACOMM_PROTOCOL, {.kind = WIRE_EAGER, .tag = 1, .dtype = ACOMM_UINT8, .count = WIRE_EAGER_MAX + 1}},
        {ACOMM_PROTOCOL, {.kind = WIRE_RTS, .dtype = ACOMM_FLOAT64, .count = 1ull << 61}},
        {ACOMM_PROTOCOL, {.kind = WIRE_RTS, .dtype = ACOMM_UINT8, .count = 1ull << 63}},
        {ACOMM_PROTOCOL, {.kind = WIRE_RTS, .id = 1}},
        {ACOMM_PROTOCOL, {.kind = WIRE_CTS, .id = 1}},
        {ACOMM_PROTOCOL, {.kind = WIRE_NACK, .id = 77}},
        {ACOMM_PROTOCOL, {.kind = WIRE_DATA, .id = 0, .count = 1}},
        {ACOMM_PROTOCOL, {.kind = WIRE_DONE, .id = 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct wire_frame frame = cases[i].frame;
        frame.magic = frame.magic ? frame.magic : WIRE_MAGIC;
        int code = after_frames(&frame, 1, KINDS[0]);
        CHECK_MESSAGE(code == cases[i].code, "case %zu gives %d", i, code);
    }
    for (uint64_t count = 0; count <= 101; count += 101) { /* data of a wrong size for the posted receive of 100 */
        struct wire_frame frames[2] = {
            {.kind = WIRE_RTS, .magic = WIRE_MAGIC, .tag = 1, .dtype = ACOMM_UINT8, .count = 100},
            {.kind = WIRE_DATA, .magic = WIRE_MAGIC, .count = count},
        };
        CHECK_EQUAL(after_frames(frames, 2, KINDS[0]), ACOMM_PROTOCOL);
    }
}

/* Places where no array can lie. */
static void offers_of_no_peer(void)
{
    static const struct wire_place places[] = {
        {.how = DIRECT_NOTHING}, {.how = DIRECT_MAPPED + 1}, {.how = UINT32_MAX}, {.how = DIRECT_MAPPED, .at = ARENA_ROOM + 1},
        {.how = DIRECT_MAPPED, .at = UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct { struct wire_frame frame; struct wire_place place; } offer = {
            {.kind = WIRE_OFFER, .magic = WIRE_MAGIC, .tag = 1, .dtype = ACOMM_UINT8, .count = 100}, places[i]};
        struct world *w = world_open(2, KINDS[0]);
        struct acomm_op receive;
        char to[100];
        world_start(&w->groups[1], &receive, ACOMM_RECV, to, sizeof to, 0, 1);
        feed(w, &offer, sizeof offer, &receive);
        CHECK_EQUAL(op_wait(&receive, SECOND), ACOMM_PROTOCOL);
        world_close(w);
    }
}

/* Frames with random fields among right ones: whatever they do, no memory is touched that is not theirs. */
static void frames_at_random(void)
{
    static const uint64_t values[] = {0, 1, 2, 99, 100, 101, WIRE_EAGER_MAX, WIRE_EAGER_MAX + 1, 1ull << 32, 1ull << 61, UINT64_MAX};
    for (uint32_t n = 0; n < 150; n++) {
        struct wire_frame frames[24];
        for (uint32_t i = 0; i < 24; i++) {
            uint32_t h = mix(n, i);
            frames[i] = (struct wire_frame){.magic = WIRE_MAGIC, .kind = h % WIRE_FRAMES, .dtype = ACOMM_UINT8,
                                            .tag = h / 8 % 3, .id = h / 32 % 3,
                                            .count = values[h / 128 % (h % 7 ? 6 : 11)]};
        }
        int code = after_frames(frames, 24, n % 2 ? KINDS[0] : 0);
        CHECK(code == 0 || code == ACOMM_PROTOCOL);
    }
}

/* Eager messages that nobody receives, and no regard for credit: ended before they fill the memory. */
static void messages_without_credit(void)
{
    struct world *w = world_open(2, KINDS[0]);
    struct acomm_group *g = &w->groups[1];
    static struct { struct wire_frame frame; char data[WIRE_EAGER_MAX]; } eager;
    char byte;
    struct acomm_op receive;
    eager.frame = (struct wire_frame){.kind = WIRE_EAGER, .magic = WIRE_MAGIC, .tag = 2, .dtype = ACOMM_UINT8,
                                      .count = WIRE_EAGER_MAX};
    world_start(g, &receive, ACOMM_RECV, &byte, 1, 0, 1);
    uint64_t sent = 0;
    for (; sent < 2 * WIRE_CREDIT_MAX && !atomic_load(&g->poisoned); sent += WIRE_EAGER_MAX)
        feed(w, &eager, sizeof eager, &receive);
    CHECK_EQUAL(op_wait(&receive, SECOND), ACOMM_PROTOCOL);
    CHECK(sent > WIRE_CREDIT_MAX / 2 && sent <= WIRE_CREDIT_MAX + WIRE_EAGER_MAX);
    world_close(w);
}

int main(void)
{
    TEST(frames_of_no_peer);
    TEST(offers_of_no_peer);
    TEST(frames_at_random);
    TEST(messages_without_credit);
    return CHECK_RESULT();
}
