/* Choosing between some ways of doing the same thing by what they cost when they ran.
 *
 * Which way is better depends on what cannot be asked for: how far apart the cores are (virtual machines move them), page
 * sizes, who else uses the memory. So all are tried at first, and those that looked worse again every now and then.
 * A try lasts for as many runs as move CHOICE_TRY bytes, two at least, and its first half does not count: there a way still works
 * on lines and pages as the other has left them in the caches (8 ranks on 2 cores, all_to_all of 16 MiB through slots: 2.0 ms of each rank's
 * processor time after a run without them, 1.6 after one with them). Long runs are tries by themselves, and less of those is enough: many
 * programs make a dozen of them, half of which would be for learning. */
#ifndef ACOMM_CHOICE_H
#define ACOMM_CHOICE_H
#include <stdbool.h>
#include "acomm.h"

#define CHOICE_TRY ((uint64_t)4 << 20) /* bytes: twice through the area of a region (shared.h) */
#define CHOICE_TIMED 8     /* runs of a try at most whose time is taken: the clock shows in short ones */
#define CHOICE_WAYS 3      /* at most */
#define CHOICE_LEARN 4     /* tries of each way, in turn: some are disturbed, */
#define CHOICE_FIRST 2     /* and the first meets new memory; after so many it is enough of one that is worse by half */
#define CHOICE_KNOWN (CHOICE_WAYS * CHOICE_LEARN)
#define CHOICE_LONG ((uint64_t)16 << 20) /* bytes of a run; a power of two */
#define CHOICE_AGAIN 32    /* then a worse way is taken every so many tries at first, and so much less often, */
#define CHOICE_SELDOM 256  /* down to this, that it */
#define CHOICE_LOSS 0.005  /* costs no more than this part of all time, where it takes up to 2.28 times as long as the better
                            * one; one that takes ten times as long costs 9/256 */

struct choice {
    float cost[CHOICE_WAYS]; /* ns per byte of each way; 0: not known yet */
    uint32_t tries;
    bool spoilt;           /* something else made a run of this try dear */
    int agreed;            /* the way of this try, where ranks have to agree on it */
    uint64_t moved;        /* bytes in this try */
    uint64_t counted;      /* those of its last runs, and their time: single runs tell little, because who comes last */
    int64_t ns;            /* finds everything done */
};

/* Costs are comparable within one kind of operation and one power of two of its size. */
#define CHOICE_CLASSES 40

static inline int choice_class(uint64_t bytes)
{
    int class = bytes ? 63 - __builtin_clzll(bytes) : 0;
    return class < CHOICE_CLASSES ? class : CHOICE_CLASSES - 1;
}

/* Each begins with nothing: which way is better changes with the size (two ranks, scatter by slots and by the kernel: 128 KiB 3 and 5 us, 1
 * MiB 32 and 21; 4 ranks on 2 cores, all_to_all: 16 MiB 3.3 and 3.4 ms, 256 MiB 49 and 59). */
static inline struct choice *choice_for(struct choice *classes, uint64_t bytes)
{
    return &classes[choice_class(bytes)];
}

/* Every how many tries a way is taken that is worse than the best. */
static inline uint32_t choice_often(double worse, double best, uint32_t seldom)
{
    uint32_t often = CHOICE_AGAIN;
    while (often < seldom && worse - best > often * CHOICE_LOSS * best)
        often *= 2;
    return often;
}

/* The way of try number `try` of runs of `bytes` bytes among the first `ways`, when each costs so much; one that is worse comes every
 * `seldom` tries at least. */
static inline int choice_way(uint32_t try, uint64_t bytes, const float *cost, int ways, uint32_t seldom)
{
    int best = 0, turn = (int)(try % (uint32_t)ways);
    for (int way = 1; way < ways; way++)
        best = cost[way] < cost[best] ? way : best;
    if (try < (uint32_t)ways * (bytes < CHOICE_LONG ? CHOICE_LEARN : CHOICE_FIRST))
        return try < (uint32_t)ways * CHOICE_FIRST || cost[turn] < 1.5f * cost[best] ? turn : best;
    for (int way = 0; way < ways; way++)
        if (cost[way] == 0) /* all its tries were spoilt */
            return way;
    for (int way = 0; way < ways; way++) {
        uint32_t often = choice_often(cost[way], cost[best], seldom);
        if (way != best && try % often == often - 1 - (uint32_t)way) /* each in tries of its own */
            return way;
    }
    return best;
}

/* Whether a run of `bytes` bytes counts, that is, whether its time is wanted. */
static inline bool choice_counts(const struct choice *c, uint64_t bytes)
{
    bool late = c->moved >= CHOICE_TRY / 2 || bytes >= CHOICE_TRY / 2;
    return bytes >= CHOICE_LONG || (c->moved && late && c->moved + CHOICE_TIMED * bytes >= CHOICE_TRY);
}

#define CHOICE_SPOILT (-1) /* instead of a time */

/* A run of `bytes` bytes took `ns`. Whether that was the last one of a try that tells something: then what it cost, in ns a byte. */
static inline bool choice_tried(struct choice *c, uint64_t bytes, int64_t ns, float *cost)
{
    bool spoilt = c->spoilt = c->spoilt || ns == CHOICE_SPOILT;
    if (choice_counts(c, bytes)) {
        c->counted += bytes;
        c->ns += ns;
    }
    c->moved += bytes;
    if (c->moved < CHOICE_TRY || !c->counted)
        return false;
    *cost = (float)c->ns / (float)c->counted;
    c->moved = c->counted = 0;
    c->ns = 0;
    c->tries++;
    c->spoilt = false;
    return !spoilt;
}

/* The best try counts, because what disturbs a measurement only adds to it; but it is forgotten slowly once the ways are known, and
 * one that is far off, because a core was taken away, says no more than one twice as dear.
 * mean: that of the last tries counts, where they stand in each other's way: copies that read memory from all cores take longer
 * than the best one says, which had it to itself. Of the first ones the best, as they meet new memory. */
static inline void choice_learn(struct choice *c, int way, uint64_t bytes, int64_t ns, bool mean)
{
    float cost, *known = &c->cost[way];
    if (!choice_tried(c, bytes, ns, &cost))
        return;
    float most = cost < 2 * *known ? cost : 2 * *known;
    bool best = cost < *known && (!mean || c->tries <= CHOICE_WAYS * CHOICE_FIRST);
    if (*known == 0 || best)
        *known = cost;
    else if (mean || c->tries > CHOICE_KNOWN)
        *known += (most - *known) / (mean ? 4 : 8);
}
#endif
