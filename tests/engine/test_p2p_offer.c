/* engine: p2p/ group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c memory/bounce.c link/shm.c base/doorbell.c memory/stores.c memory/stream.c group/op.c group/wait.c base/process.c */
/* Messages that the receiver reads where they lie. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "p2p_world.h"
#include "base/clock.h"
#include "memory/peer_memory.h"
#include "memory/stream.h"

#define BYTES ((size_t)3 << 20 | 12345)

/* The system call as the test wants it: called with the number of the call before it copies; what it returns ends it. */
static int (*system_says)(int call);
static _Atomic int calls;

int peer_memory_read(int32_t pid, uint64_t from, char *to, size_t bytes)
{
    CHECK_EQUAL(pid, getpid());
    int errnum = system_says ? system_says(atomic_fetch_add(&calls, 1)) : 0;
    if (!errnum)
        memcpy(to, (const char *)(uintptr_t)from, bytes);
    return errnum;
}

ssize_t peer_memory_write(int32_t pid, uint64_t to, const char *from, size_t bytes)
{
    CHECK_EQUAL(pid, getpid());
    memcpy((char *)(uintptr_t)to, from, bytes);
    return (ssize_t)bytes;
}

bool peer_memory_reaches(int32_t pid) { return pid == getpid(); }

static struct world *open_world(const char *forced, int (*says)(int call))
{
    struct world *w = world_open(2, KINDS[0]);
    for (int rank = 0; rank < 2; rank++)
        w->groups[rank].p2p->forced = forced;
    system_says = says;
    calls = 0;
    return w;
}

/* Whether a receive of this rank, of private or of symmetric arrays, has been timed as staged (0) or read (1). */
static bool timed_of(const struct world *w, int rank, bool symmetric, int way)
{
    for (int class = 0; class < CHOICE_CLASSES; class++)
        if (w->groups[rank].p2p->ways[symmetric][class].cost[way] > 0)
            return true;
    return false;
}

static bool timed(const struct world *w, int rank, int way)
{
    return timed_of(w, rank, false, way);
}

static const size_t SIZES[] = {0, 1, WIRE_EAGER_NEAR, WIRE_EAGER_NEAR + 1, 1 << 20, (1 << 20) + 1, BYTES};
#define N_SIZES (sizeof SIZES / sizeof *SIZES)

static void *ping_pong(void *argument)
{
    struct acomm_group *g = argument;
    char *data = malloc(BYTES);
    for (uint32_t i = 0; i < 4 * N_SIZES; i++) {
        size_t bytes = SIZES[i / 2 % N_SIZES];
        world_turn(g, i, data, bytes, i % 3 ? 1 - g->rank : -1);
    }
    free(data);
    return NULL;
}

static void read_where_it_lies(void)
{
    struct world *w = open_world("read", NULL);
    world_run(w, ping_pong);
    for (int rank = 0; rank < 2; rank++)
        CHECK(timed(w, rank, 1) && !timed(w, rank, 0) && !w->groups[rank].p2p->started);
    world_close(w);
}

static void staged_by_force(void)
{
    struct world *w = open_world("staged", NULL);
    world_run(w, ping_pong);
    for (int rank = 0; rank < 2; rank++)
        CHECK(!timed(w, rank, 1) && timed(w, rank, 0));
    world_close(w);
}

static void both_ways_are_tried(void)
{
    struct world *w = open_world(NULL, NULL);
    for (int i = 0; i < 3; i++)
        world_run(w, ping_pong);
    for (int rank = 0; rank < 2; rank++)
        CHECK(timed(w, rank, 1) && timed(w, rank, 0));
    world_close(w);
}

#define PAUSE (SECOND / 10) /* ns, beside which copying is nothing */

/* What the engine measures is what the test has pass, whatever else the machine does: while `passed` is not 0 a look at a clock takes
 * a nanosecond, and nothing else any time but pauses. */
static _Atomic int64_t passed, worked;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int64_t ns = clock == CLOCK_MONOTONIC ? passed : clock == CLOCK_THREAD_CPUTIME_ID ? worked : 0;
    if (!atomic_load(&passed) || !ns)
        return (int)syscall(SYS_clock_gettime, clock, t);
    atomic_fetch_add(&passed, 1);
    atomic_fetch_add(&worked, 1);
    *t = (struct timespec){ns / SECOND, ns % SECOND};
    return 0;
}

static void sleeps(void)
{
    atomic_fetch_add(&passed, PAUSE);
}

static void works(void)
{
    atomic_fetch_add(&passed, PAUSE);
    atomic_fetch_add(&worked, PAUSE);
}

/* Two messages from one rank to the other, whose processes have the core in turns, with a pause between: what the first way that is
 * tried is taken to cost, in ns a byte. */
static float cost_with(void (*pause)(void), const char *way, bool oversubscribed, bool synchronous)
{
    struct world *w = open_world(way, NULL);
    struct p2p *from = w->groups[0].p2p, *to = w->groups[1].p2p;
    char *data = calloc(2, BYTES);
    w->groups[0].oversubscribed = w->groups[1].oversubscribed = oversubscribed;
    atomic_store(&worked, 1);
    atomic_store(&passed, clock_now());
    for (int i = 0; i < 2; i++) {
        struct acomm_op send = message(&w->groups[0], ACOMM_SEND, data, BYTES, ACOMM_UINT8, 1, 1);
        struct acomm_op receive = message(&w->groups[1], ACOMM_RECV, data + BYTES, BYTES, ACOMM_UINT8, 0, 1);
        receive.synchronous = synchronous;
        p2p_acquire(from); /* our own threads wait meanwhile */
        p2p_acquire(to);
        CHECK_EQUAL(p2p_post_within(from, &send), 0);
        CHECK_EQUAL(p2p_post_within(to, &receive), 0);
        for (int turn = 0; turn < 1000 && !(op_ended(&send) && op_ended(&receive)); turn++) {
            p2p_progress_pass(to, false);
            pause();
            p2p_progress_pass(from, false);
        }
        CHECK(op_ended(&send) && op_ended(&receive));
        p2p_release(to);
        p2p_release(from);
    }
    atomic_store(&passed, 0);
    float cost = w->groups[1].p2p->ways[0][choice_class(BYTES)].cost[strcmp(way, "read") == 0];
    world_close(w);
    free(data);
    return cost;
}

/* With more ranks than cores it does not count who had one, but what was copied. */
static void others_time_counts_only_where_each_has_a_core(void)
{
    const float pause = (float)PAUSE / BYTES;
    for (int i = 0; i < 2; i++) {
        const char *way = i ? "read" : "staged";
        float apart = cost_with(sleeps, way, false, true), work = cost_with(sleeps, way, true, true);
        CHECK_MESSAGE(apart >= pause && work > 0 && work < pause / 2, "%g and %g ns, pause %g", apart, work, pause);
    }
}

/* And of a ring what the receiver has spent while it waited for its sender, unless it may have had other things to do. */
static void waiting_for_a_ring_is_work(void)
{
    const float pause = (float)PAUSE / BYTES;
    CHECK(cost_with(works, "staged", true, true) >= pause);
    CHECK(cost_with(works, "staged", true, false) < pause / 2);
    CHECK(cost_with(works, "read", true, true) < pause / 2);
}

static int not_permitted(int call)
{
    CHECK(call < 2); /* one try for each rank */
    return EPERM;
}

static void permission_refused(void)
{
    struct world *w = open_world("read", not_permitted);
    world_run(w, ping_pong);
    for (int rank = 0; rank < 2; rank++)
        CHECK(!timed(w, rank, 1) && w->groups[rank].p2p->peers[1 - rank]->unreadable);
    world_close(w);
}

static int every_third_fails(int call)
{
    return call % 3 == 2 ? EFAULT : 0;
}

/* Some arrays cannot be read, in their middle too: these come through the ring. */
static void arrays_that_cannot_be_read(void)
{
    struct world *w = open_world("read", every_third_fails);
    world_run(w, ping_pong);
    for (int rank = 0; rank < 2; rank++)
        CHECK(!w->groups[rank].p2p->peers[1 - rank]->unreadable);
    world_close(w);
}

/* Clock and signals are looked at between parts too, by what they come to: of many peers 64 passes are gigabytes. */
static void looks_amid_reads(void)
{
    enum { LONG = 40 << 20, MOST = (16 << 20) + (1 << 20) };
    struct world *w = open_world("read", NULL);
    struct p2p *to = w->groups[1].p2p, *from = w->groups[0].p2p;
    char *data = calloc(2, LONG);
    struct acomm_op send = message(&w->groups[0], ACOMM_SEND, data, LONG, ACOMM_UINT8, 1, 1);
    struct acomm_op receive = message(&w->groups[1], ACOMM_RECV, data + LONG, LONG, ACOMM_UINT8, 0, 1);
    p2p_acquire(from); /* our own threads wait meanwhile */
    p2p_acquire(to);
    CHECK_EQUAL(p2p_post_within(from, &send), 0);
    CHECK_EQUAL(p2p_post_within(to, &receive), 0);
    uint64_t seen = 0, longest = 0;
    struct p2p_item *item = P2P_OF(struct p2p_item, all, to->all.next);
    for (int pass = 0; pass < 100 && item->moved < LONG; pass++) {
        p2p_progress_pass(to, false);
        longest = item->moved - seen > longest ? item->moved - seen : longest;
        seen = to->due ? item->moved : seen;
    }
    CHECK_MESSAGE(seen && longest <= MOST, "%llu MiB", (unsigned long long)(longest >> 20));
    for (int pass = 0; pass < 100 && !(op_ended(&send) && op_ended(&receive)); pass++) {
        p2p_progress_pass(from, false);
        p2p_progress_pass(to, false);
    }
    CHECK(op_ended(&send) && op_ended(&receive));
    p2p_release(to);
    p2p_release(from);
    world_close(w);
    free(data);
}

/* ---- the sender's operation ends while its array is read ---- */

static struct acomm_group *sender;
static char *array;

static int fail_sender(int call)
{
    if (call == 1) {
        acomm_failure failure = {.code = ACOMM_TIMEOUT, .culprit = 1};
        group_fail(sender, &failure, false);
        memset(array, 0x55, BYTES); /* its caller has it back */
    }
    return 0;
}

/* The receiver ends by its deadline here, in real groups by what the sender's failure spreads. */
static void *receive_nothing(void *argument)
{
    struct acomm_group *g = argument;
    char *data = malloc(BYTES);
    struct acomm_op op = message(g, ACOMM_RECV, data, BYTES, ACOMM_UINT8, 0, 1);
    op.timeout = SECOND / 5;
    op.synchronous = true;
    CHECK_EQUAL(p2p_post(g->p2p, &op), 0);
    CHECK_EQUAL(p2p_wait(g->p2p, &op), ACOMM_TIMEOUT);
    free(data);
    return NULL;
}

/* How many parts are read until the receiver gives up. */
static int withdrawn(int (*says)(int call))
{
    struct world *w = open_world("read", says);
    struct acomm_op send;
    pthread_t thread;
    sender = &w->groups[0];
    array = calloc(1, BYTES);
    world_start(sender, &send, ACOMM_SEND, array, BYTES, 1, 1);
    pthread_create(&thread, NULL, receive_nothing, &w->groups[1]);
    CHECK_EQUAL(op_wait(&send, 10 * SECOND), ACOMM_TIMEOUT);
    pthread_join(thread, NULL);
    free(array);
    world_close(w);
    return calls;
}

static void withdrawn_while_it_is_read(void)
{
    CHECK(withdrawn(fail_sender) >= 2);
}

/* The same in the last part: all has been read, and yet nobody knows what. */
static int fail_at_the_end(int call)
{
    return fail_sender(call - 2);
}

static void withdrawn_at_the_end(void)
{
    CHECK_EQUAL(withdrawn(fail_at_the_end), 4);
}

/* And the sender closes its group: it is lost to who waits for the message. */
static int leave(int call)
{
    if (call == 1) {
        acomm_failure closed = {.code = ACOMM_CLOSED, .culprit = -1};
        group_fail(sender, &closed, false);
        memset(array, 0x55, BYTES);
        atomic_store(&world_of(sender)->left[0], 1);
    }
    return 0;
}

static void sender_closes_the_group(void)
{
    struct world *w = open_world("read", leave);
    struct acomm_op send, receive;
    char *data = malloc(BYTES);
    sender = &w->groups[0];
    array = calloc(1, BYTES);
    world_start(sender, &send, ACOMM_SEND, array, BYTES, 1, 1);
    world_start(&w->groups[1], &receive, ACOMM_RECV, data, BYTES, 0, 1);
    CHECK_EQUAL(op_wait(&receive, 10 * SECOND), ACOMM_LOST);
    CHECK_EQUAL(receive.failure.culprit, 0);
    CHECK_EQUAL(op_wait(&send, 10 * SECOND), ACOMM_CLOSED);
    world_close(w);
    free(array);
    free(data);
}

/* ---- symmetric arrays ---- */

static struct acomm_block *blocks[2];

static void *send_symmetric(void *argument)
{
    struct acomm_group *g = argument;
    char *ours = (char *)acomm_block_address(blocks[g->rank]), *data = malloc(BYTES);
    for (uint32_t i = 0; i < 20; i++) {
        size_t bytes = i % 4 == 0 ? 32767 : i % 4 == 1 ? 32768 : i % 4 == 2 ? 65536 : BYTES - 64;
        world_turn(g, i, (i + (uint32_t)g->rank) % 2 == 0 ? ours + i : data, bytes, 1 - g->rank);
    }
    free(data);
    return NULL;
}

static int never(int call)
{
    CHECK_MESSAGE(false, "a system call, number %d", call);
    return 0;
}

static void symmetric_arrays_need_no_system_call(void)
{
    for (int mapped = 0; mapped < 2; mapped++) { /* a receiver that cannot map them gets them through the ring */
        struct world *w = open_world(NULL, never);
        world_arenas(w, blocks, BYTES, mapped);
        world_run(w, send_symmetric);
        world_close_arenas(w, blocks);
        world_close(w);
    }
}

static void *exchange_long_symmetric(void *argument)
{
    struct acomm_group *g = argument;
    char *ours = (char *)acomm_block_address(blocks[g->rank]), *data = malloc(STREAM_LONG);
    for (uint32_t i = 0; i < 12; i++)
        world_turn(g, i, (i + (uint32_t)g->rank) % 2 == 0 ? ours : data, STREAM_LONG, 1 - g->rank);
    free(data);
    return NULL;
}

static void long_symmetric_arrays_are_always_read(void)
{
    struct world *w = open_world(NULL, never);
    world_arenas(w, blocks, STREAM_LONG, true);
    world_run(w, exchange_long_symmetric);
    for (int rank = 0; rank < 2; rank++)
        CHECK(timed_of(w, rank, true, 1) && !timed_of(w, rank, true, 0));
    world_close_arenas(w, blocks);
    world_close(w);
}

int main(void)
{
    TEST(long_symmetric_arrays_are_always_read);
    TEST(read_where_it_lies);
    TEST(staged_by_force);
    TEST(both_ways_are_tried);
    TEST(others_time_counts_only_where_each_has_a_core);
    TEST(waiting_for_a_ring_is_work);
    TEST(permission_refused);
    TEST(arrays_that_cannot_be_read);
    TEST(looks_amid_reads);
    TEST(withdrawn_while_it_is_read);
    TEST(withdrawn_at_the_end);
    TEST(sender_closes_the_group);
    TEST(symmetric_arrays_need_no_system_call);
    return CHECK_RESULT();
}
