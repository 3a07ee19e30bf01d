/* Elements of narrow floats to float32 and back, one at a time and without branches, so that compilers vectorise them.
 *
 * Integer arithmetic instead of tables or multiplications of float32 subnormals: the latter would depend on the
 * flush-to-zero mode of the calling thread, and tables cannot be vectorised without slow gathers.
 * AVX512_BF16's conversion flushes subnormals to zero: see reduce/bf16.h. */
#ifndef ACOMM_REDUCE_CONVERT_H
#define ACOMM_REDUCE_CONVERT_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CONVERT static inline __attribute__((always_inline))

/* The same bits as another type. */
#define REINTERPRET(name, from, to) CONVERT to name(from value) { to same; memcpy(&same, &value, sizeof same); return same; }
REINTERPRET(float_of, uint32_t, float)
REINTERPRET(bits_of, float, uint32_t)
REINTERPRET(double_of, uint64_t, double)
REINTERPRET(bits_of_double, double, uint64_t)

/* By masks: out of `condition ? a : b` compilers make a branch where a may raise a floating-point flag. */
CONVERT uint32_t choose(bool condition, uint32_t a, uint32_t b) { return b ^ ((a ^ b) & -(uint32_t)condition); }

CONVERT float bfloat16_decode(uint16_t code) { return float_of((uint32_t)code << 16); }
/* To nearest even, in the upper half of the word; the lower half is zero. */
CONVERT uint32_t bfloat16_round(float value)
{
    uint32_t x = bits_of(value), rounded = x + 0x7fff + (x >> 16 & 1);
    return choose((x & 0x7fffffff) > 0x7f800000, 0x7fc00000, rounded & 0xffff0000);
}
CONVERT uint16_t bfloat16_encode(float value) { return (uint16_t)(bfloat16_round(value) >> 16); }

/* A float with `width` bits: sign, exponent, `mantissa` bits. Where the special values are differs per family. */
enum family {
    IEEE, /* the highest exponent holds infinity and NaN */
    FN,   /* finite: only the code of all ones is NaN, overflow gives NaN */
    FNUZ  /* finite, and no negative zero: its code is the one NaN */
};
struct minifloat { int width, mantissa, bias; enum family family; uint32_t nan; };

#define MINIFLOAT_FLOAT16 ((struct minifloat){16, 10, 15, IEEE, 0x7e00})
#define MINIFLOAT_FLOAT8_E3M4 ((struct minifloat){8, 4, 3, IEEE, 0x78})
#define MINIFLOAT_FLOAT8_E4M3 ((struct minifloat){8, 3, 7, IEEE, 0x7c})
#define MINIFLOAT_FLOAT8_E4M3B11FNUZ ((struct minifloat){8, 3, 11, FNUZ, 0x80})
#define MINIFLOAT_FLOAT8_E4M3FN ((struct minifloat){8, 3, 7, FN, 0x7f})
#define MINIFLOAT_FLOAT8_E4M3FNUZ ((struct minifloat){8, 3, 8, FNUZ, 0x80})
#define MINIFLOAT_FLOAT8_E5M2 ((struct minifloat){8, 2, 15, IEEE, 0x7e})
#define MINIFLOAT_FLOAT8_E5M2FNUZ ((struct minifloat){8, 2, 16, FNUZ, 0x80})

/* The first magnitude that is not finite. */
CONVERT uint32_t minifloat_limit(struct minifloat f)
{
    uint32_t sign = 1u << (f.width - 1);
    return f.family == FNUZ ? sign : f.family == FN ? sign - 1 : sign - (1u << f.mantissa);
}

CONVERT float minifloat_decode(uint32_t code, struct minifloat f)
{
    uint32_t sign = 1u << (f.width - 1), magnitude = code & (sign - 1), limit = minifloat_limit(f);
    uint32_t normal = (magnitude << (23 - f.mantissa)) + ((uint32_t)(127 - f.bias) << 23);
    /* the unit of subnormals is a normal float32, so the product is exact */
    uint32_t subnormal = bits_of((float)(int32_t)magnitude * float_of((uint32_t)(128 - f.bias - f.mantissa) << 23));
    uint32_t bits = choose(magnitude < 1u << f.mantissa, subnormal, normal);
    if (f.family == FNUZ)
        bits = choose(code == sign, 0x7fc00000, bits);
    else if (f.family == FN)
        bits = choose(magnitude == limit, 0x7fc00000, bits);
    else
        bits = choose(magnitude < limit, bits, choose(magnitude == limit, 0x7f800000, 0x7fc00000));
    return float_of(bits | (code & sign) << (32 - f.width));
}

CONVERT uint32_t minifloat_encode(float value, struct minifloat f)
{
    uint32_t sign = 1u << (f.width - 1), limit = minifloat_limit(f);
    uint32_t x = bits_of(value), magnitude = x & 0x7fffffff, drop = (uint32_t)(23 - f.mantissa);
    uint32_t rounding = (1u << (drop - 1)) - 1 + (magnitude >> drop & 1);
    uint32_t normal = ((magnitude + rounding) >> drop) - ((uint32_t)(127 - f.bias) << f.mantissa);
    /* adding a number whose last place is the subnormals' unit makes the addition do the rounding */
    uint32_t ruler = (uint32_t)(128 - f.bias - f.mantissa + 23) << 23;
    uint32_t subnormal = bits_of(float_of(magnitude) + float_of(ruler)) - ruler;
    uint32_t code = choose(magnitude < (uint32_t)(128 - f.bias) << 23, subnormal, normal);
    uint32_t overflow = f.family == IEEE ? limit : f.nan;
    uint32_t signs = x >> (32 - f.width) & sign;
    if (f.family == FNUZ)
        signs = choose(code == 0 || code >= limit, 0, signs);
    code = choose(code >= limit, overflow, code);
    return choose(magnitude > 0x7f800000, f.nan, code | signs);
}

/* Only an exponent: 2^(code-127), no zero, no sign, 255 is NaN. What it cannot hold becomes NaN; halves round up.
 * Below 2^-126 the rule is that of the ml_dtypes package: everything above 2^-127 rounds up. */
CONVERT float exponent_decode(uint8_t code)
{
    uint32_t x = code;
    return float_of(choose(x == 0, 0x00400000, choose(x == 255, 0x7fc00000, x << 23)));
}
CONVERT uint8_t exponent_encode(float value)
{
    uint32_t x = bits_of(value), code = choose(x < 0x00800000, x > 0x00400000, (x >> 23) + (x >> 22 & 1));
    return (uint8_t)choose(x == 0 || code > 254, 255, code); /* negative numbers have codes above 254, too */
}
#endif
