/* The processors that a thread may use, however many the machine has: a cpu_set_t of the usual size is refused beyond 1024. */
#ifndef ACOMM_PROCESSORS_H
#define ACOMM_PROCESSORS_H
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

struct processors {
    cpu_set_t *set;              /* for CPU_..._S(), */
    size_t bytes;                /* of so many bytes, */
    int count;                   /* for processors of lower numbers than this */
};

/* The calling thread's, until processors_free(). False where the system does not tell. */
bool processors_open(struct processors *p);
/* Room for as many processors, none of them in it. */
bool processors_empty(struct processors *p, int count);
void processors_free(struct processors *p);
#endif
