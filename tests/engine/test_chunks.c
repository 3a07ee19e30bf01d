/* engine: all */
/* Long operations in chunks: results, what the first one has learnt at its end, and failures in the middle. */
#include <errno.h>
#include <sys/uio.h>
#include "group/group.h"
#define PIECE (512 << 10)
#include "shared_world.h"
#include "collectives/shared/direct.h"
#include "collectives/shared/trial.h"

#define LONG 2120007 /* elements of some 34 MB in one of four blocks, no multiple of a page */

static const int kinds[] = {ACOMM_ALL_GATHER, ACOMM_ALL_TO_ALL, ACOMM_GATHER, ACOMM_SCATTER};
#define KINDS (sizeof kinds / sizeof *kinds)
static _Atomic uintptr_t barred; /* the second half of an array of rank 0 that nobody else reaches; its end: */
static _Atomic uintptr_t barred_end;
static _Atomic int refused;

/* Between threads of a process. Nothing lies at NULL. */
ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                         unsigned long remotes, unsigned long flags)
{
    CHECK(pid == getpid() && locals == 1 && remotes == 1 && !flags);
    uintptr_t at = (uintptr_t)remote->iov_base;
    if (at >= atomic_load(&barred) && at < atomic_load(&barred_end)) {
        atomic_fetch_add(&refused, 1);
        return errno = EFAULT, -1;
    }
    if (!at)
        return errno = EFAULT, -1;
    memcpy(local->iov_base, remote->iov_base, local->iov_len);
    return (ssize_t)local->iov_len;
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                          unsigned long remotes, unsigned long flags)
{
    CHECK(pid == getpid() && locals == 1 && remotes == 1 && !flags);
    memcpy(remote->iov_base, local->iov_base, local->iov_len);
    return (ssize_t)remote->iov_len;
}

static int32_t value(int rank, uint64_t i) { return (int32_t)(1000003 * rank + (int)(i % 9973)); }

/* Element i of what `rank` must get. */
static int32_t wanted(int kind, int rank, uint64_t count, uint64_t i)
{
    uint64_t block = i / count, first = (uint64_t)rank * count;
    if (kind == ACOMM_SCATTER)
        return value(0, first + i);
    return value((int)block, (kind == ACOMM_ALL_TO_ALL ? first : 0) + i % count);
}

struct arrays { uint64_t count, sent, got; int32_t *in, *out; };

static struct arrays make(int kind, int rank, int n)
{
    bool rooted = kind == ACOMM_GATHER || kind == ACOMM_SCATTER;
    struct arrays a = {.count = (uint64_t)LONG * 4 / (uint64_t)n};
    uint64_t whole = a.count * (uint64_t)n;
    a.sent = kind == ACOMM_ALL_TO_ALL || (kind == ACOMM_SCATTER && !rank) ? whole : a.count;
    a.got = kind == ACOMM_ALL_TO_ALL || kind == ACOMM_ALL_GATHER || (kind == ACOMM_GATHER && !rank) ? whole : a.count;
    a.in = kind == ACOMM_SCATTER && rank ? NULL : malloc(a.sent * sizeof *a.in);
    a.out = rooted && kind == ACOMM_GATHER && rank ? NULL : calloc(a.got, sizeof *a.out);
    for (uint64_t i = 0; a.in && i < a.sent; i++)
        a.in[i] = value(rank, i);
    return a;
}

static uint64_t wrong(const struct arrays *a, int kind, int rank)
{
    uint64_t found = 0;
    for (uint64_t i = 0; a->out && i < a->got; i++)
        found += a->out[i] != wanted(kind, rank, a->count, i);
    return found;
}

static int call(acomm_group *g, int kind, const struct arrays *a)
{
    bool rooted = kind == ACOMM_GATHER || kind == ACOMM_SCATTER;
    return RUN(g, kind, rooted ? 0 : -1, .in = a->in, .out = a->out, .count = a->count);
}

static int learns(acomm_group *g, int rank, int n)
{
    int failed = 0;
    for (size_t k = 0; k < KINDS && !failed; k++) {
        struct arrays a = make(kinds[k], rank, n);
        struct choice *c = choice_for(g->choices[kinds[k]][a.count * sizeof *a.in % SHARED_LINE != 0], a.count * sizeof *a.in * (uint64_t)n);
        for (int turn = 0; turn < 2 && !failed; turn++) {
            uint32_t before = c->tries;
            failed = call(g, kinds[k], &a);
            CHECK_MESSAGE(!wrong(&a, kinds[k], rank), "kind %d, call %d, rank %d", kinds[k], turn, rank);
            CHECK_MESSAGE(c->tries - before >= 3, "kind %d: %u tries, of two chunks each", kinds[k], c->tries - before);
            if (a.out)
                memset(a.out, 0, a.got * sizeof *a.out);
        }
        free(a.in);
        free(a.out);
    }
    return failed;
}

static void results_and_what_they_teach(void) { run(2, learns, 0); }

/* The half that is barred begins in the middle of a chunk. */
static int goes_on_through_slots(acomm_group *g, int rank, int n)
{
    struct arrays a = make(ACOMM_ALL_TO_ALL, rank, n);
    if (!rank) {
        atomic_store(&barred_end, (uintptr_t)(a.in + a.sent));
        atomic_store(&barred, (uintptr_t)(a.in + a.sent - a.count / 2));
    }
    int failed = RUN_BARRIER(g);
    for (int turn = 0; turn < 2 && !failed; turn++) {
        failed = call(g, ACOMM_ALL_TO_ALL, &a);
        CHECK(!wrong(&a, ACOMM_ALL_TO_ALL, rank));
        memset(a.out, 0, a.got * sizeof *a.out);
    }
    CHECK_EQUAL(g->direct.reach, PATH_CLOSED);
    free(a.in);
    free(a.out);
    return failed;
}

static void an_array_that_cannot_be_reached_to_its_end(void)
{
    run(2, goes_on_through_slots, 0);
    CHECK(atomic_load(&refused) > 0);
    atomic_store(&barred_end, 0);
}

/* By so few elements that chunks are of the same length; after a call in which all have found how they reach each other. */
static int differs(acomm_group *g, int rank, int n)
{
    struct arrays a = make(ACOMM_ALL_TO_ALL, rank, n);
    a.count -= (uint64_t)rank;
    struct acomm_op op = {.group = g, .team = &g->hosts.all, .kind = ACOMM_ALL_TO_ALL, .count = a.count, .width = sizeof *a.in};
    uint64_t next = chunks_of(&op, a.count * sizeof *a.in * (uint64_t)n);
    op.count += (uint64_t)rank;
    CHECK(next && next == chunks_of(&op, op.count * sizeof *a.in * (uint64_t)n));
    CHECK(!RUN(g, ACOMM_ALL_TO_ALL, -1, .in = a.in, .out = a.out, .count = DIRECT_FROM / 4) && g->direct.reach == PATH_OPEN);
    memset(a.out, 0, a.got * sizeof *a.out);
    int failed = call(g, ACOMM_ALL_TO_ALL, &a);
    for (uint64_t i = 0; i < a.got; i++)
        CHECK(!a.out[i]);
    free(a.in);
    free(a.out);
    return failed;
}

static void counts_that_differ(void) { run(2, differs, ACOMM_MISMATCH); }

int main(void)
{
    TEST(results_and_what_they_teach);
    TEST(an_array_that_cannot_be_reached_to_its_end);
    TEST(counts_that_differ);
    return CHECK_RESULT();
}
