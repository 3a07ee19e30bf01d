/* One table: collective, bytes, ranks, layout -> algorithm. */
#ifndef ACOMM_SELECT_H
#define ACOMM_SELECT_H
#include "group/op.h"

struct acomm_group;
struct algorithm {
    int kind;
    const char *name, *function;
    int (*run)(struct acomm_op *op);
    /* Where the row counts. ONE_HOST: where all ranks share memory. SYMMETRIC: there, once arrays lie in it (group.empty).
     * HOSTS: of parts (select.h), for several hosts; EVEN_HOSTS: with as many ranks on each. NEAR: on one host, though over
     * sockets, or of two ranks. FABRIC: where one carries the data that has collectives. DEDICATED, DEDICATED_NEAR: as ONE_HOST, and on
     * one host though over sockets, where each rank can have a processor of its own. An algorithm runs where its least demanding row
     * counts. */
    enum { ANYWHERE, ONE_HOST, SYMMETRIC, HOSTS, EVEN_HOSTS, NEAR, FABRIC, DEDICATED, DEDICATED_NEAR } where;
    /* CHECKS: compares call signatures itself, while it runs; otherwise signature_check() runs before it. ORDERED: reduces each
     * element in the order of the ranks, so that its bits are those of all others that do. AHEAD: short ones may run before all
     * ranks have compared their calls (signature_ahead()). */
    enum { CHECKS = 1, ORDERED = 2, AHEAD = 4 } does;
    uint64_t up_to;    /* bytes up to which the table picks it */
    int max_ranks;     /* 0: any */
};
/* Made of parts, for several hosts. */
static inline bool select_spans_hosts(const struct algorithm *a) { return a->where == HOSTS || a->where == EVEN_HOSTS; }
/* Needs memory that all ranks share. */
static inline bool select_in_memory(const struct algorithm *a)
{
    return a->where == ONE_HOST || a->where == SYMMETRIC || a->where == DEDICATED;
}
/* What a group runs: settled when it is opened, so that a call compares bytes and nothing else. */
struct pick { uint64_t up_to; const struct algorithm *algorithm; };
struct selection {
    struct pick *picks;
    const struct pick *first[2][ACOMM_KINDS]; /* [arrays are symmetric][kind]: ends with a pick without a limit */
    const struct algorithm *forced[ACOMM_KINDS]; /* from the options, without a limit */
};

/* Lists as in acomm_group_options (tuned: for [symmetric] arrays), into g->selection; the group's places and shared memory
 * are known. What an earlier list leaves open, the later ones and then the table say. ACOMM_ARGUMENT when one names no row. */
int select_open(struct acomm_group *g, const char *algorithms, const char *tuned[2]);
void select_close(struct selection *s);
/* Checks call signatures if required, and runs the chosen algorithm; a single rank copies. */
int select_run(struct acomm_op *op);
/* The same by the table alone, without the group's options. */
int select_run_own(struct acomm_op *op);
const struct algorithm *select_algorithm(const struct acomm_group *g, const struct acomm_op *op);

/* Parts of an operation: collectives of a team on behalf of one of the whole group.
 *
 * A part is an operation of its own in all but this: its call signature, sequence and failures are those of its parent operation,
 * which also states whether signatures have still to be compared (`compared`). The table chooses its algorithm; algorithms that
 * are made of parts are for groups over several hosts, so parts have none.
 *
 * Every algorithm for several hosts begins with a round among the ranks of each host and goes on with a message that starts with
 * a call signature among the ranks of local rank 0, and so does signature_check(): ranks with different calls still meet. */
/* A part with the type, reduction and layout of `op`; everything else is given. */
struct acomm_op part_of(const struct acomm_op *op, const struct team *team, int kind, const void *in, void *out,
                        uint64_t count);
/* Blocking; 0 or the group's failure. A team that this rank is not in has nothing to do. */
int part_run(struct acomm_op *op, struct acomm_op *part);
/* The same by an algorithm that is given. */
int part_run_by(struct acomm_op *op, struct acomm_op *part, int (*run)(struct acomm_op *part));
#endif
