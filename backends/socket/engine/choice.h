/* Choosing between two ways of doing the same thing by what they cost when they ran.
 *
 * Which way is better depends on what cannot be asked for: how far apart the cores are (virtual machines move them), page
 * sizes, who else uses the memory. So both are tried at first, and the one that looked worse again every now and then. */
#ifndef ACOMM_CHOICE_H
#define ACOMM_CHOICE_H
#include <stdint.h>
#include "acomm.h"

#define CHOICE_LEARN 4     /* runs that try both ways in turn */
#define CHOICE_AGAIN 64    /* then the worse way is tried every so many runs */
#define CHOICE_SELDOM 512  /* the same where it was worse by half and more */

struct choice {
    float cost[2];         /* of each way, in any unit; 0: not tried yet */
    uint32_t runs;
};

/* Costs are comparable within one kind of operation and one power of two of its size. */
#define CHOICE_CLASSES 40
struct choices { struct choice of[ACOMM_KINDS][CHOICE_CLASSES]; };

static inline struct choice *choice_for(struct choices *all, int kind, uint64_t bytes)
{
    int class = bytes ? 63 - __builtin_clzll(bytes) : 0;
    return &all->of[kind][class < CHOICE_CLASSES ? class : CHOICE_CLASSES - 1];
}

/* The way of run number `run`, when the ways cost `first` and `second`. */
static inline int choice_way(uint32_t run, double first, double second)
{
    int better = second < first;
    double least = better ? second : first, most = better ? first : second;
    uint32_t often = most < 1.5 * least ? CHOICE_AGAIN : CHOICE_SELDOM;
    if (run < CHOICE_LEARN)
        return (int)(run % 2);
    return run % often == often - 1 ? !better : better;
}

/* The least counts, because what disturbs a measurement only adds to it; but it is forgotten slowly. */
static inline void choice_learn(struct choice *c, int way, double cost)
{
    float *known = &c->cost[way];
    *known = *known == 0 || cost < *known ? (float)cost : *known + ((float)cost - *known) / 8;
}
#endif
