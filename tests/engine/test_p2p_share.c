/* engine: p2p*.c places.c processors.c shared.c hosts.c arena.c link_tcp.c link_shm.c bell.c stores.c stream.c op.c wait.c */
/* Long messages that both sides copy. */
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include "clock.h"
#include "p2p_world.h"
#include "shared.h"

#define BYTES ((size_t)3 << 20 | 12345)
#define RING ((size_t)256 << 10)
#define PIECE 8192

static _Atomic int writes, closed;
static bool expected;   /* that something is written */
static int write_error; /* of every second write; 0: none fails */

/* window.c as the test wants it. */
void window_open(struct shared *s) { (void)s; }
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
    uint64_t bytes = shared_bytes(2, PIECE);
    *fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(ftruncate(*fd, (off_t)bytes) == 0);
    for (int rank = 0; rank < 2; rank++) {
        struct acomm_group *g = &w->groups[rank];
        CHECK_EQUAL(shared_open(&g->shared, *fd, bytes, rank, 2, PIECE), 0);
        g->crowded = false;
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
        size_t bytes = i % 3 == 0 ? BYTES : i % 3 == 1 ? WIRE_EAGER_NEAR + 1 : 2000000;
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

static void both_sides_copy(void) { exchange(0, 0); }
static void what_cannot_be_written_is_read(void) { exchange(EFAULT, 0); }
static void what_cannot_be_read_comes_through_the_ring(void) { exchange(0, EFAULT); }

/* A crowded receiver copies alone: the sender's core is wanted by others. */
static void alone_where_cores_are_few(void)
{
    int fd;
    expected = false;
    write_error = read_error = 0;
    struct world *w = open_world(&fd);
    w->groups[0].crowded = w->groups[1].crowded = true;
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
    return CHECK_RESULT();
}
