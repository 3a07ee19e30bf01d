/* What the algorithms over several hosts share that divide an array among leaders: the ranks of the first regions of every
 * host. Slice i of an array, or of a segment of it, is what leader i of each host handles; it exchanges that with the
 * leaders i of the other hosts, its column. As many leaders as the smallest host has ranks: then every column is whole. */
#ifndef ACOMM_SLICES_H
#define ACOMM_SLICES_H
#include "collectives/collectives.h"

struct slices {
    struct acomm_op *op;
    const struct hosts *hosts;
    int leaders, local_rank, host;     /* this rank's region and host */
    bool leads;
    uint64_t segment;            /* elements */
    uint64_t *counts;            /* room for the elements of all regions, or of all hosts */
    uint64_t *places;            /* as many */
    char *buffer;                /* `bytes` of scratch */
    /* of reductions: partials have their own type, and only the first of two reductions scales */
    struct reduction reduction;
    int dtype, redop;
    size_t width;                /* bytes of a partial */
    bool begins;                 /* contributions have to be made partials first (reduce_begin) */
};

/* `leaders` at most. Segments of at most `bytes` of partials, and `buffers` of them as scratch. 0 or the group's failure. */
int slices_open(struct slices *s, struct acomm_op *op, int leaders, int buffers, size_t bytes);
/* Of `count` elements, what local rank `local_rank` handles; nothing for those that do not lead. */
struct pattern_range slices_of(const struct slices *s, uint64_t count, int local_rank);
/* s->counts: what each local rank of this host handles. */
void slices_count(const struct slices *s, uint64_t count);
/* A part that reduces partials. */
struct acomm_op slices_reducing(const struct slices *s, const struct team *team, int kind, const void *in, void *out,
                                uint64_t count);
#endif
