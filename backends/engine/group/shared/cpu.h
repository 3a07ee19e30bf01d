/* Which processor each rank of a host was last seen on, and when it last had it. Ranks only read and tell: which processor a thread
 * runs on is for the kernel and the user to decide.
 *
 * Where there are more ranks than processors, a rank that waits for one on its own processor gives that up at once; for one elsewhere
 * it spins, since a yield costs two switches (1.5 us each) and brings the other one no nearer. */
#ifndef ACOMM_CPU_H
#define ACOMM_CPU_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct shared;

/* When a rank had a processor last, as far as its waits tell: since when, and until when; still, where `until` is the earlier one. */
struct cpu_turn {
    _Atomic int64_t since, until; /* clock_now() */
};

/* 1 + the processor that this thread is on, which the other ranks learn. */
int32_t cpu_tell(struct shared *s);
/* Whether a local rank was last seen on the processor that this thread is on. */
bool cpu_shared(struct shared *s, int rank);
/* This rank gives its processor away now, or has it again: after how long. */
void cpu_rest(const struct shared *s, int64_t now);
int64_t cpu_resume(const struct shared *s, int64_t now);
/* For how long other ranks had this rank's processor between two times. */
int64_t cpu_lent(struct shared *s, int64_t from, int64_t to);
#endif
