/* Reduction kernels for CPUs with AVX2 and F16C (Haswell, Zen and later). */
#ifdef __x86_64__
#define REDUCE_LEVEL reduce_avx2
#define REDUCE_NAME "avx2"
#define REDUCE_TARGET "avx2,f16c"
#define REDUCE_F16C
#include "reduce/kernels.h"
#endif
