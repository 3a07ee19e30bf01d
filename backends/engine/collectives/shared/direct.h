/* Collectives of the ranks of one host that read each other's arrays where they lie, instead of through slots.
 *
 * In the first round every rank offers the address of its arrays. A symmetric array (arena.h) is mapped by the peers; any other
 * is read or written by the kernel (window.h), where the system permits that among all ranks. After a last round all ranks have
 * finished with the others' arrays.
 * One copy is not always cheaper than two: the kernel is slow on small pages, and its stores fetch the overwritten lines. Where
 * slots are better (short arrays; where ranks share processors, broadcast and all_gather of many), only symmetric arrays come
 * here. If the copy finds an array that only its owner can access, all private ones then use slots. */
#ifndef ACOMM_DIRECT_H
#define ACOMM_DIRECT_H
#include "group/op.h"
#include "group/shared/symmetric.h"

struct acomm_group;
struct rounds;

/* Bytes of the whole array up to which private arrays beside symmetric ones go through slots in all_to_all, and in all_gather of
 * two ranks; and beyond which private arrays of ranks that share CPUs come here in all_to_all: two synchronizations need a turn
 * of every rank each. At 4 and 8 ranks on 2 cores, slots take 0.9 to 1.1 times as long at 256 KiB, and 1.3 to 1.6 at 1 MiB. */
#define DIRECT_FROM ((uint64_t)512 << 10)

struct direct_plan {
    uint64_t bytes;              /* no offered array is larger */
    uint64_t offered;            /* bytes at `in` and at `out` that peers may access; 0: none */
    uint64_t offered_out;
    bool pushed;                 /* peers may write to `out` */
    bool repeats;                /* no input is overwritten: slots can do it after a part of it failed */
    bool pushes;                 /* sent to all: this rank has time to do part of the others' copying */
    bool shared;                 /* private arrays beside symmetric ones go through slots: results use non-temporal stores */
    int (*staged)(struct acomm_op *op);
    int (*move)(struct rounds *r); /* reads the others' offered arrays and writes the result */
};
int direct_run(struct acomm_op *op, const struct direct_plan *plan);
/* Copies from a peer's array, or to it; reads are a part of `whole` bytes (stream_long). Blocks; 0 or the group's failure. */
int direct_read(struct rounds *r, int rank, struct direct_place from, uint64_t offset, char *to, size_t bytes, size_t whole);
int direct_write(struct rounds *r, int rank, struct direct_place to, uint64_t offset, const char *from, size_t bytes);
/* Where the peer's array is mapped, or NULL. */
char *direct_mapped(const struct rounds *r, int rank, struct direct_place place);
const struct direct_offer *direct_offer(const struct rounds *r, int rank);
#endif
