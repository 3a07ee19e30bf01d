/* engine: p2p/ rma/serve.c memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
#include "rma/serve.h"
#include "p2p_world.h"

#include <limits.h>

#define ELEMENTS 200000
#define LONG 60000 /* beyond what some links take at once */

/* Memory for so many more allocations of any thread. The sanitizers' own function, where there is one. */
static _Atomic int left = INT_MAX;

void *__libc_malloc(size_t bytes);
__attribute__((weak)) void *__interceptor_malloc(size_t bytes);

void *malloc(size_t bytes)
{
    if (left != INT_MAX && left-- <= 0)
        return NULL;
    return __interceptor_malloc ? __interceptor_malloc(bytes) : __libc_malloc(bytes);
}

bool reduce_supported(int dtype, int redop)
{
    return dtype == ACOMM_FLOAT64 && redop == ACOMM_SUM;
}

int acomm_reduce_local(uintptr_t out, const uintptr_t *in, int inputs, uint64_t count, int dtype, int redop, double factor)
{
    CHECK(inputs == 2 && dtype == ACOMM_FLOAT64 && redop == ACOMM_SUM && factor == 1 && in[0] == out);
    for (uint64_t i = 0; i < count; i++) {
        double mine, theirs; /* requests' own elements need not be aligned */
        memcpy(&mine, (char *)in[0] + 8 * i, 8);
        memcpy(&theirs, (char *)in[1] + 8 * i, 8);
        mine += theirs;
        memcpy((char *)out + 8 * i, &mine, 8);
    }
    return 0;
}

static acomm_served *opened(struct acomm_group *g, double *data)
{
    acomm_served *s;
    CHECK_EQUAL(acomm_served_open(g, (uintptr_t)data, ELEMENTS, ACOMM_FLOAT64, &s), 0);
    return s;
}

static int send_words(struct acomm_group *g, int rank, struct serve_request *r)
{
    struct acomm_op op = message(g, ACOMM_SEND, r, sizeof *r / 8, ACOMM_INT64, rank, SERVE_REQUESTS);
    op.synchronous = true;
    int rc = p2p_post(g->p2p, &op);
    return rc ? rc : p2p_wait(g->p2p, &op);
}

static int move(struct acomm_group *g, int kind, int rank, double *data, int64_t count, int64_t tag)
{
    struct acomm_op op = message(g, kind, data, (uint64_t)count, ACOMM_FLOAT64, rank, tag);
    op.synchronous = true;
    int rc = p2p_post(g->p2p, &op);
    return rc ? rc : p2p_wait(g->p2p, &op);
}

/* As core/group/served.py. */
static int ask(struct acomm_group *g, enum serve_kind kind, int rank, int64_t offset, int64_t count, double *elements)
{
    struct serve_request r = {.kind = kind, .offset = offset, .count = count, .detail = kind == SERVE_GET ? g->rank : ACOMM_SUM, .bytes = -1};
    bool given = kind == SERVE_PUT || kind == SERVE_ACCUMULATE;
    if (given && count * 8 <= SERVE_INLINE) {
        r.bytes = count * 8;
        memcpy(r.elements, elements, (size_t)r.bytes);
    }
    int rc = send_words(g, rank, &r);
    if (!rc && given && r.bytes < 0)
        rc = move(g, ACOMM_SEND, rank, elements, count, SERVE_ELEMENTS);
    if (!rc && kind == SERVE_GET)
        rc = move(g, ACOMM_RECV, rank, elements, count, SERVE_ANSWERS + g->rank);
    return rc;
}

static void all_fence(struct acomm_group *g, acomm_served *s, uint64_t number)
{
    int32_t late;
    for (int rank = 0; rank < g->size; rank++)
        CHECK_EQUAL(ask(g, SERVE_FENCE, rank, 0, 0, NULL), 0);
    CHECK_EQUAL(acomm_served_fence(s, number, 60 * SECOND, &late), 0);
}

/* Everybody accumulates in everybody's first half, and puts and gets in a part of its own of the second. */
static void *hammer(void *argument)
{
    struct acomm_group *g = argument;
    double *mine = calloc(ELEMENTS, 8), *given = malloc(LONG * 8), *got = malloc(LONG * 8);
    acomm_served *s = opened(g, mine);
    static const int64_t counts[] = {0, 1, 8, 9, 1000, LONG / 3, LONG};
    all_fence(g, s, 1);
    for (int turn = 0; turn < 14; turn++)
        for (int rank = 0; rank < g->size; rank++) {
            int64_t count = counts[turn % 7], own = ELEMENTS / 2 + g->rank * 30000, part = count < 30000 ? count : 30000;
            for (int64_t i = 0; i < count; i++)
                given[i] = turn + g->rank + 1;
            CHECK_EQUAL(ask(g, SERVE_ACCUMULATE, rank, 0, count, given), 0);
            CHECK_EQUAL(ask(g, SERVE_PUT, rank, own, part, given), 0);
            CHECK_EQUAL(ask(g, SERVE_GET, rank, own, part, got), 0);
            CHECK(!memcmp(got, given, (size_t)part * 8));
            CHECK_EQUAL(ask(g, SERVE_SIGNAL, rank, 0, 0, NULL), 0);
        }
    for (int rank = 0; rank < g->size; rank++)
        for (int turn = 0; turn < 14; turn++)
            CHECK_EQUAL(acomm_served_wait(s, rank, 60 * SECOND), 0);
    all_fence(g, s, 2);
    double first = 0, last = 0;
    for (int rank = 0; rank < g->size; rank++)
        for (int turn = 0; turn < 14; turn++) {
            first += turn % 7 ? turn + rank + 1 : 0;
            last += turn % 7 == 6 ? turn + rank + 1 : 0;
        }
    CHECK(mine[0] == first && mine[LONG - 1] == last && mine[LONG] == 0);
    CHECK_EQUAL(acomm_served_wait(s, 0, 1000000), 1); /* none is left */
    world_leave(world_of(g), g->rank);
    acomm_served_free(s);
    free(mine);
    free(given);
    free(got);
    return NULL;
}

static void what_is_asked_for_is_done(void)
{
    EVERY_KIND(2, world_run(w, hammer);)
    EVERY_KIND(3, world_run(w, hammer);)
}

/* Rank 0 asks for what no rank asks for; rank 1 has its window, and nothing of it changes. */
static void refused(struct serve_request r)
{
    EVERY_KIND(2, {
        static double data[ELEMENTS], beside[4];
        acomm_served *s = opened(&w->groups[1], data);
        CHECK_EQUAL(send_words(&w->groups[0], 1, &r), 0);
        if (r.bytes < 0)
            move(&w->groups[0], ACOMM_SEND, 1, beside, 4, SERVE_ELEMENTS); /* the group may have failed by then */
        CHECK_EQUAL(acomm_served_wait(s, 0, 60 * SECOND), ACOMM_PROTOCOL);
        CHECK_EQUAL(acomm_served_wait(s, 0, 60 * SECOND), ACOMM_PROTOCOL);
        CHECK_EQUAL(w->groups[1].failure.culprit, 0);
        CHECK(data[0] == 0 && data[ELEMENTS - 1] == 0);
        world_leave(w, 1);
        acomm_served_free(s);
    })
}

static void what_no_rank_asks_for_is_refused(void)
{
    static const struct serve_request wrong[] = {
        {.kind = SERVE_FENCE + 1}, {.kind = -1}, {.kind = SERVE_PUT, .offset = ELEMENTS - 1, .count = 2, .bytes = 16},
        {.kind = SERVE_PUT, .offset = ELEMENTS + 1, .bytes = 0}, {.kind = SERVE_PUT, .offset = -1, .count = 1, .bytes = 8},
        {.kind = SERVE_GET, .count = -1, .bytes = -1}, {.kind = SERVE_GET, .offset = 1, .count = INT64_MAX, .bytes = -1},
        {.kind = SERVE_GET, .detail = -1, .bytes = -1}, {.kind = SERVE_GET, .detail = INT64_MAX, .bytes = -1},
        {.kind = SERVE_ACCUMULATE, .count = 1, .detail = ACOMM_BAND, .bytes = 8},
        {.kind = SERVE_ACCUMULATE, .count = 1, .detail = -1, .bytes = 8},
        {.kind = SERVE_ACCUMULATE, .count = 1, .detail = ACOMM_AVG, .bytes = 8}, {.kind = SERVE_PUT, .count = 8, .bytes = 56},
        {.kind = SERVE_PUT, .count = 500, .bytes = 4000}, {.kind = SERVE_PUT, .count = 3, .bytes = -1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(wrong[i]);
}

/* What the last waits have left. */
static void free_spare(struct acomm_group *g)
{
    p2p_acquire(g->p2p);
    while (g->p2p->spare) {
        struct p2p_item *item = g->p2p->spare;
        g->p2p->spare = item->spare;
        free(item);
    }
    p2p_release(g->p2p);
}

static void *waits(void *argument)
{
    acomm_served *s = argument;
    return (void *)(intptr_t)acomm_served_wait(s, 1, 60 * SECOND);
}

/* Two threads wait, another signals: one has it, the other is told when the group fails; with answers and elements under way. */
static void a_failure_ends_waits_and_what_is_under_way(void)
{
    EVERY_KIND(2, {
        static double data[ELEMENTS];
        acomm_served *s = opened(&w->groups[0], data), *other = opened(&w->groups[1], data);
        pthread_t threads[2];
        void *first, *second;
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, waits, s);
        CHECK_EQUAL(ask(&w->groups[1], SERVE_SIGNAL, 0, 0, 0, NULL), 0);
        struct serve_request gets = {.kind = SERVE_GET, .count = ELEMENTS, .bytes = -1};
        struct serve_request puts = {.kind = SERVE_ACCUMULATE, .count = ELEMENTS, .bytes = -1};
        CHECK_EQUAL(send_words(&w->groups[1], 0, &gets), 0); /* and does not take the answer */
        CHECK_EQUAL(send_words(&w->groups[1], 0, &puts), 0); /* is held back until that */
        while (acomm_served_wait(other, 0, 0) == 0) {}
        acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = -1};
        group_fail(&w->groups[0], &failure, false);
        pthread_join(threads[0], &first);
        pthread_join(threads[1], &second);
        int a = (int)(intptr_t)first, b = (int)(intptr_t)second; /* the signal may have been too late */
        CHECK((a == ACOMM_ABORTED || a == 0) && (b == ACOMM_ABORTED || b == 0) && (a || b));
        world_leave(w, 0);
        world_leave(w, 1);
        acomm_served_free(s);
        acomm_served_free(other);
    })
}

/* What a rank asks for behind a get takes effect behind the answer, which is as the window was before. */
static void what_follows_a_get_comes_after_its_answer(void)
{
    EVERY_KIND(2, {
        struct acomm_group *asking = &w->groups[0];
        double *data = calloc(ELEMENTS, 8), *got = calloc(ELEMENTS, 8), seven = 7;
        acomm_served *s = opened(&w->groups[1], data);
        struct serve_request gets = {.kind = SERVE_GET, .count = ELEMENTS, .bytes = -1};
        CHECK_EQUAL(send_words(asking, 1, &gets), 0);
        CHECK_EQUAL(ask(asking, SERVE_PUT, 1, ELEMENTS - 1, 1, &seven), 0);
        CHECK_EQUAL(ask(asking, SERVE_SIGNAL, 1, 0, 0, NULL), 0);
        int signal = acomm_served_wait(s, 0, SECOND / 100);
        CHECK_EQUAL(signal, 1);
        CHECK_EQUAL(move(asking, ACOMM_RECV, 1, got, ELEMENTS, SERVE_ANSWERS), 0);
        CHECK(signal == 0 || acomm_served_wait(s, 0, 60 * SECOND) == 0);
        CHECK(got[ELEMENTS - 1] == 0 && data[ELEMENTS - 1] == 7);
        world_leave(w, 1);
        acomm_served_free(s);
        free(data);
        free(got);
    })
}

/* For the answer, and for the next request while that is under way: who asked is told, and does not wait for ever. */
static void no_memory_to_serve(void)
{
    for (int allowed = 0; allowed < 2; allowed++)
        EVERY_KIND(2, {
            static double data[ELEMENTS];
            struct acomm_group *asking = &w->groups[0], *serving = &w->groups[1];
            acomm_served *s = opened(serving, data);
            CHECK_EQUAL(ask(asking, SERVE_SIGNAL, 1, 0, 0, NULL), 0); /* has left room for the next message */
            struct serve_request r = {.kind = SERVE_GET, .count = ELEMENTS, .bytes = -1};
            CHECK_EQUAL(acomm_served_wait(s, 0, 60 * SECOND), 0);
            free_spare(serving);
            left = allowed;
            CHECK_EQUAL(send_words(asking, 1, &r), 0);
            int64_t until = clock_now() + 20 * SECOND;
            while (!atomic_load(&serving->poisoned) && clock_now() < until)
                sched_yield();
            left = INT_MAX;
            CHECK_EQUAL(atomic_load(&serving->poisoned), ACOMM_RESOURCE);
            CHECK_EQUAL(acomm_served_wait(s, 0, 60 * SECOND), ACOMM_RESOURCE);
            world_leave(w, 1);
            acomm_served_free(s);
        })
}

int main(void)
{
    TEST(what_is_asked_for_is_done);
    TEST(what_no_rank_asks_for_is_refused);
    TEST(a_failure_ends_waits_and_what_is_under_way);
    TEST(what_follows_a_get_comes_after_its_answer);
    TEST(no_memory_to_serve);
    return CHECK_RESULT();
}
