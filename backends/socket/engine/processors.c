#include "processors.h"

#include <errno.h>

#define MOST (1 << 20) /* no kernel has as many */

bool processors_empty(struct processors *p, int count)
{
    p->count = count;
    p->bytes = CPU_ALLOC_SIZE(count);
    p->set = CPU_ALLOC(count);
    if (p->set)
        CPU_ZERO_S(p->bytes, p->set);
    return p->set != NULL;
}

bool processors_open(struct processors *p)
{
    for (int count = CPU_SETSIZE; count <= MOST && processors_empty(p, count); count *= 2) {
        if (!sched_getaffinity(0, p->bytes, p->set))
            return true;
        int failed = errno;
        processors_free(p);
        if (failed != EINVAL) /* or the kernel knows more processors */
            break;
    }
    return false;
}

void processors_free(struct processors *p)
{
    CPU_FREE(p->set);
    p->set = NULL;
}
