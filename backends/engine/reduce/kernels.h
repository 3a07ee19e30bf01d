/* The loops of one CPU level. Included by one small file per level, which defines REDUCE_TARGET (the instruction sets of everything
 * in here), REDUCE_LEVEL (the table's name), REDUCE_NAME (its text), and REDUCE_COMPLEX, REDUCE_F16C or REDUCE_BF16 where those
 * parts are wanted.
 *
 * Loops are plain C over elements: compilers vectorise all of them at -O3, and the remainder of a vector loop is the
 * same arithmetic. NaN is stored as the one canonical NaN, because which of two NaNs an addition returns depends on
 * the operand order that the compiler picks, and the NaN of inf - inf on the CPU. */
#include <math.h>
#include <string.h>
#include "reduce/table.h"

#ifdef REDUCE_TARGET
#include <immintrin.h>
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#ifdef __clang__
#define FOR_TARGET(set) PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#else
#define FOR_TARGET(set) PRAGMA(GCC target(set))
#endif
FOR_TARGET(REDUCE_TARGET)
#endif
#include "reduce/convert.h"

#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* without optimisation loops stay scalar, and right */
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < count; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)
#endif
#define INLINE static inline __attribute__((always_inline))

/* Elements at any address, in memory of any type. */
#define ELEMENT __attribute__((aligned(1), may_alias))
typedef uint8_t u8;
typedef int8_t i8;
typedef uint16_t u16 ELEMENT;
typedef int16_t i16 ELEMENT;
typedef uint32_t u32 ELEMENT;
typedef int32_t i32 ELEMENT;
typedef uint64_t u64 ELEMENT;
typedef int64_t i64 ELEMENT;
typedef float f32 ELEMENT;
typedef double f64 ELEMENT;
typedef struct __attribute__((packed, may_alias)) { float re, im; } c32;
typedef struct __attribute__((packed, may_alias)) { double re, im; } c64;

/* ---- operations on two elements ---- */
/* OF, BITS: from bits and to bits. Both choices of min are the same number, except that of two zeros or with a NaN each chooses
 * another one: there OR gives -0 and NaN. */
#define FLOATING(T, V, OF, BITS, NOT_A_NUMBER)                                                                   \
    INLINE V T##_done(V x) { return x != x ? OF(NOT_A_NUMBER) : x; }                                             \
    INLINE V T##_sum(V a, V b) { return a + b; }                                                                 \
    INLINE V T##_product(V a, V b) { return a * b; }                                                             \
    INLINE V T##_min(V a, V b) { return OF(BITS(a < b ? a : b) | BITS(b < a ? b : a)); }                         \
    INLINE V T##_max(V a, V b) { return -T##_min(-a, -b); }
FLOATING(f32, float, float_of, bits_of, 0x7fc00000)
FLOATING(f64, double, double_of, bits_of_double, 0x7ff8000000000000)
#ifdef REDUCE_COMPLEX
INLINE c32 c32_done(c32 a) { return (c32){f32_done(a.re), f32_done(a.im)}; }
INLINE c64 c64_done(c64 a) { return (c64){f64_done(a.re), f64_done(a.im)}; }
/* The textbook formula, as NumPy and torch have it: C's own multiplication repairs infinities by a library call. */
INLINE c32 c32_product(c32 a, c32 b) { return (c32){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
INLINE c64 c64_product(c64 a, c64 b) { return (c64){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
#endif

/* Unsigned arithmetic wraps; W keeps the small types away from overflow of int. */
#define WRAPPING(T, W)                                                             \
    INLINE T T##_sum(T a, T b) { return (T)((W)a + (W)b); }                        \
    INLINE T T##_product(T a, T b) { return (T)((W)a * (W)b); }
WRAPPING(u8, uint32_t)
WRAPPING(u16, uint32_t)
WRAPPING(u32, uint32_t)
WRAPPING(u64, uint64_t)
#define ORDERED(T)                                                                 \
    INLINE T T##_min(T a, T b) { return a < b ? a : b; }                           \
    INLINE T T##_max(T a, T b) { return a > b ? a : b; }
ORDERED(u8)
ORDERED(i8)
ORDERED(u16)
ORDERED(i16)
ORDERED(u32)
ORDERED(i32)
ORDERED(u64)
ORDERED(i64)
INLINE u8 u8_band(u8 a, u8 b) { return a & b; }
INLINE u8 u8_bor(u8 a, u8 b) { return a | b; }
INLINE u8 u8_bxor(u8 a, u8 b) { return a ^ b; }
INLINE u8 u8_all(u8 a, u8 b) { return (a != 0) & (b != 0); }
INLINE u8 u8_any(u8 a, u8 b) { return (a | b) != 0; }
INLINE u8 u8_odd(u8 a, u8 b) { return (a != 0) ^ (b != 0); }

/* ---- folds: every input is read once and the output written once ---- */
/* V: what LOAD makes of an element and OP takes; DONE makes an element of it again. */
#define FOLD(NAME, T, V, LOAD, OP, DONE)                                                                         \
    static void NAME##_fold(void *to, const void *const *in, int inputs, size_t count)                           \
    {                                                                                                            \
        T *out = to;                                                                                             \
        const T *a = in[0], *b = in[1];                                                                          \
        if (inputs == 2) {                                                                                       \
            EACH out[i] = DONE(OP(LOAD(a[i]), LOAD(b[i])));                                                      \
            return;                                                                                              \
        }                                                                                                        \
        const T *c = in[2];                                                                                      \
        if (inputs == 3) {                                                                                       \
            EACH out[i] = DONE(OP(OP(LOAD(a[i]), LOAD(b[i])), LOAD(c[i])));                                      \
            return;                                                                                              \
        }                                                                                                        \
        const T *d = in[3];                                                                                      \
        if (inputs == 4) {                                                                                       \
            EACH out[i] = DONE(OP(OP(OP(LOAD(a[i]), LOAD(b[i])), LOAD(c[i])), LOAD(d[i])));                      \
            return;                                                                                              \
        }                                                                                                        \
        const T *e = in[4], *f = in[5], *g = in[6], *h = in[7];                                                  \
        EACH {                                                                                                   \
            V four = OP(OP(OP(LOAD(a[i]), LOAD(b[i])), LOAD(c[i])), LOAD(d[i]));                                 \
            out[i] = DONE(OP(OP(OP(OP(four, LOAD(e[i])), LOAD(f[i])), LOAD(g[i])), LOAD(h[i])));                 \
        }                                                                                                        \
    }
#define AS_IT_IS(x) (x)
#define FOLD_EXACT(T, OP) FOLD(T##_##OP, T, T, AS_IT_IS, T##_##OP, AS_IT_IS)
#define FOLD_FLOAT(T, OP) FOLD(T##_##OP, T, T, AS_IT_IS, T##_##OP, T##_done)
#define FOLD_INTEGER(T) FOLD_EXACT(T, sum) FOLD_EXACT(T, product) FOLD_EXACT(T, min) FOLD_EXACT(T, max)
FOLD_INTEGER(u8)
FOLD_INTEGER(u16)
FOLD_INTEGER(u32)
FOLD_INTEGER(u64)
#define FOLD_ORDER(T) FOLD_EXACT(T, min) FOLD_EXACT(T, max)
FOLD_ORDER(i8)
FOLD_ORDER(i16)
FOLD_ORDER(i32)
FOLD_ORDER(i64)
#define FOLD_BITS(X) FOLD_EXACT(u8, X)
FOLD_BITS(band)
FOLD_BITS(bor)
FOLD_BITS(bxor)
FOLD_BITS(all)
FOLD_BITS(any)
FOLD_BITS(odd)
#define FOLD_REAL(T) FOLD_FLOAT(T, sum) FOLD_FLOAT(T, product) FOLD_FLOAT(T, min) FOLD_FLOAT(T, max)
FOLD_REAL(f32)
FOLD_REAL(f64)
#ifdef REDUCE_COMPLEX
FOLD_FLOAT(c32, product)
FOLD_FLOAT(c64, product)
#define COMPLEX_PRODUCT [ACOMM_COMPLEX64] = c32_product_fold, [ACOMM_COMPLEX128] = c64_product_fold
#else
#define COMPLEX_PRODUCT
#endif

/* Narrow floats are folded `many` to a packed element; the last ones go through the same kernel, padded with zeros. */
typedef void fold_kernel(void *out, const void *const *in, int inputs, size_t count);
static void fold_rest(fold_kernel *fold, char *out, const void *const *in, int inputs, size_t offset, size_t bytes)
{
    char padded[8][64] = {{0}};
    const void *operands[8];
    for (int k = 0; k < 8; k++) {
        operands[k] = padded[k];
        if (k < inputs)
            memcpy(padded[k], (const char *)in[k] + offset, bytes);
    }
    fold(padded, operands, inputs, 1);
    memcpy(out + offset, padded, bytes);
}
#define FOLD_PACKED(NAME, PACKED, many)                                                                          \
    static void NAME##_fold(void *out, const void *const *in, int inputs, size_t count)                          \
    {                                                                                                            \
        size_t rest = count % many;                                                                              \
        PACKED##_fold(out, in, inputs, count / many);                                                            \
        if (rest)                                                                                                \
            fold_rest(PACKED##_fold, out, in, inputs, (count - rest) * sizeof(u16), rest * sizeof(u16));         \
    }

#ifdef REDUCE_BF16
#include "reduce/bf16.h"
#else
/* Two bfloat16 in a word: their float32 are a shift and a mask away, without the shuffles of a change of width. */
typedef struct { float low, high; } bf16x2;
INLINE bf16x2 bf16x2_load(u32 x) { return (bf16x2){float_of(x << 16), float_of(x & 0xffff0000)}; }
INLINE u32 bf16x2_done(bf16x2 x) { return bfloat16_round(x.low) >> 16 | bfloat16_round(x.high); }
#define FOLD_BFLOAT16(OP)                                                                                        \
    INLINE bf16x2 bf16x2_##OP(bf16x2 a, bf16x2 b)                                                                \
    {                                                                                                            \
        return (bf16x2){f32_##OP(a.low, b.low), f32_##OP(a.high, b.high)};                                       \
    }                                                                                                            \
    FOLD(bf16x2_##OP, u32, bf16x2, bf16x2_load, bf16x2_##OP, bf16x2_done)                                        \
    FOLD_PACKED(BFLOAT16_##OP, bf16x2_##OP, 2)
#endif
FOLD_BFLOAT16(sum)
FOLD_BFLOAT16(product)
FOLD_BFLOAT16(min)
FOLD_BFLOAT16(max)

/* ---- factor and divisor ---- */
/* Whole factors multiply with wrapping; others in double, truncated toward zero, kept within LOW..HIGH; NaN gives 0.
 * Q has the quotient: where it is a float, dividend and divisor are exact in it or the quotient is below 1, so that the
 * rounded quotient never reaches the next integer. Integer division has no vector form. */
#define SCALE_INTEGER(T, U, Q, LOW, HIGH)                                                                           \
    INLINE T T##_truncated(double x)                                                                             \
    {                                                                                                            \
        T inside = x > (double)(LOW) && x < (double)(HIGH) ? (T)x : 0;                                           \
        return x <= (double)(LOW) ? (LOW) : x >= (double)(HIGH) ? (HIGH) : inside;                               \
    }                                                                                                            \
    static void T##_scale(void *to, const void *from, size_t count, double factor)                               \
    {                                                                                                            \
        T *out = to;                                                                                             \
        const T *in = from;                                                                                      \
        if (fabs(factor) < 9007199254740992.0 && factor == (double)(int64_t)factor) {                            \
            U whole = (U)(int64_t)factor;                                                                        \
            EACH out[i] = (T)U##_product((U)in[i], whole);                                                       \
        } else {                                                                                                 \
            EACH out[i] = T##_truncated((double)in[i] * factor);                                                 \
        }                                                                                                        \
    }                                                                                                            \
    static void T##_divide(void *to, const void *from, size_t count, int ranks)                                  \
    {                                                                                                            \
        T *out = to;                                                                                             \
        const T *in = from;                                                                                      \
        EACH out[i] = (T)((Q)in[i] / (Q)ranks);                                                                  \
    }
SCALE_INTEGER(u8, u8, float, 0, UINT8_MAX)
SCALE_INTEGER(u16, u16, float, 0, UINT16_MAX)
SCALE_INTEGER(u32, u32, double, 0, UINT32_MAX)
SCALE_INTEGER(u64, u64, uint64_t, 0, UINT64_MAX)
SCALE_INTEGER(i8, u8, float, INT8_MIN, INT8_MAX)
SCALE_INTEGER(i16, u16, float, INT16_MIN, INT16_MAX)
SCALE_INTEGER(i32, u32, double, INT32_MIN, INT32_MAX)
SCALE_INTEGER(i64, u64, int64_t, INT64_MIN, INT64_MAX)

#define SCALE_FLOAT(T, V)                                                                                        \
    static void T##_scale(void *to, const void *from, size_t count, double factor)                               \
    {                                                                                                            \
        T *out = to;                                                                                             \
        const T *in = from;                                                                                      \
        V by = (V)factor;                                                                                        \
        EACH out[i] = T##_done(in[i] * by);                                                                      \
    }                                                                                                            \
    static void T##_divide(void *to, const void *from, size_t count, int ranks)                                  \
    {                                                                                                            \
        T *out = to;                                                                                             \
        const T *in = from;                                                                                      \
        V by = (V)ranks;                                                                                         \
        EACH out[i] = T##_done(in[i] / by);                                                                      \
    }
SCALE_FLOAT(f32, float)
SCALE_FLOAT(f64, double)

/* ---- conversions ---- */
static void bool_widen(void *to, const void *from, size_t count)
{
    u8 *out = to;
    const u8 *in = from;
    EACH out[i] = in[i] != 0;
}
#define NARROW(NAME, T, DECODE, ENCODE)                                                                          \
    static void NAME##_widen(void *to, const void *from, size_t count)                                           \
    {                                                                                                            \
        f32 *out = to;                                                                                           \
        const T *in = from;                                                                                      \
        EACH out[i] = DECODE(in[i]);                                                                             \
    }                                                                                                            \
    static void NAME##_narrow(void *to, const void *from, size_t count)                                          \
    {                                                                                                            \
        T *out = to;                                                                                             \
        const f32 *in = from;                                                                                    \
        EACH out[i] = ENCODE(in[i]);                                                                             \
    }
#define MINIFLOAT(T, KIND)                                                                                       \
    INLINE float KIND##_decode(T code) { return minifloat_decode(code, MINIFLOAT_##KIND); }                      \
    INLINE T KIND##_encode(float value) { return (T)minifloat_encode(value, MINIFLOAT_##KIND); }                 \
    NARROW(KIND, T, KIND##_decode, KIND##_encode)
NARROW(BFLOAT16, u16, bfloat16_decode, bfloat16_encode)
NARROW(FLOAT8_E8M0FNU, u8, exponent_decode, exponent_encode)
MINIFLOAT(u8, FLOAT8_E3M4)
MINIFLOAT(u8, FLOAT8_E4M3)
MINIFLOAT(u8, FLOAT8_E4M3B11FNUZ)
MINIFLOAT(u8, FLOAT8_E4M3FN)
MINIFLOAT(u8, FLOAT8_E4M3FNUZ)
MINIFLOAT(u8, FLOAT8_E5M2)
MINIFLOAT(u8, FLOAT8_E5M2FNUZ)
MINIFLOAT(u16, FLOAT16)

#ifdef REDUCE_F16C
#include "reduce/f16c.h"
#define FLOAT16_FOLD(OP) [ACOMM_FLOAT16] = FLOAT16_##OP##_fold
#else
#define float16_widen FLOAT16_widen
#define float16_narrow FLOAT16_narrow
#define FLOAT16_FOLD(OP) [ACOMM_FLOAT16] = NULL
#endif

/* ---- the table ---- */
#define FLOATS8(X)                                                                                               \
    X(FLOAT8_E3M4), X(FLOAT8_E4M3), X(FLOAT8_E4M3B11FNUZ), X(FLOAT8_E4M3FN), X(FLOAT8_E4M3FNUZ), X(FLOAT8_E5M2), \
        X(FLOAT8_E5M2FNUZ), X(FLOAT8_E8M0FNU)
#define WIDEN(KIND) [ACOMM_##KIND] = KIND##_widen
#define SHORTEN(KIND) [ACOMM_##KIND] = KIND##_narrow
#define INTEGERS(SIGNED, UNSIGNED, OF)                                                                           \
    [ACOMM_INT8] = SIGNED##8_##OF, [ACOMM_INT16] = SIGNED##16_##OF, [ACOMM_INT32] = SIGNED##32_##OF,             \
    [ACOMM_INT64] = SIGNED##64_##OF, [ACOMM_UINT8] = UNSIGNED##8_##OF, [ACOMM_UINT16] = UNSIGNED##16_##OF,       \
    [ACOMM_UINT32] = UNSIGNED##32_##OF, [ACOMM_UINT64] = UNSIGNED##64_##OF
#define REALS(OF) [ACOMM_FLOAT32] = f32_##OF, [ACOMM_FLOAT64] = f64_##OF
#define FLOATS(OP) REALS(OP##_fold), [ACOMM_BFLOAT16] = BFLOAT16_##OP##_fold, FLOAT16_FOLD(OP)

const struct reduce_kernels REDUCE_LEVEL = {
    .name = REDUCE_NAME,
    .fold = {
        [ACOMM_SUM] = {[ACOMM_BOOL] = u8_any_fold, INTEGERS(u, u, sum_fold), FLOATS(sum)},
        [ACOMM_PRODUCT] = {[ACOMM_BOOL] = u8_all_fold, INTEGERS(u, u, product_fold), FLOATS(product),
                           COMPLEX_PRODUCT},
        [ACOMM_MIN] = {[ACOMM_BOOL] = u8_all_fold, INTEGERS(i, u, min_fold), FLOATS(min)},
        [ACOMM_MAX] = {[ACOMM_BOOL] = u8_any_fold, INTEGERS(i, u, max_fold), FLOATS(max)},
        [ACOMM_BAND] = {[ACOMM_BOOL] = u8_all_fold, [ACOMM_UINT8] = u8_band_fold},
        [ACOMM_BOR] = {[ACOMM_BOOL] = u8_any_fold, [ACOMM_UINT8] = u8_bor_fold},
        [ACOMM_BXOR] = {[ACOMM_BOOL] = u8_odd_fold, [ACOMM_UINT8] = u8_bxor_fold},
    },
    .widen = {[ACOMM_BOOL] = bool_widen, [ACOMM_FLOAT16] = float16_widen, WIDEN(BFLOAT16), FLOATS8(WIDEN)},
    .narrow = {[ACOMM_FLOAT16] = float16_narrow, SHORTEN(BFLOAT16), FLOATS8(SHORTEN)},
    .scale = {INTEGERS(i, u, scale), REALS(scale)},
    .divide = {INTEGERS(i, u, divide), REALS(divide)},
};
#if defined(REDUCE_TARGET) && defined(__clang__)
#pragma clang attribute pop
#endif
