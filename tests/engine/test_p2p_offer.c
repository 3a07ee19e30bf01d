/* engine: p2p/ group/shared/window.c group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
/* Messages that the receiver reads where they lie. */
#include <errno.h>
#include <unistd.h>
#include "p2p_world.h"
#include "base/clock.h"
#include "memory/peer_memory.h"
#include "memory/stream.h"

#define BYTES ((size_t)3 << 20 | 12345)

/* The system call as the test wants it: called with the number of the call before it copies; what it returns ends it. */
static int (*system_says)(int call);
static _Atomic int calls, reads;

int peer_memory_read(int32_t pid, uint64_t from, char *to, size_t bytes)
{
    CHECK_EQUAL(pid, getpid());
    reads++;
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
    calls = reads = 0;
    return w;
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
    struct world *w = open_world(NULL, NULL);
    world_run(w, ping_pong);
    CHECK(reads > 0);
    for (int rank = 0; rank < 2; rank++)
        CHECK(!w->groups[rank].p2p->started);
    world_close(w);
}

static void staged_by_force(void)
{
    struct world *w = open_world("staged", NULL);
    world_run(w, ping_pong);
    CHECK_EQUAL(reads, 0);
    world_close(w);
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
        CHECK(w->groups[rank].p2p->peers[1 - rank]->unreadable);
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

int main(void)
{
    TEST(read_where_it_lies);
    TEST(staged_by_force);
    TEST(permission_refused);
    TEST(arrays_that_cannot_be_read);
    TEST(looks_amid_reads);
    TEST(withdrawn_while_it_is_read);
    TEST(withdrawn_at_the_end);
    TEST(sender_closes_the_group);
    TEST(symmetric_arrays_need_no_system_call);
    return CHECK_RESULT();
}
