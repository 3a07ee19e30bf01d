/* Which processor each rank of a host waits on.
 *
 * Where there are more ranks than processors, who waits for a rank that was last seen on its own processor gives that up at
 * once; who waits for one that runs elsewhere would yield in vain, twice 1.5 us. And ranks spread themselves: the kernel sees
 * only threads that are always busy. It leaves three of four on one of two processors, where a barrier takes twice the time, and
 * even two of two, for up to seconds: a message then takes 200 to 300 us, because it lets who yields go on. And in a virtual machine it
 * wakes a rank on the processor of who wakes it: an idle one has been given back to the host, and looks as if it were taken. So
 * two ranks that wait for each other's long copies work on one processor, by turns: all_to_all of 16 MiB 2.3 ms instead of 1.5.
 * Where ranks take turns anyhow, two that exchange a long message belong on one processor: what goes through a ring stays in its cache,
 * and no two receivers copy there while another processor has the senders, who wait (4 ranks on 2 processors, 16 MiB through a ring
 * 1.7 to 2.1 ms together and 2.5 to 2.8 apart, by the kernel 2.2 and 3.2). Two that exchange short ones belong on two: they have both for some
 * dozen microseconds at a time, in which no message costs a switch (p2p_wait.c; 8 B 0.8 to 1.3 us, and 2.5 on one). */
#ifndef ACOMM_PLACES_H
#define ACOMM_PLACES_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct shared;

/* Of who waits: the collectives of a group, or its messages. Zeros at the beginning. */
struct places {
    uint32_t turns;
    int64_t next;                /* when to look whether ranks are spread */
    int64_t span;                /* ns between two looks */
};

/* When a rank had a core last, as far as its waits tell: since when, and until when; still, where `until` is the earlier one. */
struct core_turn {
    _Atomic int64_t since, until; /* clock_now() */
};
/* We give our core away now, or have it again: after how long. */
void places_rest(const struct shared *s, int64_t now);
int64_t places_resume(const struct shared *s, int64_t now);
/* For how long other ranks had our processor between two times. */
int64_t places_lent(struct shared *s, int64_t from, int64_t to);

/* 1 + the processor that we are on, and says so to the others. */
int32_t places_say(struct shared *s);
/* Says where we are. And every some milliseconds: moves this thread to the processor that fewest ranks wait on, where they are
 * spread unevenly. Whether it did. */
bool places_spread(struct places *p, struct shared *s);
/* The same at once, for who has a reason to look and does not share its processor on purpose: of two on one, who looks moves, as it
 * is the one that waits. */
bool places_part(struct shared *s);
/* Moves this thread to the processor of a local rank that it exchanges a long message with, where ranks take turns and ours has
 * others that go on; not again soon. Whether it did. */
bool places_join(struct places *p, struct shared *s, int other);
/* The other way: to the next best processor, away from a rank that it exchanges short messages with, where that has no more ranks at
 * work. Only the higher of the two ranks moves. */
bool places_leave(struct places *p, struct shared *s, int other);
/* Whether we are on an earlier processor than another rank was last. */
bool places_before(const struct shared *s, int other);
#endif
