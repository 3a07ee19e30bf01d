/* Sleeping until somebody in shared memory has news. Every local rank has one bell in the segment.
 *
 * Who waits:  uint32_t seen = bell_listen(bell);
 *             if (!news()) bell_sleep(bell, seen, ns);
 *             bell_leave(bell);
 * Who has news: makes them visible, then bell_ring(). Either it sees the listener, or the listener sees the news. While
 * nobody listens, ringing costs a fence. */
#ifndef ACOMM_BELL_H
#define ACOMM_BELL_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bell {                    /* starts as zeros */
    _Atomic uint32_t rung, listeners;
    _Atomic uint32_t away;       /* the waiting rank has given its core to others; a hint, kept only where cores are scarce */
};

static inline bool bell_asleep(const struct bell *bell)
{
    return atomic_load_explicit(&bell->listeners, memory_order_relaxed);
}
static inline bool bell_away(const struct bell *bell)
{
    return atomic_load_explicit(&bell->away, memory_order_relaxed) || bell_asleep(bell);
}

uint32_t bell_listen(struct bell *bell);
/* Until the bell is rung after `seen`, at most `ns`; may return early. */
void bell_sleep(struct bell *bell, uint32_t seen, int64_t ns);
void bell_leave(struct bell *bell);
/* NULL is fine. */
void bell_ring(struct bell *bell);
#endif
