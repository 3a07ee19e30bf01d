/* What the algorithms share that carry partial results from rank to rank. */
#ifndef ACOMM_PARTIALS_H
#define ACOMM_PARTIALS_H
#include "collectives/collectives.h"

static inline struct reduction partials_reduction(const struct acomm_op *op)
{
    return (struct reduction){.dtype = op->dtype, .redop = op->redop, .factor = op->factor, .ranks = op_inputs(op, op->team->rank, op->team->size)};
}

/* Scratch for the partials of one segment, in `buffers` buffers of `bytes`, and the buffer that combining transfers
 * need. The pieces of a combining transfer are small: a long array costs no more scratch than a short one. */
struct partials {
    struct acomm_op *op;
    struct reduction reduction;
    size_t width;          /* bytes of one element of a partial */
    bool widened;          /* partials have another type than the array */
    uint64_t segment;      /* elements */
    char *buffer, *bounce;
    size_t bytes;
};
/* Segments of at most `bytes`. 0, or the failure of the group when memory is out. */
int partials_open(struct partials *p, struct acomm_op *op, int buffers, size_t bytes);
/* Receives `count` elements from a rank and combines them into `partial`. swap: the received partial is the left operand. */
struct transfer partials_from(const struct partials *p, int peer, char *partial, uint64_t count, bool swap);
/* Sends `count` elements of a partial. */
struct transfer partials_to(const struct partials *p, int peer, const char *partial, uint64_t count);

/* A segment's part of a rank's block, in elements of all blocks. */
struct pattern_range partials_part(const struct partials *p, uint64_t segment, int rank);

/* Calls `run` for one segment of an all_reduce after the other. */
typedef int partials_run(struct partials *p, const char *in, char *out, uint64_t count);
int partials_each_segment(struct partials *p, partials_run *run);
#endif
