/* One table: collective, bytes, ranks, layout -> algorithm. */
#ifndef ACOMM_SELECT_H
#define ACOMM_SELECT_H
#include "op.h"

struct algorithm {
    int kind;
    const char *name;
    int (*run)(struct acomm_op *op);
    enum { ANYWHERE, ONE_HOST } where; /* ONE_HOST: uses the shared segment of all ranks */
    bool checks;       /* compares headers itself, while it runs; otherwise agree() runs before it */
    uint64_t up_to;    /* bytes (of the array, for the kinds of acomm.h) up to which the table picks it */
    int min_ranks;     /* first row that fits wins */
};
struct selection { uint64_t *up_to; /* per row, after thresholds */ const struct algorithm *forced[ACOMM_KINDS]; };

int select_open(struct selection *s, const char *algorithms, const char *thresholds, acomm_failure *why);
void select_close(struct selection *s);
const struct algorithm *select_algorithm(const struct acomm_group *g, const struct acomm_op *op);
#endif
