/* float16 by the F16C instructions, eight elements at a time: compilers do not vectorise to them by themselves.
 * Part of reduce/kernels.h. Results are those of its plain loops, which also do what is left over. */
typedef struct __attribute__((packed, may_alias)) { u16 element[8]; } f16x8;

INLINE __m256 f16x8_load(f16x8 x)
{
    __m128i bits;
    memcpy(&bits, &x, sizeof bits);
    return _mm256_cvtph_ps(bits);
}
INLINE f16x8 f16x8_done(__m256 x)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m128i bits = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    f16x8 out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static void float16_widen(void *to, const void *from, size_t count)
{
    size_t whole = count & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8)
        _mm256_storeu_ps((float *)to + i, f16x8_load(((const f16x8 *)from)[i / 8]));
    FLOAT16_widen((f32 *)to + whole, (const u16 *)from + whole, count - whole);
}
static void float16_narrow(void *to, const void *from, size_t count)
{
    size_t whole = count & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8)
        ((f16x8 *)to)[i / 8] = f16x8_done(_mm256_loadu_ps((const float *)from + i));
    FLOAT16_narrow((u16 *)to + whole, (const f32 *)from + whole, count - whole);
}

INLINE __m256 f16x8_sum(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
INLINE __m256 f16x8_product(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
INLINE __m256 f16x8_min(__m256 a, __m256 b) { return _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a)); }
INLINE __m256 f16x8_max(__m256 a, __m256 b)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_xor_ps(sign, f16x8_min(_mm256_xor_ps(sign, a), _mm256_xor_ps(sign, b)));
}

#define FOLD_FLOAT16(OP)                                                                                         \
    FOLD(f16x8_##OP, f16x8, __m256, f16x8_load, f16x8_##OP, f16x8_done)                                          \
    FOLD_PACKED(FLOAT16_##OP, f16x8_##OP, 8)
FOLD_FLOAT16(sum)
FOLD_FLOAT16(product)
FOLD_FLOAT16(min)
FOLD_FLOAT16(max)
