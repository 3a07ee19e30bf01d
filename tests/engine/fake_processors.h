/* The processors and the scheduler of a machine, and the segment of RANKS ranks: the real kernel moves a process for reasons of its own, and
 * may have one processor only. Two of them matter. */
#ifndef FAKE_PROCESSORS_H
#define FAKE_PROCESSORS_H
#include <errno.h>
#include <sched.h>

#include "clock.h"
#include "group.h"
#include "p2p_peer.h"
#include "places.h"
#include "shared.h"
#include "shared_world.h"

#define RANKS 5

enum { first = 0, KERNEL_MOST = 8192 };
static int second = 1;

/* It knows so many, and refuses a set that has not room for all. */
static cpu_set_t permitted[KERNEL_MOST / CPU_SETSIZE];
static int known = CPU_SETSIZE, processor, moves;
static bool refuses; /* as a container may */

static int64_t turn; /* ns: of who gets the core when we yield; 0: nobody. Whose yields last long sleeps instead, and moves no more */
static int yields, moves_by_then; /* before the second yield */
static struct core_turn *theirs; /* of the rank that has it then; NULL: it is none */

int sched_getcpu(void) { return processor; }

static void (*before_yield)(void); /* NULL: nothing */

int sched_yield(void)
{
    if (before_yield)
        before_yield();
    if (yields++ == 1)
        moves_by_then = moves;
    if (theirs)
        atomic_store(&theirs->since, clock_now());
    for (int64_t end = clock_now() + turn; turn && clock_now() < end;)
        ;
    if (theirs)
        atomic_store(&theirs->until, clock_now());
    return 0;
}

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    CHECK_EQUAL(pid, 0);
    if (bytes * 8 < (size_t)known)
        return errno = EINVAL, -1;
    memcpy(set, permitted, bytes < sizeof permitted ? bytes : sizeof permitted);
    return 0;
}

int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *set)
{
    CHECK_EQUAL(pid, 0);
    if (refuses)
        return errno = EPERM, -1;
    memset(permitted, 0, sizeof permitted);
    memcpy(permitted, set, bytes < sizeof permitted ? bytes : sizeof permitted);
    if (CPU_ISSET_S(processor, bytes, set))
        return 0;
    for (processor = 0; !CPU_ISSET_S(processor, bytes, set); processor++)
        ;
    moves++;
    return 0;
}

static void start_on_first(int other)
{
    memset(permitted, 0, sizeof permitted);
    CPU_SET_S(first, sizeof permitted, permitted);
    CPU_SET_S(other, sizeof permitted, permitted);
    processor = first;
    moves = yields = moves_by_then = 0;
}

static struct shared open_shared(int rank)
{
    struct shared s;
    uint64_t piece = shared_piece(RANKS, PIECE), bytes = shared_bytes(RANKS, piece);
    int fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(ftruncate(fd, (off_t)bytes) == 0);
    CHECK_EQUAL(shared_open(&s, fd, bytes, rank, RANKS, piece), 0);
    close(fd); /* it has its own */
    return s;
}

#endif
