/* Waiting inside an operation: spin, then yield, then sleep; and the three reasons to stop waiting.
 *
 * Use:   struct wait w = wait_start(op);
 *        while (!condition()) {
 *            int rc = wait_step(&w);           // 0 go on, or a negative code: poisoned, deadline, interrupted (or WAIT_LEAVE)
 *            if (rc) return rc;                // the failure is recorded by the caller that knows the culprit
 *            if (w.sleepy) block for at most WAIT_SLEEP_NS on whatever makes the condition true; then wait_woke(&w)
 *        }
 * Where others than our ranks use the cores, a yield may cost whole time slices of theirs, while a sleeper that is woken
 * goes first: who notices that yields take long again and again sleeps at once for a while, and then tries again.
 * In a virtual machine it may take longer to wake a sleeper than others yield before they sleep: by then who woke it sleeps too, and so
 * on with every call, for seconds. Who has slept for a short time only therefore yields longer next time.
 * Spinning lasts a few microseconds where every rank of the host has a core; yielding lasts longer, because on a oversubscribed
 * machine the peer we wait for needs our core (a futex wake costs 30 us, a yield 1.5 us). Which core that peer needs may be
 * known there (`where`): ours, then we yield at once; another, then a yield would cost two switches and bring it no nearer. */
#ifndef ACOMM_WAIT_H
#define ACOMM_WAIT_H
#include "group/op.h"

#define WAIT_LOOK_NS 50000000  /* 50 ms: how often an operation asks for signals, so that Ctrl-C is answered at once */
#define WAIT_MOVES 64          /* turns with progress between two looks at clock, signals and links that nothing needs, */
#define WAIT_MOVED ((size_t)16 << 20) /* and bytes: some milliseconds, however many peers send at once */
#define WAIT_SLEEP_NS 20000000 /* 20 ms: the longest sleep between two looks at poison and deadline */

#define WAIT_LEAVE 1           /* from a guest's wait: it leaves the operation, which has not failed; see op.h */
/* What a peer's end is called that says no more of it; of this thread's until its next call. */
const char *wait_closed(const struct acomm_group *g, int rank);

/* Of a group; zeros at the beginning. */
struct wait_preempted {
    _Atomic int64_t patience;    /* ns to yield before sleeping, where sleeps have been shorter than it took to wake up; 0: as usual */
    _Atomic int64_t until;       /* sleep at once until then */
    _Atomic int64_t span;        /* ns that led to it */
    _Atomic uint32_t yields;     /* since the last one that took long */
};

struct wait {
    struct acomm_op *op;
    int64_t sleep_at;     /* when to stop yielding */
    int64_t slept;        /* since when it yields or sleeps, of a wait that does */
    int64_t yield_ns;     /* how long to yield before sleeping; the caller may change it */
    uint32_t turns, spins;
    /* Where who is awaited runs, as far as the caller knows: on our processor it needs that at once; elsewhere a yield would
     * not bring it nearer, and is only made now and then for others. */
    enum { WAIT_ANYWHERE, WAIT_HERE, WAIT_APART } where;
    bool sleepy;          /* set once spinning and yielding did not help */
};
struct wait wait_start(struct acomm_op *op);
/* For conditions that take system calls to look at, where some link of the group is a socket: poll() soon then. */
struct wait wait_start_links(struct acomm_op *op);
int wait_step(struct wait *w);
/* Whether the next step yields or sleeps. */
static inline bool wait_spun(const struct wait *w)
{
    return w->turns >= w->spins;
}
/* After a sleep. */
void wait_woke(const struct wait *w);
/* For operations that go on without waiting: signals, and peers that have left, every WAIT_LOOK_NS. 0, or the code of the
 * group's failure, which it records. */
int wait_look(struct acomm_op *op);
/* After progress was made: start again with spinning. */
void wait_reset(struct wait *w);
/* A peer's connection was closed. Its own word of why, which comes over the control connections, is a better reason than
 * ours: waits a moment for the group to fail by it. True when all it says is that it has closed the group.
 * rank -1: any. */
bool wait_news(const struct acomm_group *g, int rank);
/* The memory of a rank could not be read or written, for this errno: the group's failure. */
int wait_unreached(struct acomm_op *op, int rank, int errnum);

/* Which processor each rank of a host was last seen on. Ranks only read and tell: which processor a thread
 * runs on is for the kernel and the user to decide.
 *
 * Where there are more ranks than processors, a rank that waits for one on its own processor gives that up at once; for one elsewhere
 * it spins, since a yield costs two switches (1.5 us each) and brings the other one no nearer. */
struct shared;
/* 1 + the processor that this thread is on, which the other ranks learn. */
int32_t cpu_tell(struct shared *s);
/* Whether a local rank was last seen on the processor that this thread is on. */
bool cpu_shared(struct shared *s, int rank);

#endif
