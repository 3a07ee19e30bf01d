/* engine: reduce/; also -O3 */
#include "check.h"
#include "reduce/table.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST 11      /* inputs */
#define LONGEST 1100 /* elements: more than one block of scratch for every type */

static const char *const levels[] = {"portable", "neon", "avx2", "avx512", "avx512bf16"};
enum { LEVELS = sizeof levels / sizeof levels[0] };

static uint64_t seed = 88172645463325252u;
static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* Random bits, so every kind of NaN, infinity and subnormal comes up; a quarter of the 16-bit words are special. */
static void fill(unsigned char *data, size_t bytes)
{
    static const unsigned char special[] = {0x00, 0x80, 0xff, 0x7f, 0xf0, 0x7c, 0x01};
    for (size_t i = 0; i < bytes; i++) {
        uint64_t x = next_random();
        data[i] = (unsigned char)(x % 4 == 0 ? special[x / 4 % sizeof special] : x >> 32);
    }
}

struct arrays {
    size_t bytes;
    unsigned char *memory[MOST];
    const void *in[MOST];
};

/* Each input is its own allocation of exactly its size after one byte, so that the address sanitizer sees every overrun
 * and no address is aligned. */
static struct arrays arrays_new(int dtype, size_t count)
{
    struct arrays a = {.bytes = count * acomm_dtype_bytes(dtype)};
    for (int k = 0; k < MOST; k++) {
        a.memory[k] = malloc(a.bytes + 1);
        fill(a.memory[k], a.bytes + 1);
        a.in[k] = a.memory[k] + 1;
    }
    return a;
}

static void arrays_free(struct arrays *a)
{
    for (int k = 0; k < MOST; k++)
        free(a->memory[k]);
}

static const size_t counts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, LONGEST};
enum { COUNTS = sizeof counts / sizeof counts[0] };

#define EACH_PAIR(dtype, redop)                              \
    for (int dtype = 0; dtype < ACOMM_DTYPES; dtype++)       \
        for (int redop = 0; redop < ACOMM_REDOPS; redop++)   \
            if (reduce_supported(dtype, redop))

static double factor_of(int number)
{
    static const double factors[] = {0.5, -3, 1e300, 2.75, 0};
    return factors[number % 5];
}

/* Every level of this CPU gives the same bits as the portable one. */
static void levels_agree(void)
{
    static unsigned char want[LONGEST * 16], got[LONGEST * 16];
    int compared = 0;
    EACH_PAIR(dtype, redop) {
        for (int c = 0; c < COUNTS; c++) {
            struct arrays a = arrays_new(dtype, counts[c]);
            for (int inputs = 1; inputs <= MOST; inputs += 1 + (c % 2)) {
                struct reduction r = {dtype, redop, factor_of(c), inputs};
                CHECK_EQUAL(reduce_force(reduce_portable.name), 0);
                reduce_all(&r, want, a.in, inputs, counts[c]);
                for (int l = 0; l < LEVELS; l++) {
                    if (reduce_force(levels[l]))
                        continue;
                    CHECK(strcmp(acomm_cpu(), levels[l]) == 0);
                    reduce_all(&r, got, a.in, inputs, counts[c]);
                    CHECK_MESSAGE(memcmp(got, want, a.bytes) == 0, "%s: dtype %d op %d inputs %d count %zu",
                                  levels[l], dtype, redop, inputs, counts[c]);
                    compared++;
                }
            }
            arrays_free(&a);
        }
    }
    CHECK(compared > 0);
    CHECK_EQUAL(reduce_force(NULL), 0);
    CHECK_EQUAL(reduce_force("abacus"), ACOMM_UNSUPPORTED);
    printf("# best level: %s\n", acomm_cpu());
}

/* An element's result does not depend on where it stands. */
static void position_is_irrelevant(void)
{
    EACH_PAIR(dtype, redop) {
        static unsigned char whole[LONGEST * 16];
        size_t width = acomm_dtype_bytes(dtype);
        struct arrays a = arrays_new(dtype, LONGEST);
        for (int inputs = 1; inputs < 10; inputs += 3) {
            struct reduction r = {dtype, redop, factor_of(inputs), inputs};
            reduce_all(&r, whole, a.in, inputs, LONGEST);
            for (size_t i = 0; i < LONGEST; i += 1 + i / 100) {
                unsigned char one[16];
                const void *in[MOST];
                for (int k = 0; k < inputs; k++)
                    in[k] = (const char *)a.in[k] + i * width;
                reduce_all(&r, one, in, inputs, 1);
                CHECK_MESSAGE(memcmp(one, whole + i * width, width) == 0, "dtype %d op %d element %zu", dtype, redop,
                              i);
            }
        }
        arrays_free(&a);
    }
}

/* reduce_all is the same as begin, combine from left to right, finish; and both work in place. */
static void steps_make_the_whole(void)
{
    static unsigned char want[LONGEST * 16], out[LONGEST * 16], partial[LONGEST * 16], other[LONGEST * 16];
    EACH_PAIR(dtype, redop) {
        struct arrays a = arrays_new(dtype, LONGEST);
        for (int inputs = 2; inputs <= MOST; inputs++) {
            struct reduction r = {dtype, redop, factor_of(redop + inputs), inputs};
            reduce_all(&r, want, a.in, inputs, LONGEST);
            reduce_begin(&r, partial, a.in[0], LONGEST);
            for (int k = 1; k < inputs; k++) {
                reduce_begin(&r, other, a.in[k], LONGEST);
                reduce_combine(&r, k % 2 ? partial : other, k % 2 ? other : partial, LONGEST, k % 2 == 0);
                if (k % 2 == 0)
                    memcpy(partial, other, sizeof partial);
            }
            reduce_finish(&r, out, partial, LONGEST);
            CHECK_MESSAGE(memcmp(out, want, a.bytes) == 0, "dtype %d op %d inputs %d", dtype, redop, inputs);
            if (reduce_partial_dtype(dtype) == dtype) {
                reduce_finish(&r, partial, partial, LONGEST);
                CHECK_MESSAGE(memcmp(partial, want, a.bytes) == 0, "in place: dtype %d op %d", dtype, redop);
            }
        }
        arrays_free(&a);
    }
}

static void output_may_be_any_input(void)
{
    static unsigned char want[LONGEST * 16];
    EACH_PAIR(dtype, redop) {
        for (int inputs = 1; inputs <= MOST; inputs += 2) {
            struct reduction r = {dtype, redop, factor_of(inputs), inputs};
            for (int target = 0; target < inputs; target += 2) {
                struct arrays a = arrays_new(dtype, LONGEST);
                reduce_all(&r, want, a.in, inputs, LONGEST);
                reduce_all(&r, a.memory[target] + 1, a.in, inputs, LONGEST);
                CHECK_MESSAGE(memcmp(a.in[target], want, a.bytes) == 0, "dtype %d op %d inputs %d target %d", dtype,
                              redop, inputs, target);
                arrays_free(&a);
            }
        }
    }
}

static void reduce_two(int dtype, int redop, double factor, void *out, const void *a, const void *b)
{
    const void *in[2] = {a, b};
    struct reduction r = {dtype, redop, factor, 2};
    reduce_all(&r, out, in, 2, 1);
}

static void order_of_floats(void)
{
    const double numbers[] = {-INFINITY, -1.5, -5e-324, -0.0, 0.0, 5e-324, 2, INFINITY};
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 8; k++) {
            double low, high;
            reduce_two(ACOMM_FLOAT64, ACOMM_MIN, 0, &low, &numbers[i], &numbers[k]);
            reduce_two(ACOMM_FLOAT64, ACOMM_MAX, 0, &high, &numbers[i], &numbers[k]);
            CHECK(memcmp(&low, &numbers[i < k ? i : k], 8) == 0);
            CHECK(memcmp(&high, &numbers[i < k ? k : i], 8) == 0);
        }
        double nans[2] = {NAN, -NAN}, out;
        for (int k = 0; k < 4; k++) {
            const double *a = k < 2 ? &nans[k] : &numbers[i], *b = k < 2 ? &numbers[i] : &nans[k - 2];
            reduce_two(ACOMM_FLOAT64, ACOMM_MIN, 0, &out, a, b);
            CHECK(isnan(out) && !signbit(out));
            reduce_two(ACOMM_FLOAT64, ACOMM_MAX, 0, &out, a, b);
            CHECK(isnan(out) && !signbit(out));
        }
    }
}

static void integers(void)
{
    int8_t a = -100, b = -27, small;
    reduce_two(ACOMM_INT8, ACOMM_SUM, 0, &small, &a, &b);
    CHECK_EQUAL(small, -127);
    reduce_two(ACOMM_INT8, ACOMM_AVG, 0, &small, &a, &b);
    CHECK_EQUAL(small, -63); /* toward zero */
    b = -30;
    reduce_two(ACOMM_INT8, ACOMM_AVG, 0, &small, &a, &b);
    CHECK_EQUAL(small, 63); /* the sum wraps to 126 */
    reduce_two(ACOMM_INT8, ACOMM_PREMUL_SUM, 3, &small, &a, &b);
    CHECK_EQUAL(small, (int8_t)(-390)); /* whole factors wrap */
    reduce_two(ACOMM_INT8, ACOMM_PREMUL_SUM, 1.5, &small, &a, &b);
    CHECK_EQUAL(small, (int8_t)(-128 - 45)); /* others stay in range per contribution, then the sum wraps */
    reduce_two(ACOMM_INT8, ACOMM_PREMUL_SUM, NAN, &small, &a, &b);
    CHECK_EQUAL(small, 0);
    uint64_t big = UINT64_MAX - 1, two = 2, out;
    reduce_two(ACOMM_UINT64, ACOMM_AVG, 0, &out, &big, &two);
    CHECK_EQUAL(out, 0);
    two = 1;
    reduce_two(ACOMM_UINT64, ACOMM_AVG, 0, &out, &big, &two);
    CHECK(out == UINT64_MAX / 2);
    reduce_two(ACOMM_UINT64, ACOMM_PREMUL_SUM, -1, &out, &big, &two);
    CHECK_EQUAL(out, 1); /* 2 - 1: a negative whole factor wraps */
    reduce_two(ACOMM_UINT64, ACOMM_PREMUL_SUM, -0.5, &out, &big, &two);
    CHECK_EQUAL(out, 0);
    int64_t least = INT64_MIN, none = 0, signed_out;
    reduce_two(ACOMM_INT64, ACOMM_PREMUL_SUM, 1e300, &signed_out, &least, &none);
    CHECK(signed_out == INT64_MIN);
    reduce_two(ACOMM_INT64, ACOMM_PREMUL_SUM, -INFINITY, &signed_out, &least, &none);
    CHECK(signed_out == INT64_MAX); /* 0 times infinity is NaN, which counts as 0 */
}

static void booleans(void)
{
    const int want[ACOMM_REDOPS][4] = {
        [ACOMM_SUM] = {0, 1, 1, 1},  [ACOMM_PRODUCT] = {0, 0, 0, 1}, [ACOMM_MIN] = {0, 0, 0, 1},
        [ACOMM_MAX] = {0, 1, 1, 1},  [ACOMM_BAND] = {0, 0, 0, 1},    [ACOMM_BOR] = {0, 1, 1, 1},
        [ACOMM_BXOR] = {0, 1, 1, 0},
    };
    for (int redop = 0; redop < ACOMM_AVG; redop++) {
        for (int i = 0; i < 4; i++) {
            unsigned char a = i & 2 ? 0x40 : 0, b = i & 1 ? 0x81 : 0, out;
            reduce_two(ACOMM_BOOL, redop, 0, &out, &a, &b);
            CHECK_EQUAL(out, want[redop][i]);
            struct reduction r = {ACOMM_BOOL, redop, 0, 1};
            const void *in = &a;
            reduce_all(&r, &out, &in, 1, 1);
            CHECK_EQUAL(out, a != 0);
        }
    }
}

static void complex_numbers(void)
{
    const float a[2] = {1, 2}, b[2] = {3, -4};
    float out[2];
    reduce_two(ACOMM_COMPLEX64, ACOMM_PRODUCT, 0, out, a, b);
    CHECK(out[0] == 11 && out[1] == 2);
    reduce_two(ACOMM_COMPLEX64, ACOMM_AVG, 0, out, a, b);
    CHECK(out[0] == 2 && out[1] == -1);
    reduce_two(ACOMM_COMPLEX64, ACOMM_PREMUL_SUM, 0.5, out, a, b);
    CHECK(out[0] == 2 && out[1] == -1);
}

static void supported(void)
{
    CHECK(!reduce_supported(-1, 0) && !reduce_supported(ACOMM_DTYPES, 0));
    CHECK(!reduce_supported(0, -1) && !reduce_supported(0, ACOMM_REDOPS));
    CHECK(!reduce_supported(ACOMM_BOOL, ACOMM_AVG) && !reduce_supported(ACOMM_COMPLEX64, ACOMM_MAX));
    CHECK(!reduce_supported(ACOMM_FLOAT32, ACOMM_BXOR) && reduce_supported(ACOMM_INT64, ACOMM_BXOR));
    int pairs = 0;
    EACH_PAIR(dtype, redop) pairs++;
    CHECK_EQUAL(pairs, 7 + 8 * 9 + 4 * 6 + 2 * 4 + 8 * 6);
}

static void public_functions(void)
{
    float a[3] = {1, 2, 3}, b[3] = {10, 20, 30}, out[3];
    const uintptr_t in[2] = {(uintptr_t)a, (uintptr_t)b};
    CHECK_EQUAL(acomm_reduce_local((uintptr_t)out, in, 2, 3, ACOMM_FLOAT32, ACOMM_AVG, 0), 0);
    CHECK(out[0] == 5.5f && out[1] == 11 && out[2] == 16.5f);
    CHECK_EQUAL(acomm_reduce_local((uintptr_t)out, in, 2, 3, ACOMM_FLOAT32, ACOMM_BAND, 0), ACOMM_UNSUPPORTED);
    CHECK_EQUAL(acomm_reduce_local((uintptr_t)out, in, 0, 3, ACOMM_FLOAT32, ACOMM_SUM, 0), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_reduce_local(0, in, 2, 3, ACOMM_FLOAT32, ACOMM_SUM, 0), ACOMM_ARGUMENT);
    CHECK_EQUAL(acomm_reduce_local(0, in, 2, 0, ACOMM_FLOAT32, ACOMM_SUM, 0), 0);
    CHECK_EQUAL(acomm_dtype_bytes(ACOMM_COMPLEX128), 16);
    CHECK_EQUAL(acomm_dtype_bytes(ACOMM_FLOAT8_E8M0FNU), 1);
    CHECK_EQUAL(acomm_dtype_bytes(ACOMM_DTYPES), 0);
    CHECK(acomm_dtype_bytes(ACOMM_OPAQUE) == 1 && acomm_dtype_bytes(ACOMM_OPAQUE_END - 1) == 1);
    CHECK(!acomm_dtype_bytes(ACOMM_OPAQUE - 1) && !acomm_dtype_bytes(ACOMM_OPAQUE_END));
    CHECK(!reduce_supported(ACOMM_OPAQUE, ACOMM_SUM));
    CHECK_EQUAL(acomm_can_reduce(ACOMM_BOOL, ACOMM_AVG), 0);
    CHECK_EQUAL(acomm_can_reduce(ACOMM_FLOAT16, ACOMM_AVG), 1);
}

int main(void)
{
    TEST(levels_agree);
    TEST(position_is_irrelevant);
    TEST(steps_make_the_whole);
    TEST(output_may_be_any_input);
    TEST(order_of_floats);
    TEST(integers);
    TEST(booleans);
    TEST(complex_numbers);
    TEST(supported);
    TEST(public_functions);
    return CHECK_RESULT();
}
