/* Reduction kernels for CPUs with AVX512_BF16 besides (Cooper Lake, Sapphire Rapids, Zen 4 and later). */
#include "reduce/table.h"
#ifdef REDUCE_HAS_BF16
#include <immintrin.h>
#include <math.h>
#include <string.h>
#define REDUCE_LEVEL reduce_avx512bf16
#define REDUCE_NAME "avx512bf16"
#define REDUCE_F16C
#define REDUCE_BF16
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif
#include "reduce/kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
