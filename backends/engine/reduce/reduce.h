/* Reduction kernels: a table [redop][dtype], vectorised, chosen once for the CPU at hand.
 *
 * Semantics (docs/reference/reductions.md): integers wrap; integer avg truncates toward zero; bool: sum, max, bor = or,
 * product, min, band = and, bxor = xor, no avg; min and max give NaN where any input is NaN; -0 orders below +0;
 * complex has sum, product, avg, premul_sum; band, bor, bxor only integers and bool. The sum of an integer avg wraps.
 * premul_sum of integers: a whole factor below 2^53 multiplies with wrapping; any other one in double, each product
 * truncated toward zero and kept in the type's range. A NaN in a result is the canonical one (positive, quiet, no
 * payload), but a single input is copied as it is.
 * The result of an element depends only on its inputs in their order, never on its position, the vector width
 * or the CPU (the build forbids contraction to fused multiply-add). */
#ifndef ACOMM_REDUCE_H
#define ACOMM_REDUCE_H
#include <stdbool.h>
#include "acomm.h"

struct reduction { int dtype, redop; double factor; int ranks; /* divisor of avg */ };

static inline bool reduce_complex(int dtype) { return dtype == ACOMM_COMPLEX64 || dtype == ACOMM_COMPLEX128; }
/* Whether the table has this pair. */
bool reduce_supported(int dtype, int redop);

/* Complete reduction: out[i] = in[0][i] op in[1][i] op ... in rank order; without inputs the
 * reduction's identity, the value that changes nothing (infinities for min and max, where the type has them, else its largest and
 * smallest), and zeros where it has none. Types narrower than 32 bits
 * are accumulated in float32 and rounded once; premul and avg applied. out may be one of the inputs (same address),
 * otherwise no overlap. Unaligned addresses are allowed. */
void reduce_all(const struct reduction *r, void *out, const void *const *in, int inputs, uint64_t count);

/* For algorithms that carry partial results between ranks (ring, doubling): */
/* dtype of a partial result: float32 for float16, bfloat16, float8; itself otherwise. */
int reduce_partial_dtype(int dtype);
/* partial[i] = contribution (premul applied, widened). In place when the types are equal. */
void reduce_begin(const struct reduction *r, void *partial, const void *in, uint64_t count);
/* partial[i] = partial[i] op other[i]; left operand first. swap: other[i] op partial[i]. */
void reduce_combine(const struct reduction *r, void *partial, const void *other, uint64_t count, bool swap);
/* out[i] = final (avg divided, narrowed and rounded once). In place when the types are equal. */
void reduce_finish(const struct reduction *r, void *out, const void *partial, uint64_t count);
#endif
