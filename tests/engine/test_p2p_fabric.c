/* engine: p2p/ memory/peer_memory.c group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
/* Messages of arrays that the host cannot read: a fabric moves them, here one in this process. */
#include "p2p_world.h"

#define BYTES ((size_t)2 << 20 | 77)
#define MANY 40

/* ---- the fabric ---- */

static struct fake {
    struct fabric_message base;
    struct acomm_op *op;
    int64_t tag;
    struct fake *other, *before;
    bool receives, moved;
} *fakes;
static pthread_mutex_t fakes_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake *receives[2 * MANY]; /* posted, without a sender so far */
static int64_t tags;
static int began, ended, held, sends_fail; /* held: so many receives more do not end; sends_fail: a code */
static int begins_fail;                 /* a code */

/* A receive of a group without a GPU of its own has none. */
static char *fake_data(const struct fake *f)
{
    const void *array = f->receives ? (f->op->gpu ? f->op->in : NULL) : f->op->out;
    return array ? (char *)((const acomm_gpu_array *)array)->address : f->op->out;
}

static struct fabric_message *fake_begin(struct acomm_op *op, int64_t *tag)
{
    pthread_mutex_lock(&fakes_lock);
    struct fake *f = calloc(1, sizeof *f), **at = receives;
    *f = (struct fake){.op = op, .before = fakes, .receives = op->kind == ACOMM_RECV, .base = {begins_fail, "it is broken"}};
    fakes = f;
    began++;
    if (f->receives) {
        CHECK_EQUAL(*tag, 0);
        f->tag = *tag = ++tags;
        while (*at)
            CHECK(++at < receives + 2 * MANY);
        *at = f;
    } else {
        while (!*at || (*at)->tag != *tag)
            CHECK(++at < receives + 2 * MANY); /* the receiver began first */
        f->other = *at;
        f->other->other = f;
        *at = NULL;
    }
    pthread_mutex_unlock(&fakes_lock);
    return &f->base;
}

/* A send ends at once, its data is copied with that; its receive later. */
static bool fake_end(struct fabric_message *message)
{
    struct fake *f = (struct fake *)message;
    pthread_mutex_lock(&fakes_lock);
    bool ends = f->receives ? f->moved && !held : !sends_fail;
    CHECK(f->other != NULL);
    f->base.code = f->receives ? 0 : sends_fail;
    if (!f->receives && ends) {
        memcpy(fake_data(f->other), fake_data(f), f->op->count * f->op->width);
        f->other->moved = true;
    } else if (f->receives) {
        held -= f->moved && held > 0;
    }
    ended += ends;
    f->op = ends ? NULL : f->op; /* nobody asks again */
    pthread_mutex_unlock(&fakes_lock);
    return ends;
}

static int has_begun(void)
{
    pthread_mutex_lock(&fakes_lock);
    int now = began;
    pthread_mutex_unlock(&fakes_lock);
    return now;
}

static struct acomm_fabric fabric = {.begin = fake_begin, .end = fake_end};

/* Those of failed groups have not ended. */
static void forget(void)
{
    for (struct fake *f = fakes; f; f = fakes) {
        fakes = f->before;
        free(f);
    }
    memset(receives, 0, sizeof receives);
}

static struct world *open_world(int size, size_t ring)
{
    struct world *w = world_open(size, ring);
    for (int rank = 0; rank < size; rank++)
        w->groups[rank].fabric = &fabric;
    forget();
    began = ended = held = sends_fail = begins_fail = 0;
    return w;
}
#define EVERY_LINK(...)                                                  \
    for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) { \
        struct world *w = open_world(2, KINDS[kind]);                    \
        __VA_ARGS__                                                      \
        world_close(w);                                                  \
    }

/* One whose array is on a GPU: a receive has host memory too. */
static struct acomm_op on_gpu(struct acomm_group *g, int kind, acomm_gpu_array *array, char *host, uint64_t bytes, int peer, int64_t tag)
{
    struct acomm_op op = message(g, kind, NULL, bytes, ACOMM_UINT8, peer, tag);
    op.gpu = 1;
    op.in = kind == ACOMM_RECV ? (char *)array : NULL;
    op.out = kind == ACOMM_RECV ? host : (char *)array;
    return op;
}

/* ---- messages ---- */

static const size_t SIZES[] = {0, 1, 1000, WIRE_EAGER_NEAR + 1, BYTES};

static void *turns(void *argument)
{
    struct acomm_group *g = argument;
    char *data = calloc(1, BYTES), *host = calloc(1, BYTES);
    for (uint32_t i = 0; i < 20; i++) {
        size_t bytes = SIZES[i / 4];
        bool sends = (i + (uint32_t)g->rank) % 2 == 0, gpu = sends || i % 4 < 2;
        acomm_gpu_array array = {.address = (uintptr_t)data};
        struct acomm_op op = gpu ? on_gpu(g, sends ? ACOMM_SEND : ACOMM_RECV, &array, host, bytes, sends ? 1 - g->rank : -1, 7)
                                 : message(g, ACOMM_RECV, data, bytes, ACOMM_UINT8, -1, 7);
        fill_bytes(data, sends ? bytes : 0, i);
        op.synchronous = true;
        CHECK_EQUAL(p2p_post(g->p2p, &op), 0);
        CHECK_EQUAL(p2p_wait(g->p2p, &op), 0);
        CHECK(has_bytes(data, bytes, i));
        CHECK_EQUAL(op.bytes, bytes);
    }
    free(data);
    free(host);
    return NULL;
}

static void messages_of_every_length(void)
{
    EVERY_LINK({
        world_run(w, turns);
        CHECK_EQUAL(began, 32); /* all but those without contents */
        CHECK_EQUAL(ended, 32);
    })
}

/* Many at once, some from the host, of two tags, with receives that end late: each receive gets its own. */
static void messages_keep_their_order(void)
{
    EVERY_LINK({
        static char data[MANY][100], got[MANY][100], host[MANY][100];
        acomm_gpu_array arrays[MANY], places[MANY];
        struct acomm_op sends[MANY], takes[MANY];
        held = 30;
        for (int i = 0; i < MANY; i++) {
            arrays[i] = (acomm_gpu_array){.address = (uintptr_t)data[i]};
            places[i] = (acomm_gpu_array){.address = (uintptr_t)got[i]};
            fill_bytes(data[i], 100, (uint32_t)i);
            sends[i] = i % 3 ? on_gpu(&w->groups[0], ACOMM_SEND, &arrays[i], NULL, 100, 1, i % 2)
                             : message(&w->groups[0], ACOMM_SEND, data[i], 100, ACOMM_UINT8, 1, i % 2);
            CHECK_EQUAL(p2p_post(w->groups[0].p2p, &sends[i]), 0);
        }
        for (int i = 0; i < MANY; i++) {
            takes[i] = on_gpu(&w->groups[1], ACOMM_RECV, &places[i], host[i], 100, i % 4 ? 0 : -1, i % 2);
            CHECK_EQUAL(p2p_post(w->groups[1].p2p, &takes[i]), 0);
        }
        for (int i = 0; i < MANY; i++) {
            CHECK_EQUAL(op_wait(&takes[i], 20 * SECOND), 0);
            CHECK_EQUAL(op_wait(&sends[i], 20 * SECOND), 0);
            CHECK(has_bytes(i % 3 ? got[i] : host[i], 100, (uint32_t)i));
        }
    })
}

static void truncated(void)
{
    EVERY_LINK({
        char data[100] = "";
        acomm_gpu_array array = {.address = (uintptr_t)data};
        struct acomm_op receive, send = on_gpu(&w->groups[0], ACOMM_SEND, &array, NULL, 100, 1, 1);
        CHECK_EQUAL(p2p_post(w->groups[0].p2p, &send), 0);
        world_start(&w->groups[1], &receive, ACOMM_RECV, data, 99, 0, 1);
        CHECK_EQUAL(op_wait(&receive, 20 * SECOND), ACOMM_TRUNCATED);
        CHECK_EQUAL(op_wait(&send, 20 * SECOND), ACOMM_TRUNCATED);
        CHECK_EQUAL(began, 0);
        CHECK_EQUAL(atomic_load(&w->groups[0].poisoned), 0);
    })
}

/* ---- peers that leave ---- */

static void post_both(struct world *w, struct acomm_op *send, acomm_gpu_array *array, struct acomm_op *receive, char *to)
{
    *send = on_gpu(&w->groups[0], ACOMM_SEND, array, NULL, 100, 1, 1);
    CHECK_EQUAL(p2p_post(w->groups[0].p2p, send), 0);
    world_start(&w->groups[1], receive, ACOMM_RECV, to, 100, 0, 1);
}

/* The sender has closed the group when its send ended: what is on its way comes, if that takes longer than the grace for links. */
static void a_sender_that_leaves(void)
{
    EVERY_LINK({
        char data[100], got[100];
        acomm_gpu_array array = {.address = (uintptr_t)data};
        struct acomm_op send, receive;
        fill_bytes(data, 100, 5);
        held = INT32_MAX;
        post_both(w, &send, &array, &receive, got);
        CHECK_EQUAL(op_wait(&send, 20 * SECOND), 0);
        world_leave(w, 0);
        for (int64_t until = clock_now() + SECOND / 5; clock_now() < until;)
            CHECK_EQUAL(p2p_wait_until(w->groups[1].p2p, &receive, clock_now() + SECOND / 50), 1);
        pthread_mutex_lock(&fakes_lock);
        held = 0;
        pthread_mutex_unlock(&fakes_lock);
        CHECK_EQUAL(op_wait(&receive, 20 * SECOND), 0);
        CHECK(has_bytes(got, 100, 5));
    })
}

/* It leaves before the fabric has the message: it is lost. */
static void a_sender_that_leaves_before(void)
{
    EVERY_LINK({
        char data[100], got[100];
        acomm_gpu_array array = {.address = (uintptr_t)data};
        struct p2p *from = w->groups[0].p2p;
        struct acomm_op send, receive;
        p2p_acquire(from); /* its own thread waits */
        send = on_gpu(&w->groups[0], ACOMM_SEND, &array, NULL, 100, 1, 1);
        CHECK_EQUAL(p2p_post_within(from, &send), 0);
        world_start(&w->groups[1], &receive, ACOMM_RECV, got, 100, 0, 1);
        for (int turn = 0; turn < 10000 && !has_begun(); turn++)
            p2p_wait_until(w->groups[1].p2p, &receive, clock_now() + SECOND / 1000);
        CHECK_EQUAL(has_begun(), 1);
        from->stopping = true; /* nor does it later */
        p2p_release(from);
        world_leave(w, 0);
        CHECK_EQUAL(op_wait(&receive, 20 * SECOND), ACOMM_LOST);
        CHECK_EQUAL(op_wait(&send, 20 * SECOND), ACOMM_CLOSED);
        CHECK_EQUAL(began, 1);
    })
}

/* ---- failures ---- */

static void failures(void)
{
    static const struct { int begins, sends, culprit; } cases[] = {
        {ACOMM_RESOURCE, 0, -1}, {ACOMM_LIBRARY, 0, -1}, {0, ACOMM_LIBRARY, -1}, {0, ACOMM_LOST, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EVERY_LINK({
            static char data[100], got[100];
            static acomm_gpu_array array = {.address = (uintptr_t)data};
            static struct acomm_op send, receive;
            begins_fail = cases[i].begins;
            sends_fail = cases[i].sends;
            post_both(w, &send, &array, &receive, got);
            struct acomm_op *failed = begins_fail ? &receive : &send;
            CHECK_EQUAL(op_wait(failed, 20 * SECOND), begins_fail + sends_fail);
            CHECK_EQUAL(failed->failure.culprit, cases[i].culprit);
            CHECK(!strcmp(failed->failure.text, "it is broken"));
            CHECK_EQUAL(began, 1 + !begins_fail);
        })
}

int main(void)
{
    TEST(messages_of_every_length);
    TEST(messages_keep_their_order);
    TEST(truncated);
    TEST(a_sender_that_leaves);
    TEST(a_sender_that_leaves_before);
    TEST(failures);
    forget();
    return CHECK_RESULT();
}
