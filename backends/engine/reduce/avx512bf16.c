/* Reduction kernels for CPUs with AVX512_BF16 besides (Cooper Lake, Sapphire Rapids, Zen 4 and later). */
#include "reduce/table.h"
#ifdef REDUCE_HAS_BF16
#define REDUCE_LEVEL reduce_avx512bf16
#define REDUCE_NAME "avx512bf16"
#define REDUCE_TARGET "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"
#define REDUCE_F16C
#define REDUCE_BF16
#include "reduce/kernels.h"
#endif
