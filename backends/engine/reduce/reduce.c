/* Which kernel for which CPU, type and operation, and how a reduction over many inputs is made of kernels.
 *
 * Whatever a kernel does not do in one pass goes block by block through scratch memory that stays in the L1 cache:
 * float16, bfloat16 and float8 as float32, factors and divisors. Integer sums of avg wrap in their own type. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include "reduce/table.h"

#define BLOCK 4096 /* bytes of one operand's scratch */
#define GROUP 4    /* operands of one pass through scratch: together half of a 32 KiB L1 */

/* ---- the CPU ---- */
static const struct reduce_kernels *const levels[] = { /* best first */
#ifdef __x86_64__
#ifdef REDUCE_HAS_BF16
    &reduce_avx512bf16,
#endif
    &reduce_avx512, &reduce_avx2,
#endif
    &reduce_portable,
};
enum { LEVELS = sizeof levels / sizeof levels[0] };
static _Atomic(const struct reduce_kernels *) chosen;

static bool reduce_runs_here(const struct reduce_kernels *level)
{
#ifdef __x86_64__
#ifdef REDUCE_HAS_BF16
    if (level == &reduce_avx512bf16)
        return __builtin_cpu_supports("avx512bf16") && reduce_runs_here(&reduce_avx512);
#endif
    if (level == &reduce_avx512 && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")))
        return false;
    if (level != &reduce_portable) /* no x86 CPU has AVX2 without F16C */
        return __builtin_cpu_supports("avx2");
#endif
    return level == &reduce_portable;
}

int reduce_force(const char *name)
{
    for (int i = 0; i < LEVELS; i++) {
        if (reduce_runs_here(levels[i]) && (name == NULL || strcmp(name, levels[i]->name) == 0)) {
            atomic_store_explicit(&chosen, levels[i], memory_order_relaxed);
            return ACOMM_OK;
        }
    }
    return ACOMM_UNSUPPORTED;
}

static const struct reduce_kernels *kernels(void)
{
    const struct reduce_kernels *level = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (level == NULL) {
        reduce_force(NULL); /* two threads may both come here: they choose the same */
        level = atomic_load_explicit(&chosen, memory_order_relaxed);
    }
    return level;
}

/* ---- types ---- */
static const uint8_t widths[ACOMM_DTYPES] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16, 1, 1, 1, 1, 1, 1, 1, 1};

static bool is_bits(int redop) { return redop == ACOMM_BAND || redop == ACOMM_BOR || redop == ACOMM_BXOR; }
static bool is_scaled(int redop) { return redop == ACOMM_AVG || redop == ACOMM_PREMUL_SUM; }

int reduce_partial_dtype(int dtype)
{
    bool narrow = dtype == ACOMM_FLOAT16 || dtype == ACOMM_BFLOAT16 || dtype >= ACOMM_FLOAT8_E3M4;
    return narrow ? ACOMM_FLOAT32 : dtype;
}

bool reduce_supported(int dtype, int redop)
{
    if (dtype < 0 || dtype >= ACOMM_DTYPES || redop < 0 || redop >= ACOMM_REDOPS)
        return false;
    if (dtype == ACOMM_BOOL)
        return !is_scaled(redop);
    if (dtype <= ACOMM_UINT64)
        return true;
    if (reduce_complex(dtype))
        return redop == ACOMM_SUM || redop == ACOMM_PRODUCT || is_scaled(redop);
    return !is_bits(redop);
}

/* The same elements seen as another type that has the kernel: bits as bytes, complex numbers as pairs of reals. */
static int seen_as(int dtype, int redop, uint64_t *count)
{
    if (is_bits(redop) && dtype != ACOMM_BOOL) {
        *count *= widths[dtype];
        return ACOMM_UINT8;
    }
    if (reduce_complex(dtype) && redop != ACOMM_PRODUCT) {
        *count *= 2;
        return dtype == ACOMM_COMPLEX64 ? ACOMM_FLOAT32 : ACOMM_FLOAT64;
    }
    return dtype;
}

/* ---- one pass ---- */
typedef void fold_kernel(void *out, const void *const *in, int inputs, size_t count);

/* NULL for narrow types that have to be widened first. */
static fold_kernel *fold_of(int dtype, int redop)
{
    const struct reduce_kernels *level = reduce_complex(dtype) ? &reduce_portable : kernels();
    return level->fold[is_scaled(redop) ? ACOMM_SUM : redop][dtype];
}

static void fold(const struct reduction *r, void *out, const void *const *in, int inputs, uint64_t count)
{
    int dtype = seen_as(reduce_partial_dtype(r->dtype), r->redop, &count);
    fold_of(dtype, r->redop)(out, in, inputs, count);
}

static void reduce_copy(void *out, const void *in, size_t bytes)
{
    if (out != in && bytes > 0)
        memcpy(out, in, bytes);
}

void reduce_begin(const struct reduction *r, void *partial, const void *in, uint64_t count)
{
    void (*widen)(void *, const void *, size_t) = kernels()->widen[r->dtype];
    if (widen)
        widen(partial, in, count);
    if (r->redop == ACOMM_PREMUL_SUM) {
        int dtype = seen_as(reduce_partial_dtype(r->dtype), r->redop, &count);
        kernels()->scale[dtype](partial, widen ? partial : in, count, r->factor);
    } else if (!widen) {
        reduce_copy(partial, in, count * widths[r->dtype]);
    }
}

void reduce_combine(const struct reduction *r, void *partial, const void *other, uint64_t count, bool swap)
{
    const void *in[2] = {swap ? other : partial, swap ? partial : other};
    fold(r, partial, in, 2, count);
}

static void finish_block(const struct reduction *r, char *out, const char *partial, uint64_t count)
{
    _Alignas(64) char scratch[BLOCK];
    void (*narrow)(void *, const void *, size_t) = kernels()->narrow[r->dtype];
    if (r->redop == ACOMM_AVG) {
        uint64_t lanes = count;
        int dtype = seen_as(reduce_partial_dtype(r->dtype), r->redop, &lanes);
        void *to = narrow ? scratch : out;
        kernels()->divide[dtype](to, partial, lanes, r->ranks);
        partial = to;
    }
    if (narrow)
        narrow(out, partial, count);
    else
        reduce_copy(out, partial, count * widths[r->dtype]);
}

void reduce_finish(const struct reduction *r, void *out, const void *partial, uint64_t count)
{
    size_t width = widths[r->dtype], partial_width = widths[reduce_partial_dtype(r->dtype)];
    uint64_t step = BLOCK / partial_width;
    for (uint64_t at = 0; at < count; at += step) {
        uint64_t part = count - at < step ? count - at : step;
        finish_block(r, (char *)out + at * width, (const char *)partial + at * partial_width, part);
    }
}

/* ---- all inputs ---- */
/* The operand of a fold that input k gives: the input itself where a partial result is nothing else. */
static const void *contribution(const struct reduction *r, char *scratch, const char *in, uint64_t count)
{
    if (r->redop != ACOMM_PREMUL_SUM && reduce_partial_dtype(r->dtype) == r->dtype)
        return in;
    reduce_begin(r, scratch, in, count);
    return scratch;
}

/* Elements at..at+count of all inputs. The first operand of every group but the first is the result so far. */
static void reduce_block(const struct reduction *r, char *out, const void *const *in, int inputs, uint64_t at,
                         uint64_t count)
{
    _Alignas(64) char scratch[GROUP][BLOCK];
    const void *operands[GROUP] = {scratch[0]};
    size_t offset = at * widths[r->dtype];
    bool wide = reduce_partial_dtype(r->dtype) == r->dtype;
    for (int taken = 0; taken < inputs;) {
        int filled = taken > 0;
        for (; filled < GROUP && taken < inputs; filled++, taken++)
            operands[filled] = contribution(r, scratch[filled], (const char *)in[taken] + offset, count);
        if (filled > 1) {
            void *to = wide && taken == inputs ? out + offset : scratch[0];
            fold(r, to, operands, filled, count);
            operands[0] = to;
        }
    }
    finish_block(r, out + offset, operands[0], count);
}

/* One pass over everything, where a kernel exists for that. */
static bool reduce_direct(const struct reduction *r, void *out, const void *const *in, int inputs, uint64_t count)
{
    if (inputs > GROUP && inputs != 8)
        return false;
    int dtype = seen_as(r->dtype, r->redop, &count);
    fold_kernel *kernel = fold_of(dtype, r->redop);
    if (kernel)
        kernel(out, in, inputs, count);
    return kernel != NULL;
}

/* ---- no input ---- */
/* Of min (`highest`) or max, of a type of one byte that may have no infinity: all its values are looked at. */
static uint8_t extreme_byte(int dtype, bool highest)
{
    uint8_t found = 0;
    float best = highest ? -INFINITY : INFINITY;
    for (int code = 0; code < 256; code++) {
        uint8_t byte = (uint8_t)code;
        float value;
        kernels()->widen[dtype](&value, &byte, 1);
        if (highest ? value > best : value < best) {
            best = value;
            found = byte;
        }
    }
    return found;
}

static void float_identity(int dtype, double value, void *out)
{
    float single = (float)value;
    bool extreme = value != 1;
    if (extreme && widths[dtype] == 1)
        *(uint8_t *)out = extreme_byte(dtype, value > 0);
    else if (dtype == ACOMM_FLOAT64 || dtype == ACOMM_COMPLEX128)
        memcpy(out, &value, sizeof value);
    else if (dtype == ACOMM_FLOAT32 || dtype == ACOMM_COMPLEX64)
        memcpy(out, &single, sizeof single);
    else
        kernels()->narrow[dtype](out, &single, 1);
}

static void integer_identity(int dtype, int redop, unsigned char *out)
{
    size_t width = widths[dtype];
    bool is_signed = dtype >= ACOMM_INT8 && dtype <= ACOMM_INT64;
    bool ones = redop == ACOMM_BAND || redop == ACOMM_MIN;
    memset(out, ones ? 0xff : 0, width);
    if (is_signed && (redop == ACOMM_MIN || redop == ACOMM_MAX))
        out[width - 1] = ones ? 0x7f : 0x80; /* the highest byte is the last one here */
    else if (redop == ACOMM_PRODUCT)
        out[0] = 1;
}

static void fill_identity(const struct reduction *r, char *out, uint64_t count)
{
    unsigned char one[16] = {0};
    size_t width = widths[r->dtype];
    bool extreme = r->redop == ACOMM_MIN || r->redop == ACOMM_MAX, valued = extreme || r->redop == ACOMM_PRODUCT;
    if (r->dtype == ACOMM_BOOL)
        one[0] = r->redop == ACOMM_PRODUCT || r->redop == ACOMM_MIN || r->redop == ACOMM_BAND;
    else if (r->dtype <= ACOMM_UINT64)
        integer_identity(r->dtype, r->redop, one);
    else if (valued)
        float_identity(r->dtype, !extreme ? 1 : r->redop == ACOMM_MIN ? INFINITY : -INFINITY, one);
    if (count)
        memcpy(out, one, width);
    for (uint64_t filled = 1; filled < count; filled *= 2)
        memcpy(out + filled * width, out, (filled < count - filled ? filled : count - filled) * width);
}

void reduce_all(const struct reduction *r, void *out, const void *const *in, int inputs, uint64_t count)
{
    bool scaled = is_scaled(r->redop);
    if (!inputs)
        fill_identity(r, out, count);
    else if (inputs == 1 && !scaled && r->dtype != ACOMM_BOOL)
        reduce_copy(out, in[0], count * widths[r->dtype]);
    else if (inputs == 1 && !scaled)
        reduce_begin(r, out, in[0], count);
    else if (scaled || !reduce_direct(r, out, in, inputs, count)) {
        uint64_t step = BLOCK / widths[reduce_partial_dtype(r->dtype)];
        for (uint64_t at = 0; at < count; at += step)
            reduce_block(r, out, in, inputs, at, count - at < step ? count - at : step);
    }
}

/* ---- acomm.h ---- */
uint64_t acomm_dtype_bytes(int dtype)
{
    bool opaque = dtype >= ACOMM_OPAQUE && dtype < ACOMM_OPAQUE_END;
    return dtype >= 0 && dtype < ACOMM_DTYPES ? widths[dtype] : opaque;
}

int acomm_can_reduce(int dtype, int redop) { return reduce_supported(dtype, redop); }
const char *acomm_cpu(void) { return kernels()->name; }

int acomm_reduce_local(uintptr_t out, const uintptr_t *in, int inputs, uint64_t count, int dtype, int redop,
                       double factor)
{
    if (!reduce_supported(dtype, redop))
        return ACOMM_UNSUPPORTED;
    if (inputs < 1 || in == NULL || (count > 0 && out == 0))
        return ACOMM_ARGUMENT;
    struct reduction r = {dtype, redop, factor, inputs};
    reduce_all(&r, (void *)out, (const void *const *)in, inputs, count);
    return ACOMM_OK;
}

int acomm_locate(uintptr_t out, uintptr_t own, uintptr_t extreme, uintptr_t index, int64_t rank, uint64_t count, int dtype)
{
    if (!reduce_supported(dtype, ACOMM_MIN))
        return ACOMM_UNSUPPORTED;
    char block[BLOCK], extremes[BLOCK]; /* a reduction's NaN is the canonical one */
    struct reduction r = {dtype, ACOMM_MIN, 1, 2};
    size_t width = widths[dtype];
    for (uint64_t at = 0; at < count; at += BLOCK / width) {
        uint64_t part = count - at < BLOCK / width ? count - at : BLOCK / width;
        const char *in = (const char *)own + at * width, *found = (const char *)extreme + at * width;
        reduce_all(&r, block, (const void *[]){in, in}, 2, part);
        reduce_all(&r, extremes, (const void *[]){found, found}, 2, part);
        for (uint64_t i = 0; i < part; i++) {
            int64_t here = index ? ((const int64_t *)index)[at + i] : rank;
            ((int64_t *)out)[at + i] = memcmp(block + i * width, extremes + i * width, width) ? INT64_MAX : here;
        }
    }
    return ACOMM_OK;
}
