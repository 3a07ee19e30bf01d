/* The processor and the scheduler of a machine, and the segment of RANKS ranks: the real kernel moves a process for reasons of its own, and
 * may have one processor only. */
#ifndef FAKE_CPU_H
#define FAKE_CPU_H
#include <sched.h>

#include "base/clock.h"
#include "group/group.h"
#include "p2p/peer.h"
#include "group/shared/shared.h"
#include "shared_world.h"

#define RANKS 5

enum { first, second };

static int64_t turn; /* ns: of who gets the core when we yield; 0: nobody. Whose yields last long sleeps instead */
static int yields;
static struct cpu_turn *theirs; /* of the rank that has it then; NULL: it is none */

int sched_getcpu(void) { return first; }

static void (*before_yield)(void); /* NULL: nothing */

int sched_yield(void)
{
    if (before_yield)
        before_yield();
    yields++;
    if (theirs)
        atomic_store(&theirs->since, clock_now());
    for (int64_t end = clock_now() + turn; turn && clock_now() < end;)
        ;
    if (theirs)
        atomic_store(&theirs->until, clock_now());
    return 0;
}

/* Where a thread runs is for the kernel and the user to decide. */
int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *set)
{
    (void)pid, (void)bytes, (void)set;
    CHECK(!"the affinity of a thread is changed");
    return -1;
}

static struct shared open_shared(int rank)
{
    struct shared s;
    uint64_t piece = shared_piece(RANKS, PIECE), bytes = shared_bytes(RANKS, piece, true);
    int fd = memfd_create("test", MFD_CLOEXEC);
    CHECK(ftruncate(fd, (off_t)bytes) == 0);
    CHECK_EQUAL(shared_open(&s, fd, bytes, rank, RANKS, piece), 0);
    close(fd); /* it has its own */
    return s;
}

#endif
