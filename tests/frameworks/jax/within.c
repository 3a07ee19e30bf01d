/* Loaded before all others (LD_PRELOAD): notes when each call begins and ends that jaxlib's "mpi" collectives make, over whatever
 * library MPItrampoline has loaded. See within.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WITHIN_MOST = 1 << 20 };
struct within { int64_t begin, end; };
static struct within *within_noted;
static atomic_int within_count;
typedef int (*within_function)(long, long, long, long, long, long, long, long, long, long, long, long);

static int64_t within_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

__attribute__((constructor)) static void within_open(void)
{
    within_noted = calloc(WITHIN_MOST, sizeof *within_noted);
}

/* What has been noted since the last time: how many; at most `most`. */
int within_take(struct within *to, int most)
{
    int count = atomic_exchange(&within_count, 0);
    count = count < most ? count : most;
    memcpy(to, within_noted, (size_t)count * sizeof *to);
    return count;
}

#define WITHIN_CALL(name) \
    static within_function within_real_##name; \
    static int within_##name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l) \
    { \
        int64_t begin = within_now(); \
        int code = within_real_##name(a, b, c, d, e, f, g, h, i, j, k, l); \
        int at = atomic_fetch_add(&within_count, 1); \
        if (at < WITHIN_MOST) \
            within_noted[at] = (struct within){begin, within_now()}; \
        return code; \
    }
#define WITHIN_CALLS(X) X(Allreduce) X(Allgather) X(Reduce_scatter) X(Isend) X(Irecv) X(Wait) X(Sendrecv)
WITHIN_CALLS(WITHIN_CALL)

static void *within_find(void *library, const char *name)
{
    static void *(*real)(void *, const char *);
    if (!real)
        real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real)
        real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real(library, name);
}

void *dlsym(void *library, const char *name)
{
    void *found = within_find(library, name);
#define WITHIN_REPLACE(call) \
    if (found && !strcmp(name, "MPIABI_" #call)) { \
        within_real_##call = (within_function)found; \
        return (void *)within_##call; \
    }
    WITHIN_CALLS(WITHIN_REPLACE)
    return found;
}
