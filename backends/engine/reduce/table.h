/* What one compilation of reduce/kernels.h offers: the kernels of one CPU level, for types of 32 bits and more
 * ("wide"), and the conversions of the narrower floats from and to float32. Addresses may be unaligned everywhere, and
 * `out` may be the same address as any input. */
#ifndef ACOMM_REDUCE_TABLE_H
#define ACOMM_REDUCE_TABLE_H
#include "reduce/reduce.h"

#define REDUCE_FOLDS (ACOMM_BXOR + 1) /* avg and premul_sum fold like sum */

struct reduce_kernels {
    const char *name;
    /* out = ((in[0] op in[1]) op in[2]) ... for 2, 3, 4 or 8 inputs, rounded once. NULL where the pair does not exist,
     * where reduce.c expresses it by another type (bits of any integer by uint8, sums of complex by their real type),
     * for products of complex numbers on all levels but the portable one, and for narrow floats that are better
     * widened first. */
    void (*fold[REDUCE_FOLDS][ACOMM_DTYPES])(void *out, const void *const *in, int inputs, size_t count);
    /* Partial result from an element; NULL where it is the element itself. */
    void (*widen[ACOMM_DTYPES])(void *partial, const void *in, size_t count);
    /* The inverse, rounding to nearest even. */
    void (*narrow[ACOMM_DTYPES])(void *out, const void *partial, size_t count);
    /* Partial results times a factor, and divided by a number of ranks. */
    void (*scale[ACOMM_DTYPES])(void *out, const void *in, size_t count, double factor);
    void (*divide[ACOMM_DTYPES])(void *out, const void *in, size_t count, int ranks);
};

extern const struct reduce_kernels reduce_portable;
#ifdef __x86_64__
extern const struct reduce_kernels reduce_avx2, reduce_avx512;
#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10
#define REDUCE_HAS_BF16 /* the compiler knows AVX512_BF16 */
extern const struct reduce_kernels reduce_avx512bf16;
#endif
#endif

/* For tests: use the kernels of that name from now on; NULL: the best of this CPU. ACOMM_UNSUPPORTED where it has not
 * got them. Not to be called while another thread reduces. */
int reduce_force(const char *name);
#endif
