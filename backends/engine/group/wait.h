/* Waiting inside an operation: spin, then yield, then sleep; and the three reasons to stop waiting.
 *
 * Use:   struct wait w = wait_start(op);
 *        while (!condition()) {
 *            int rc = wait_step(&w);           // 0 go on, or a negative code: poisoned, deadline, interrupted (or WAIT_LEAVE)
 *            if (rc) return rc;                // the failure is recorded by the caller that knows the culprit
 *            if (w.sleepy) block for at most WAIT_SLEEP_NS on whatever makes the condition true; then wait_woke(&w)
 *        }
 * Where other processes use the cores, a yield may cost whole time slices of theirs, while the scheduler runs a woken sleeper
 * first: a rank whose yields repeatedly take long sleeps at once for a while, then tries yields again.
 * In a virtual machine a wake-up may take longer than peers yield before they sleep: by then the waking rank sleeps too, and so
 * on in every call, for seconds. A rank that slept only briefly therefore yields longer next time.
 * Spinning lasts a few microseconds where every rank of the host has a core; yielding lasts longer, because on an oversubscribed
 * machine the awaited peer needs our core (a futex wake costs 30 us, a yield 1.5 us). Which core that peer needs may be known
 * there (`where`): ours, then we yield at once; another, then a yield would cost two switches and bring it no nearer. */
#ifndef ACOMM_WAIT_H
#define ACOMM_WAIT_H
#include "group/op.h"

#define WAIT_LOOK_NS 50000000  /* 50 ms: how often an operation asks for signals, so that Ctrl-C is answered at once */
#define WAIT_MOVES 64          /* turns with progress between two looks at clock, signals and links that nothing needs, */
#define WAIT_MOVED ((size_t)16 << 20) /* and bytes: some milliseconds, however many peers send at once */
#define WAIT_SLEEP_NS 20000000 /* 20 ms: the longest sleep between two looks at poison and deadline */

#define WAIT_LEAVE 1           /* from a helping waiter: it leaves the operation, which has not failed; see op.h */
/* Text for a peer's end without a stated reason; of this thread's until its next call. */
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
    int64_t yield_ns;     /* how long to yield before sleeping; the caller may change it */
    uint32_t turns, spins;
    /* CPU of the awaited rank, as far as the caller knows: if it is ours, the rank needs our CPU at once. If it is another one, a
     * yield does not help the rank, and is made only now and then for other processes. */
    enum { WAIT_ANYWHERE, WAIT_HERE, WAIT_APART } where;
    bool sleepy;          /* set once spinning and yielding did not help */
};
struct wait wait_start(struct acomm_op *op);
/* For conditions that take system calls to look at, where some link of the group is a socket: poll() soon then. */
struct wait wait_start_links(struct acomm_op *op);
int wait_step(struct wait *w);
/* After a sleep. */
void wait_woke(const struct wait *w);
/* For operations that go on without waiting: signals, and peers that have left, every WAIT_LOOK_NS. 0, or the code of the
 * group's failure, which it records. */
int wait_look(struct acomm_op *op);
/* After progress was made: start again with spinning. */
void wait_reset(struct wait *w);
/* A peer's connection was closed. The reason that the peer sends over the control connections is better than ours: waits a moment
 * for the group to fail with it. True if the peer only sent that it has closed the group. rank -1: any. */
bool wait_news(const struct acomm_group *g, int rank);
/* The memory of a rank could not be read or written, for this errno: the group's failure. */
int wait_unreached(struct acomm_op *op, int rank, int errnum);

/* CPU on which each rank of a host was last seen, and when it last ran. Ranks only read and publish it: CPU affinity is for the kernel
 * and the user to decide. With more ranks than CPUs, a rank that waits for a peer on its own CPU yields at once. For a peer on another
 * CPU it spins: a yield costs two switches (1.5 us each) and does not bring the peer nearer. */
struct shared;
/* 1 + this thread's CPU, published to the other ranks. */
int32_t cpu_tell(struct shared *s);
/* Whether a local rank was last seen on this thread's CPU. */
bool cpu_shared(struct shared *s, int rank);
/* This rank gives its processor away now, or has it again: after how long. */
void cpu_rest(const struct shared *s, int64_t now);
int64_t cpu_resume(const struct shared *s, int64_t now);
/* For how long other ranks had this rank's processor between two times. */
int64_t cpu_lent(struct shared *s, int64_t from, int64_t to);

#endif
