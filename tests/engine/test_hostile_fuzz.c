/* engine: all */
/* The words of the memory that ranks share, changed while they call collectives and send messages. A call may fail or give a wrong value,
 * but it ends, and touches nothing that is not its own. */
#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include "base/clock.h"
#include "base/clock.h"
#include "collectives/shared/direct.h"
#include "group/group.h"
#include "p2p/peer.h"
#define PIECE 8192
#include "group/shared/region.h"
#include "shared_world.h"

#define RUNS 180
#define MOST (8 * SECOND)              /* for all of them: fewer on a busy machine */
#define LONG ((uint64_t)300000)        /* int32: read where it lies, as a message too */
#define TIMEOUT (SECOND / 50)
#define RING_PARTS (3 * SHARED_LINE)   /* see struct link_ring */
#define RING_SLOTS (4 * SHARED_LINE)

/* ---- arrays of all ranks, as other processes would have them: what lies elsewhere cannot be reached ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct array { char *at; size_t bytes; bool taken; } arrays[256];
#define ARRAYS (arrays + sizeof arrays / sizeof *arrays)

/* As long as it is, so that ASan sees what is beyond; one that was dropped comes again. */
static int32_t *take(uint64_t count)
{
    size_t bytes = count * sizeof(int32_t);
    struct array *a = arrays;
    pthread_mutex_lock(&lock);
    while (a->at && (a->taken || a->bytes != bytes))
        a++;
    *a = (struct array){a->at ? a->at : calloc(1, bytes ? bytes : 1), bytes, true};
    pthread_mutex_unlock(&lock);
    return (int32_t *)(void *)a->at;
}

static void drop(int32_t *data)
{
    pthread_mutex_lock(&lock);
    for (struct array *a = arrays; a < ARRAYS; a++)
        a->taken = a->taken && a->at != (char *)data;
    pthread_mutex_unlock(&lock);
}

static ssize_t copy(const struct iovec *ours, unsigned long parts, const struct iovec *theirs, bool writes)
{
    ssize_t n = -1;
    uintptr_t at = (uintptr_t)theirs->iov_base;
    pthread_mutex_lock(&lock);
    for (const struct array *a = arrays; a < ARRAYS && n < 0; a++)
        if (a->taken && at >= (uintptr_t)a->at && at - (uintptr_t)a->at <= a->bytes
            && theirs->iov_len <= a->bytes - (at - (uintptr_t)a->at))
            n = (ssize_t)theirs->iov_len;
    for (unsigned long i = 0; n >= 0 && i < parts; at += ours[i++].iov_len)
        memcpy(writes ? (void *)at : ours[i].iov_base, writes ? ours[i].iov_base : (void *)at, ours[i].iov_len);
    pthread_mutex_unlock(&lock);
    errno = EFAULT;
    return n;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *ours, unsigned long parts, const struct iovec *theirs, unsigned long count,
                         unsigned long flags)
{
    CHECK(pid == getpid() && count == 1 && !flags);
    return copy(ours, parts, theirs, false);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *ours, unsigned long parts, const struct iovec *theirs, unsigned long count,
                          unsigned long flags)
{
    CHECK(pid == getpid() && count == 1 && !flags);
    return copy(ours, parts, theirs, true);
}

/* ---- what is changed ---- */

static uint32_t number; /* of the run */

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2246822519u ^ b * 3266489917u ^ 668265263u;
    h = (h ^ (h >> 15)) * 2246822519u;
    return h ^ (h >> 13);
}

/* The newest piece of a ring, whose slots begin behind `taken`, `withdrawn` and whatboth sides copy. */
static char *newest(char *ring)
{
    char *slot = ring + RING_SLOTS, *found = slot;
    for (int i = 0; i < 128; i++, slot += SHARED_LINE)
        if (*(_Atomic uint64_t *)(void *)slot >> 36 > *(_Atomic uint64_t *)(void *)found >> 36)
            found = slot;
    return found;
}

/* A word that the ranks use now: of a local rank's state, a slot of this round or one beside it, short contents, or a ring of messages. */
static _Atomic uint32_t *word_of(acomm_group *g, uint32_t turn)
{
    const struct shared *s = &g->shared;
    uint32_t pick = mix(turn, 1), victim = mix(turn, 2) % (uint32_t)g->size, other = (victim + 1) % 2, at = mix(turn, 3);
    char *local_rank = (char *)region_of(s, (int)victim), *ring = (char *)shared_ring(&g->shared, CHANNEL_P2P, (int)(victim % 2), (int)other);
    const struct { char *at; uint32_t words; } places[] = {
        {local_rank, sizeof(struct region) / 4}, {(char *)slot_of(s, (int)victim, s->round + pick / 8 % 3 - 1), SHARED_LINE / 4},
        {(char *)slot_of(s, (int)victim, s->round + pick / 8 % 3 - 1) + sizeof(struct slot) - SHARED_TINY, 2},
        {shorts_of(s, (int)victim) + pick / 8 % 2 * SHARED_SHORT, 12},
        {ring, 2}, {ring + RING_PARTS, 8}, {newest(ring), 2}, {newest(ring), 16}};
    return (_Atomic uint32_t *)(void *)places[pick % 8].at + at % places[pick % 8].words;
}

static uint32_t changed(uint32_t was, uint32_t turn)
{
    const uint32_t values[] = {0, UINT32_MAX, was ^ 1u << mix(turn, 4) % 32, was + 1, was - 1, INT32_MAX, REGION_CELL, 2, mix(turn, 5)};
    return values[mix(turn, 6) % 9];
}

static void linger(uint32_t turns)
{
    while (turns--)
        relax();
}

static _Atomic bool over;

/* Again and again another word, for a moment or for good. */
static void *change_on(void *group)
{
    const struct shared *s = &((acomm_group *)group)->shared;
    for (uint32_t turn = number << 12; !atomic_load(&over); turn++) {
        _Atomic uint32_t *word = word_of(group, turn);
        uint32_t was = atomic_load(word), now = changed(was, turn);
        linger(mix(turn, 7) % (number % 2 ? 2000 : 100));
        atomic_store(word, now);
        linger(mix(turn, 8) % 300);
        if (mix(turn, 9) % 8)
            atomic_compare_exchange_strong(word, &now, was);
        if (mix(turn, 10) % 64 == 0) /* the file is sealed against shrinking, not against holes: a page of zeros */
            fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ((char *)word - s->base) / REGION_PAGE * REGION_PAGE, REGION_PAGE);
    }
    return NULL;
}

/* ---- calls ---- */

static int collective(acomm_group *g, int kind, int root, uint64_t count)
{
    uint64_t whole = count * (uint64_t)g->size;
    int32_t *in = take(whole), *out = take(whole);
    bool gives = kind != ACOMM_BROADCAST || root == g->rank, rooted = kind == ACOMM_GATHER || kind == ACOMM_REDUCE;
    int rc = RUN(g, kind, root, .in = gives ? in : 0, .out = rooted && root != g->rank ? 0 : out, .count = count);
    drop(in);
    drop(out);
    return rc;
}

static int uneven(acomm_group *g)
{
    enum { LARGEST = 5000 };
    uint64_t counts[MAX_RANKS], received[MAX_RANKS], sent = 0, got = 0;
    for (int rank = 0; rank < g->size; rank++) {
        sent += counts[rank] = (uint64_t)(g->rank * LARGEST + rank);
        got += received[rank] = (uint64_t)(rank * LARGEST + g->rank);
    }
    int32_t *in = take(sent), *out = take(got);
    int rc = acomm_operate(g, ACOMM_ALL_TO_ALL, P(in), P(out), 0, counts, received, ACOMM_INT32, ACOMM_SUM, 1, -1, 0, 0, -1, NULL);
    drop(in);
    drop(out);
    return rc;
}

static int symmetric(acomm_group *g)
{
    acomm_block *block = symmetric_take(g, 64 << 10), *result = symmetric_take(g, 64 << 10);
    int rc = block && result ? RUN(g, ACOMM_ALL_REDUCE, -1, .in = (void *)acomm_block_address(block), .out = (void *)acomm_block_address(result),
                                   .count = 16 << 10) : 1;
    if (!rc && g->rank < 2)
        rc = acomm_run(g, CALL(g->rank ? ACOMM_RECV : ACOMM_SEND, 1 - g->rank, .in = g->rank ? 0 : (void *)acomm_block_address(block),
                               .out = g->rank ? (void *)acomm_block_address(result) : 0, .count = 12 << 10));
    if (block)
        acomm_block_free(block);
    if (result)
        acomm_block_free(result);
    return rc;
}

/* There and back between the first two ranks. */
static int messages(acomm_group *g, uint64_t count)
{
    int32_t *data = take(count);
    int rc = 0;
    for (int i = 0; i < 4 && g->rank < 2 && !rc; i++) {
        bool sends = i % 2 == g->rank;
        rc = acomm_run(g, CALL(sends ? ACOMM_SEND : ACOMM_RECV, 1 - g->rank, .in = sends ? data : 0, .out = sends ? 0 : data,
                               .count = count));
    }
    drop(data);
    return rc;
}

#define CALLS 14
static int call(acomm_group *g, uint32_t which)
{
    switch (which) {
    case 0: return RUN_BARRIER(g);
    case 1: return collective(g, ACOMM_ALL_REDUCE, -1, 4);
    case 2: return collective(g, ACOMM_ALL_REDUCE, -1, 5000);
    case 3: return collective(g, ACOMM_BROADCAST, 0, 3000);
    case 4: return collective(g, ACOMM_ALL_GATHER, -1, LONG);
    case 5: return collective(g, ACOMM_GATHER, 0, LONG);
    case 6: return uneven(g);
    case 7: return collective(g, ACOMM_REDUCE_SCATTER, -1, 2000);
    case 8: return collective(g, ACOMM_ALL_TO_ALL, -1, 700);
    case 9: return symmetric(g);
    case 10: return messages(g, 3);
    case 11: return messages(g, 25000);
    case 12: return messages(g, LONG);
    default: return collective(g, ACOMM_ALL_GATHER, -1, 900);
    }
}

static acomm_group *groups[MAX_RANKS];
static pthread_barrier_t all;

/* Beside the last rank somebody changes things. */
static int calls(acomm_group *g, int rank, int n)
{
    pthread_t thread;
    int rc = 0;
    g->timeout = TIMEOUT;
    groups[rank] = g;
    if (number % 5)
        g->p2p->forced = "read";
    over = false;
    pthread_barrier_wait(&all);
    if (rank == n - 1)
        pthread_create(&thread, NULL, change_on, g);
    for (uint32_t i = 0; i < CALLS && !rc; i++)
        rc = call(g, mix(number, 10 + i / 2) % CALLS);
    acomm_failure failure = {.code = ACOMM_ABORTED, .culprit = rank};
    for (int other = 0; other < n && rc; other++) /* as the node would tell them */
        group_fail(groups[other], &failure, false);
    pthread_barrier_wait(&all);
    over = true;
    if (rank == n - 1)
        pthread_join(thread, NULL);
    pthread_barrier_wait(&all);
    return 0;
}

static void whatever_stands_there(void)
{
    int64_t until = clock_now() + MOST;
    for (number = 0; number < RUNS && clock_now() < until; number++) {
        int n = 2 + (int)(number / 3 % 2);
        pthread_barrier_init(&all, NULL, (unsigned)n);
        run(n, calls, 0);
        pthread_barrier_destroy(&all);
    }
    for (struct array *a = arrays; a < ARRAYS; a++)
        free(a->at);
}

int main(void)
{
    alarm(110);
    TEST(whatever_stands_there);
    return CHECK_RESULT();
}
