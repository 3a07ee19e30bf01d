/* Reduction kernels for CPUs with AVX2 and F16C (Haswell, Zen and later). */
#ifdef __x86_64__
#include <immintrin.h>
#include <math.h>
#include <string.h>
#define REDUCE_LEVEL reduce_avx2
#define REDUCE_NAME "avx2"
#define REDUCE_F16C
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#include "reduce/kernels.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
