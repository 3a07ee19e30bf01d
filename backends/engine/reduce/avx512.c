/* Reduction kernels for CPUs with AVX-512 F, BW, VL and DQ (Skylake-X, Zen 4 and later). */
#ifdef __x86_64__
#define REDUCE_LEVEL reduce_avx512
#define REDUCE_NAME "avx512"
#define REDUCE_TARGET "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq"
#define REDUCE_F16C
#include "reduce/kernels.h"
#endif
