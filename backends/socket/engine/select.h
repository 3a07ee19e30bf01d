/* One table: collective, bytes, ranks, layout -> algorithm. */
#ifndef ACOMM_SELECT_H
#define ACOMM_SELECT_H
#include "op.h"

struct acomm_group;
struct algorithm {
    int kind;
    const char *name;
    int (*run)(struct acomm_op *op);
    /* ONE_HOST: uses the shared segment of all ranks. SYMMETRIC: gains only where arrays lie in it (group.empty).
     * HOSTS: of parts (part.h), for several hosts; EVEN_HOSTS: with as many ranks on each. */
    enum { ANYWHERE, ONE_HOST, SYMMETRIC, HOSTS, EVEN_HOSTS } where;
    bool checks;       /* compares headers itself, while it runs; otherwise agree() runs before it */
    uint64_t up_to;    /* bytes up to which the table picks it */
    int max_ranks;     /* 0: any */
};
/* Made of parts, for several hosts. */
static inline bool select_spans_hosts(const struct algorithm *a) { return a->where == HOSTS || a->where == EVEN_HOSTS; }
struct selection {
    uint64_t *up_to;   /* per row, after thresholds */
    size_t first[ACOMM_KINDS]; /* row of each kind */
    const struct algorithm *forced[ACOMM_KINDS];
};

/* Lists as in acomm_group_options; ACOMM_ARGUMENT when one names no row. */
int select_open(struct selection *s, const char *algorithms, const char *thresholds);
void select_close(struct selection *s);
const struct algorithm *select_algorithm(const struct acomm_group *g, const struct acomm_op *op);
/* Name of a kind; and of the rows, one by one, until 0 is returned. */
const char *select_kind_name(int kind);
int select_name(size_t row, const char **kind, const char **name);
#endif
