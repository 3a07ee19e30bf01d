/* Included before everything in a build in which a chosen allocation of the extension's C code fails: see allocations.py. */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H
#include <errno.h>
#include <immintrin.h> /* declares one of the functions below */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* How many more allocations there are until the one that fails; 0: none does. */
__attribute__((weak, visibility("default"))) _Atomic long allocations_left;

static inline int allocation_fails(void)
{
    long left = atomic_load(&allocations_left);
    while (left && !atomic_compare_exchange_weak(&allocations_left, &left, left - 1))
        ;
    errno = left == 1 ? ENOMEM : errno;
    return left == 1;
}

#define malloc(bytes) (allocation_fails() ? NULL : malloc(bytes))
#define calloc(number, bytes) (allocation_fails() ? NULL : calloc(number, bytes))
#define realloc(place, bytes) (allocation_fails() ? NULL : realloc(place, bytes))
#define aligned_alloc(unit, bytes) (allocation_fails() ? NULL : aligned_alloc(unit, bytes))
#define posix_memalign(place, unit, bytes) (allocation_fails() ? ENOMEM : posix_memalign(place, unit, bytes))
#define strdup(text) (allocation_fails() ? NULL : strdup(text))
#endif
