/* Sleeping until another rank changes shared memory. Every local rank has one doorbell in the segment.
 *
 * Waiter:     uint32_t seen = doorbell_listen(doorbell);
 *             if (!changed()) doorbell_sleep(doorbell, seen, ns);
 *             doorbell_leave(doorbell);
 * Notifier: makes its change visible, then calls doorbell_ring(). Either the notifier sees the listener, or the listener sees the
 * change. Without a listener, ringing costs a fence. */
#ifndef ACOMM_DOORBELL_H
#define ACOMM_DOORBELL_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct doorbell {                    /* starts as zeros */
    _Atomic uint32_t rung, listeners;
};

/* Futex wait on any word: sleeps while the word has this value, at most `ns`; may return early. shared: with other processes. */
void futex_sleep(void *word, uint32_t value, int64_t ns, bool shared);
void futex_wake(void *word, int sleepers, bool shared);

uint32_t doorbell_listen(struct doorbell *doorbell);
/* Until the doorbell is rung after `seen`, at most `ns`; may return early. */
void doorbell_sleep(struct doorbell *doorbell, uint32_t seen, int64_t ns);
void doorbell_leave(struct doorbell *doorbell);
/* NULL is fine. */
void doorbell_ring(struct doorbell *doorbell);
#endif
