/* engine: p2p/ group/shared/shared.c group/hosts.c memory/arena.c link/tcp.c link/shm.c base/doorbell.c memory/stream.c group/op.c group/wait.c base/process.c */
/* Long messages that both sides copy. */
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/clock.h"
#include "p2p_world.h"
#include "group/shared/shared.h"

#define BYTES ((size_t)3 << 20 | 12345)
#define RING ((size_t)256 << 10)
#define PIECE 8192

static _Atomic int writes, closed;
static bool expected;   /* that something is written */
static int write_error; /* of every second write; 0: none fails */

/* window.c as the test wants it. */
int32_t window_process(const struct shared *s, int rank) { (void)s; (void)rank; return getpid(); }
int window_close(const struct shared *s, int64_t timeout)
{
    (void)s, (void)timeout;
    atomic_fetch_add(&closed, 1);
    return -1;
}
bool window_reaches(const struct shared *s, int rank) { (void)s; (void)rank; return true; }

int window_write(const struct shared *s, int rank, uint64_t to, const char *from, size_t bytes)
{
    CHECK_EQUAL(rank, 1 - s->rank);
    if (atomic_fetch_add(&writes, 1) % 2 && write_error)
        return write_error;
    memcpy((char *)(uintptr_t)to, from, bytes);
    return 0;
}

static bool admits = true;
static int entered;

bool window_enter(const struct shared *s, int rank)
{
    CHECK_EQUAL(rank, 1 - s->rank);
    entered += admits;
    return admits;
}
void window_leave(const struct shared *s) { (void)s; entered--; }

static int read_error; /* of every second read; 0: none fails */
static _Atomic int reads;

/* The first one gives the sender time to write a part: otherwise nothing would be shared, if it does not come to run. */
int peer_memory_read(int32_t pid, uint64_t from, char *to, size_t bytes)
{
    CHECK_EQUAL(pid, getpid());
    int number = atomic_fetch_add(&reads, 1);
    for (int64_t end = clock_now() + 10 * SECOND; number == 0 && expected && !atomic_load(&writes) && clock_now() < end;)
        sched_yield();
    if (number % 2 && read_error)
        return read_error;
    memcpy(to, (const char *)(uintptr_t)from, bytes);
    return 0;
}

static struct world *open_world(int *fd)
{
    struct world *w = world_open(2, RING);
    uint64_t bytes = shared_bytes(2, PIECE, true);
    *fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(ftruncate(*fd, (off_t)bytes) == 0);
    for (int rank = 0; rank < 2; rank++) {
        struct acomm_group *g = &w->groups[rank];
        CHECK_EQUAL(shared_open(&g->shared, *fd, bytes, rank, 2, PIECE), 0);
        g->oversubscribed = false;
        g->p2p->forced = "read";
    }
    atomic_store(&writes, 0);
    atomic_store(&closed, 0);
    atomic_store(&reads, 0);
    return w;
}

static void close_world(struct world *w, int fd)
{
    for (int rank = 0; rank < 2; rank++) {
        p2p_fail(w->groups[rank].p2p);
        shared_close(&w->groups[rank].shared);
    }
    world_close(w);
    close(fd);
}

static void *ping_pong(void *argument)
{
    struct acomm_group *g = argument;
    char *data = malloc(BYTES);
    for (uint32_t i = 0; i < 24; i++) {
        size_t bytes = i % 3 == 0 ? BYTES : i % 3 == 1 ? ((size_t)2 << 20) + 1 : 2000000;
        world_turn(g, i, data, bytes, 1 - g->rank);
    }
    free(data);
    return NULL;
}

static void exchange(int fails_to_write, int fails_to_read)
{
    int fd;
    expected = true;
    write_error = fails_to_write;
    read_error = fails_to_read;
    struct world *w = open_world(&fd);
    world_run(w, ping_pong);
    CHECK(writes > 0);
    CHECK(w->groups[0].p2p->shares && w->groups[1].p2p->shares);
    close_world(w, fd);
    CHECK(closed >= 2);
}

/* Who says again and again that nothing was taken makes us copy each part once. */
static void a_sender_that_takes_parts_back(void)
{
    int fd;
    struct world *w = open_world(&fd);
    struct link_parts *parts = w->in[1][0]->parts;
    struct p2p_peer peer = {.from = w->in[1][0]};
    struct p2p_item item = {.bytes = BYTES};
    uint64_t offset, bytes;
    int taken = 0;
    for (int turn = 0; turn < 100; turn++) {
        atomic_store(&parts->taken, (uint64_t)1 << LINK_PARTS_BITS);
        taken += p2p_share_take(&peer, &item, &offset, &bytes);
    }
    CHECK_MESSAGE(taken > 0 && taken < 40, "%d parts", taken);
    close_world(w, fd);
}

/* ---- symmetric arrays, step by step in one thread ---- */

/* Rank 1 sends its block to rank 0's, or to memory of its own, and writes all the parts. */
struct symmetric {
    struct world *w;
    int fd;
    struct acomm_block *blocks[2];
    struct acomm_op send, receive;
    struct p2p_item gives, takes;
    struct p2p_peer to, from; /* of the sender; of the receiver */
};

static void pair_open(struct symmetric *s, bool mapped, char *out)
{
    *s = (struct symmetric){.w = open_world(&s->fd)};
    world_arenas(s->w, s->blocks, BYTES, mapped);
    s->send.in = (char *)acomm_block_address(s->blocks[1]);
    s->receive.out = out ? out : (char *)acomm_block_address(s->blocks[0]);
    fill_bytes((char *)acomm_block_address(s->blocks[1]), BYTES, 5);
    struct wire_place place = {.how = DIRECT_MAPPED};
    s->gives = (struct p2p_item){.op = &s->send, .bytes = BYTES, .id = 9, .place = place};
    s->takes = (struct p2p_item){.op = &s->receive, .bytes = BYTES, .id = 9, .place = place};
    s->to = (struct p2p_peer){.rank = 0, .to = s->w->out[1][0]};
    s->from = (struct p2p_peer){.rank = 1, .from = s->w->in[1][0]};
    p2p_list_init(&s->to.awaiting);
    p2p_list_init(&s->gives.here);
    p2p_list_move(&s->to.awaiting, &s->gives.here);
    p2p_share_open(s->w->groups[0].p2p, &s->from, &s->takes);
}

/* How many parts the sender took. */
static int symmetric_push(struct symmetric *s)
{
    int parts = 0;
    while (p2p_share_push(s->w->groups[1].p2p, &s->to))
        parts++;
    CHECK_EQUAL(entered, 0);
    CHECK_EQUAL(writes, 0); /* by the kernel */
    return parts;
}

static void pair_close(struct symmetric *s)
{
    world_close_arenas(s->w, s->blocks);
    close_world(s->w, s->fd);
}

static void a_symmetric_array_is_written_into_another(void)
{
    struct symmetric s;
    pair_open(&s, true, NULL);
    uint64_t offset, bytes;
    CHECK(s.takes.shared);
    CHECK(p2p_share_take(&s.from, &s.takes, &offset, &bytes)); /* one part is the receiver's */
    CHECK_EQUAL(offset, 0);
    CHECK(!p2p_share_over(&s.from, &s.takes));
    CHECK(symmetric_push(&s) > 10);
    CHECK(p2p_share_over(&s.from, &s.takes));
    CHECK(!s.takes.whole);
    CHECK(!memcmp(s.receive.out + bytes, s.send.in + bytes, BYTES - bytes));
    CHECK_EQUAL(s.receive.out[1], 0);
    pair_close(&s);
}

static void into_a_private_array_the_receiver_copies_alone(void)
{
    struct symmetric s;
    char *out = malloc(BYTES);
    pair_open(&s, true, out);
    CHECK(!s.takes.shared);
    CHECK_EQUAL(symmetric_push(&s), 0);
    pair_close(&s);
    free(out);
}

/* The receiver reads all again. */
static void what_cannot_be_mapped_or_is_not_admitted_is_not_written(void)
{
    for (int hindrance = 0; hindrance < 3; hindrance++) { /* no mapping; no admission; a place beyond the arena */
        struct symmetric s;
        pair_open(&s, hindrance > 0, NULL);
        admits = hindrance != 1;
        if (hindrance == 2)
            atomic_store(&s.w->in[1][0]->parts->to, ARENA_ROOM + 4096);
        CHECK(symmetric_push(&s) > 10);
        CHECK(p2p_share_over(&s.from, &s.takes));
        CHECK(s.takes.whole);
        CHECK_EQUAL(s.receive.out[1], 0);
        admits = true;
        pair_close(&s);
    }
}

/* A receiver that says so of a message too short to be copied by both: its parts would have no bytes. */
static void short_messages_are_not_shared(void)
{
    static const size_t lengths[] = {0, 1, 4096, 32 << 10, WIRE_EAGER_NEAR, (size_t)2 << 20, (size_t)1 << 50};
    struct symmetric s;
    pair_open(&s, true, NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        s.gives.bytes = lengths[i];
        atomic_store(&s.w->in[1][0]->parts->taken, (s.gives.id + 1) << LINK_PARTS_BITS);
        CHECK(!p2p_share_push(s.w->groups[1].p2p, &s.to));
    }
    pair_close(&s);
}

static void both_sides_copy(void) { exchange(0, 0); }
static void what_cannot_be_written_is_read(void) { exchange(EFAULT, 0); }
static void what_cannot_be_read_comes_through_the_ring(void) { exchange(0, EFAULT); }

/* A oversubscribed receiver copies alone: the sender's core is wanted by others. */
static void alone_where_cores_are_few(void)
{
    int fd;
    expected = false;
    write_error = read_error = 0;
    struct world *w = open_world(&fd);
    w->groups[0].oversubscribed = w->groups[1].oversubscribed = true;
    world_run(w, ping_pong);
    CHECK_EQUAL(writes, 0);
    close_world(w, fd);
}

int main(void)
{
    TEST(both_sides_copy);
    TEST(a_sender_that_takes_parts_back);
    TEST(what_cannot_be_written_is_read);
    TEST(what_cannot_be_read_comes_through_the_ring);
    TEST(alone_where_cores_are_few);
    TEST(a_symmetric_array_is_written_into_another);
    TEST(into_a_private_array_the_receiver_copies_alone);
    TEST(short_messages_are_not_shared);
    TEST(what_cannot_be_mapped_or_is_not_admitted_is_not_written);
    return CHECK_RESULT();
}
