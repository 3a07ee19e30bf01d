/* Writing to a peer's memory where it lies: process_vm_writev(2).
 *
 * A write under way cannot be cancelled, and the peer may free its array once its operation has failed. So every rank stores in
 * the shared segment how many writes it is in, and whether it admits any. A writer increments its count, checks that the peer
 * still admits, writes, and decrements the count; a rank whose operation fails stops admitting and waits until the counts are
 * zero (each side stores first, then loads, as in Dekker's algorithm). A group's first failure is its end, so admission is
 * withdrawn once.
 * Writes are short, and the wait ends at once for a writer that has died, or was stopped with its copy done. For a writer stopped
 * in the few instructions before the copy the wait lasts until the writer continues or is killed, so no array is torn, but not
 * longer than the group's timeout: then the error names the writer. */
#ifndef ACOMM_WINDOW_H
#define ACOMM_WINDOW_H
#include <stdatomic.h>
#include "memory/peer_memory.h"

struct shared;

/* Of each rank, in its region of the segment. */
struct window {
    _Alignas(64) _Atomic uint32_t closed; /* no writes any more */
    _Alignas(64) _Atomic uint32_t writing; /* writes that this rank is in */
    _Atomic int32_t writer;               /* the thread that began the last of them */
};

/* Whether the system permits access to the memory of local `rank`. */
bool window_reaches(const struct shared *s, int rank);
/* Its process, from its signed card, because any rank could change the segment. */
int32_t window_process(const struct shared *s, int rank);
/* Copies to address `to` of local `rank`. 0 or errno: ESRCH when the process has gone, ECANCELED when it does not admit
 * writes any more, EFAULT for memory that only its owner can write, EPERM where we do not reach it. */
int window_write(const struct shared *s, int rank, uint64_t to, const char *from, size_t bytes);
/* Counts a thread in that is about to access memory of local `rank` by any means; false if the rank admits no access any more. */
bool window_enter(const struct shared *s, int rank);
void window_leave(const struct shared *s);
/* After the failure of an operation that let peers write: -1 when no rank writes any more, or after `timeout` (ns) a local rank
 * that still does. Any thread, also while another is in here: each has a caller of its own, whose memory is then free. */
int window_close(const struct shared *s, int64_t timeout);
#endif
