/* bfloat16 by AVX512_BF16's conversion, 32 elements at a time: half of the instructions of rounding by integers.
 * Part of reduce/kernels.h. It flushes subnormals to zero and keeps a NaN's payload, which the plain loops do not: where a result
 * is one of these, its 32 elements are rounded as theirs are. */
typedef struct __attribute__((packed, may_alias)) { u16 element[32]; } bf16x32;
typedef struct { __m512 low, high; } bf16x32_wide; /* of the elements with even and with odd numbers */

INLINE bf16x32_wide bf16x32_load(bf16x32 x)
{
    __m512i bits;
    memcpy(&bits, &x, sizeof bits);
    return (bf16x32_wide){_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
                          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000)))};
}

static bf16x32 __attribute__((noinline)) bf16x32_by_integers(bf16x32_wide x)
{
    bf16x32 out;
    float low[16], high[16];
    memcpy(low, &x.low, sizeof low);
    memcpy(high, &x.high, sizeof high);
    for (int i = 0; i < 16; i++) {
        out.element[2 * i] = bfloat16_encode(low[i]);
        out.element[2 * i + 1] = bfloat16_encode(high[i]);
    }
    return out;
}

INLINE bf16x32 bf16x32_done(bf16x32_wide x)
{
    enum { SPECIAL = 0x01 | 0x80 | 0x20 }; /* quiet NaN, signalling NaN, subnormal */
    if (__builtin_expect(_mm512_fpclass_ps_mask(x.low, SPECIAL) | _mm512_fpclass_ps_mask(x.high, SPECIAL), 0))
        return bf16x32_by_integers(x);
    const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i bits = _mm512_permutexvar_epi16(turns, (__m512i)_mm512_cvtne2ps_pbh(x.high, x.low));
    bf16x32 out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

INLINE __m512 f32x16_sum(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
INLINE __m512 f32x16_product(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
INLINE __m512 f32x16_min(__m512 a, __m512 b) { return _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a)); }
INLINE __m512 f32x16_max(__m512 a, __m512 b)
{
    const __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_xor_ps(sign, f32x16_min(_mm512_xor_ps(sign, a), _mm512_xor_ps(sign, b)));
}

#define FOLD_BFLOAT16(OP)                                                                                        \
    INLINE bf16x32_wide bf16x32_##OP(bf16x32_wide a, bf16x32_wide b)                                             \
    {                                                                                                            \
        return (bf16x32_wide){f32x16_##OP(a.low, b.low), f32x16_##OP(a.high, b.high)};                           \
    }                                                                                                            \
    FOLD(bf16x32_##OP, bf16x32, bf16x32_wide, bf16x32_load, bf16x32_##OP, bf16x32_done)                          \
    FOLD_PACKED(BFLOAT16_##OP, bf16x32_##OP, 32)
