/* Reduction kernels for CPUs with AVX-512 F, BW, VL and DQ (Skylake-X, Zen 4 and later). */
#ifdef __x86_64__
#include <immintrin.h>
#include <math.h>
#include <string.h>
#define REDUCE_LEVEL reduce_avx512
#define REDUCE_NAME "avx512"
#define REDUCE_F16C
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#endif
#include "reduce/kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
