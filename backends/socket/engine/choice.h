/* Choosing between two ways of doing the same thing by what they cost when they ran.
 *
 * Which way is better depends on what cannot be asked for: how far apart the cores are (virtual machines move them), page
 * sizes, who else uses the memory. So both are tried at first, and the one that looked worse again every now and then.
 * A try lasts for as many runs as move CHOICE_TRY bytes, and its first half does not count: there a way still works on
 * lines and pages as the other has left them in the caches. */
#ifndef ACOMM_CHOICE_H
#define ACOMM_CHOICE_H
#include <stdbool.h>
#include <stdint.h>
#include "acomm.h"

#define CHOICE_TRY ((uint64_t)4 << 20) /* bytes: twice through the area of a seat (shared.h) */
#define CHOICE_LEARN 8     /* tries that take both ways in turn: some are disturbed, */
#define CHOICE_FIRST 4     /* and the first meets new memory; after so many it is enough where one way is worse by half */
#define CHOICE_AGAIN 32    /* then the worse way is taken every so many tries */
#define CHOICE_SELDOM 128  /* the same where it was worse by half and more */

struct choice {
    float cost[2];         /* ns per byte of each way; 0: not tried yet */
    uint32_t tries;
    int agreed;            /* the way of this try, where ranks have to agree on it */
    uint64_t moved;        /* bytes in this try */
    uint64_t counted;      /* those of its second half, and their time: single runs tell little, because who comes last */
    int64_t ns;            /* finds everything done */
};

/* Costs are comparable within one kind of operation and one power of two of its size. */
#define CHOICE_CLASSES 40
struct choices { struct choice of[ACOMM_KINDS][CHOICE_CLASSES]; };

static inline int choice_class(uint64_t bytes)
{
    int class = bytes ? 63 - __builtin_clzll(bytes) : 0;
    return class < CHOICE_CLASSES ? class : CHOICE_CLASSES - 1;
}

static inline struct choice *choice_for(struct choices *all, int kind, uint64_t bytes)
{
    return &all->of[kind][choice_class(bytes)];
}

/* The way of try number `try`, when the ways cost `first` and `second`. */
static inline int choice_way(uint32_t try, double first, double second)
{
    int better = second < first;
    double least = better ? second : first, most = better ? first : second;
    bool clear = most >= 1.5 * least;
    uint32_t often = clear ? CHOICE_SELDOM : CHOICE_AGAIN;
    if (try < (clear ? CHOICE_FIRST : CHOICE_LEARN))
        return (int)(try % 2);
    return try % often == often - 1 ? !better : better;
}

static inline void choice_judge(struct choice *c, int way)
{
    float cost = (float)c->ns / (float)c->counted, *known = &c->cost[way];
    float most = cost < 2 * *known ? cost : 2 * *known;
    *known = *known == 0 || cost < *known ? cost : *known + (most - *known) / 4;
    c->moved = c->counted = 0;
    c->ns = 0;
    c->tries++;
}

/* A run of `bytes` bytes took `ns`. The best try counts, because what disturbs a measurement only adds to it; but it is
 * forgotten slowly, and one that is far off, because a core was taken away, says no more than one twice as dear. */
static inline void choice_learn(struct choice *c, int way, uint64_t bytes, int64_t ns)
{
    if (c->moved >= CHOICE_TRY / 2 || bytes >= CHOICE_TRY / 2) {
        c->counted += bytes;
        c->ns += ns;
    }
    c->moved += bytes;
    if (c->moved >= CHOICE_TRY && c->counted)
        choice_judge(c, way);
}
#endif
