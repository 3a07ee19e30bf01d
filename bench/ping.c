/* Round trips of a word between two processes that share memory and poll; what no Python loop is fast enough to see. */

#include <stdatomic.h>
#include <stdint.h>

#define SPINS_AT_MOST (INT64_C(1) << 35) /* some 20 s: the other process has died */

/* Makes the round trips past `done` up to `upto`: the words are never reset, which the other side might miss.
 * Returns 0, or -1 when the other side did not answer. mine and theirs lie in different cache lines. */
int ping(_Atomic uint64_t *mine, _Atomic uint64_t *theirs, uint64_t done, uint64_t upto, int first)
{
    for (uint64_t turn = done + 1; turn <= upto; turn++) {
        if (first)
            atomic_store_explicit(theirs, turn, memory_order_release);
        for (int64_t spins = 0; atomic_load_explicit(mine, memory_order_acquire) != turn; spins++)
            if (spins == SPINS_AT_MOST)
                return -1;
        if (!first)
            atomic_store_explicit(theirs, turn, memory_order_release);
    }
    return 0;
}
