/* Round trips of a word between two processes that share memory and poll; what no Python loop is fast enough to see. */

#include <stdatomic.h>
#include <stdint.h>

enum { SPINS_AT_MOST = 1 << 30 }; /* the other process has died */

/* Returns 0, or -1 when the other side did not answer. mine and theirs lie in different cache lines. */
int ping(_Atomic uint64_t *mine, _Atomic uint64_t *theirs, uint64_t count, int first)
{
    for (uint64_t turn = 1; turn <= count; turn++) {
        if (first)
            atomic_store_explicit(theirs, turn, memory_order_release);
        for (int spins = 0; atomic_load_explicit(mine, memory_order_acquire) != turn; spins++)
            if (spins == SPINS_AT_MOST)
                return -1;
        if (!first)
            atomic_store_explicit(theirs, turn, memory_order_release);
    }
    return 0;
}
