/* Kernels in the stand-in for CUDA's runtime: the driver's functions that load and launch them, and an interpreter of as much PTX
 * as arraycomm writes. As strict as NVIDIA's compiler, or stricter: a kernel with a wrong register, type or instruction is
 * refused, so that it fails in tests without a GPU. Arithmetic gives the bits that "Parallel Thread Execution ISA" promises. */
#include "cudart.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INVALID_PTX = 218, NOT_FOUND = 500, MISALIGNED = 716, MOST = 512, OPERANDS = 4, NAME = 24 };

struct type { char kind; int bits; }; /* kind: b, u, s, f, or p: predicate */

struct value { /* all that instructions name: of each thread an array, in which it is known by its place */
    char name[NAME]; /* none: a constant */
    enum role { REGISTER, SPECIAL, PARAMETER, CONSTANT, LABEL } role;
    struct type type;
    uint64_t content; /* when a thread begins; of a label the instruction after it */
};

struct instruction {
    enum op { LD_PARAM, LD, ST, MOV, CVTA, ADD, ADD_RN, MUL_RN, MUL_LO, MUL_WIDE, DIV, DIV_RN, MIN, MAX, GE, NE, IS_NAN, SELP,
              CVT, CVT_RN, SHL, SHR, AND, OR, XOR, BRA, RET, OPS } op;
    struct type type, from;        /* from: of what is converted */
    int at[OPERANDS], guard, bits; /* values, the result first; a predicate, or -1; the width of the result */
};

struct module { /* with one kernel */
    char entry[NAME];
    struct value values[MOST];
    struct instruction code[MOST];
    int values_made, length, device;
};

#define INTEGERS ".s16 .u16 .s32 .u32 .s64 .u64"
#define REALS ".f32 .f64"
#define BITS ".b16 .b32 .b64"
#define ANY BITS " " INTEGERS " " REALS
#define STORED ".s8 .u8 .b8 " ANY
/* Of operands: t of the instruction's type, f of what is converted, w twice as wide, n a number of 32 bits, p a predicate,
 * m in memory, k one of the kernel's, s also a special register, l a label. */
static const struct { const char *name, *operands, *types; } FORMS[OPS] = {
    [LD_PARAM] = {"ld.param", "tk", ".u64 .f64"}, [LD] = {"ld.global", "tm", STORED}, [ST] = {"st.global", "mt", STORED},
    [MOV] = {"mov", "ts", ANY}, [CVTA] = {"cvta.to.global", "tt", ".u64"}, [ADD] = {"add", "ttt", INTEGERS " " REALS},
    [ADD_RN] = {"add.rn", "ttt", REALS}, [MUL_RN] = {"mul.rn", "ttt", REALS}, [MUL_LO] = {"mul.lo", "ttt", INTEGERS},
    [MUL_WIDE] = {"mul.wide", "wtt", ".s16 .u16 .s32 .u32"}, [DIV] = {"div", "ttt", INTEGERS},
    [DIV_RN] = {"div.rn", "ttt", REALS}, [MIN] = {"min", "ttt", INTEGERS " " REALS}, [MAX] = {"max", "ttt", INTEGERS " " REALS},
    [GE] = {"setp.ge", "ptt", INTEGERS}, [NE] = {"setp.ne", "ptt", INTEGERS}, [IS_NAN] = {"setp.nan", "ptt", REALS},
    [SELP] = {"selp", "tttp", ANY}, [CVT] = {"cvt", "tf", ".s32.s8 .u32.u8 .s32.s16 .u32.u16 .u64.u32 .s64.s32 .f32.f16"},
    [CVT_RN] = {"cvt.rn", "tf", ".f16.f32 .f32.f64"}, [SHL] = {"shl", "ttn", BITS}, [SHR] = {"shr", "ttn", BITS " " INTEGERS},
    [AND] = {"and", "ttt", BITS}, [OR] = {"or", "ttt", BITS}, [XOR] = {"xor", "ttt", BITS}, [BRA] = {"bra", "l", ""},
    [RET] = {"ret", "", ""}};

enum { THREAD, BLOCK, THREADS, BLOCKS, SPECIALS }; /* the first values */
static const char *const SPECIAL_NAMES[] = {"%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x"};

static struct type type_of(const char *text) { return (struct type){text[1], text[1] == 'p' ? 1 : atoi(text + 2)}; }
static uint64_t cut(uint64_t value, int bits) { return bits < 64 ? value & ((UINT64_C(1) << bits) - 1) : value; }

/* ---- reading; false, or -1: it is no such program ---- */

static bool listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; length && (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ' ') && (!at[length] || at[length] == ' '))
            return true;
    return !length && !*list;
}

static int find(const struct module *m, const char *name)
{
    int i = m->values_made - 1;
    while (i >= 0 && strcmp(m->values[i].name, name))
        i--;
    return i;
}

static int add(struct module *m, struct value value, const char *name)
{
    if (m->values_made == MOST || strlen(name) >= NAME || (*name && find(m, name) >= 0))
        return -1;
    strcpy(value.name, name);
    m->values[m->values_made] = value;
    return m->values_made++;
}

/* ".u32 %a, %r<2>": one register, and two. */
static bool read_registers(struct module *m, char *text)
{
    char *rest, *kind = strtok_r(text, " ", &rest), *name, numbered[2 * NAME];
    bool fine = kind && listed(".pred " ANY, kind);
    while (fine && (name = strtok_r(NULL, " ,\n", &rest))) {
        struct value value = {.role = REGISTER, .type = type_of(kind), .content = 0xA5A5A5A5A5A5A5A5}; /* until it is written */
        char *many = strchr(name, '<');
        fine = *name == '%' && (many || add(m, value, name) >= 0);
        for (int i = 0; many && fine && i < atoi(many + 1); i++) {
            snprintf(numbered, sizeof numbered, "%.*s%d", (int)(many - name), name, i);
            fine = add(m, value, numbered) >= 0;
        }
    }
    return fine;
}

/* Whether an operand of this type may be such a register. relaxed: types of 8 and 16 bits lie in longer ones too. */
static bool fits(struct type given, struct type type, bool relaxed)
{
    bool integers = given.kind != 'f' && type.kind != 'f', alike = integers || given.kind == type.kind;
    return given.bits == type.bits ? alike || given.kind == 'b' || type.kind == 'b'
        : relaxed && integers && type.bits < 32 && given.bits > type.bits;
}

static int read_constant(struct module *m, const char *text, struct type type)
{
    bool real = text[0] == '0' && (text[1] == 'f' || text[1] == 'd');
    char *end;
    uint64_t value = real ? strtoull(text + 2, &end, 16) : strtoull(text, &end, 0);
    if (!*text || *end || type.kind == 'p' || real != (type.kind == 'f') || value != cut(value, type.bits)
        || (real && (type.bits != (text[1] == 'f' ? 32 : 64) || end - text != 2 + type.bits / 4)))
        return -1;
    return add(m, (struct value){.role = CONSTANT, .content = value}, "");
}

/* A label may be named before it comes. */
static int read_label(struct module *m, const char *text)
{
    int at = find(m, text);
    if (at < 0 && *text)
        at = add(m, (struct value){.role = LABEL, .content = MOST}, text);
    return at >= 0 && m->values[at].role == LABEL ? at : -1;
}

static int read_operand(struct module *m, const struct instruction *i, int n, char *text)
{
    char letter = FORMS[i->op].operands[n];
    struct type type = letter == 'f' ? i->from : letter == 'w' ? (struct type){i->type.kind, 2 * i->type.bits}
        : letter == 'n' ? type_of(".u32") : letter == 'p' ? type_of(".pred") : letter == 'm' ? type_of(".u64") : i->type;
    bool bracketed = letter == 'm' || letter == 'k', small = (i->op == LD || i->op == ST || i->op == CVT) && !bracketed;
    if (letter == 'l')
        return read_label(m, text);
    if (bracketed && (*text != '[' || text[strlen(text) - 1] != ']'))
        return -1;
    if (bracketed)
        *strchr(text++, ']') = 0;
    int at = find(m, text);
    if (at < 0 || !*text)
        return n == 0 || bracketed ? -1 : read_constant(m, text, type);
    enum role role = m->values[at].role;
    bool right = letter == 'k' ? role == PARAMETER : role == REGISTER || (letter == 's' && role == SPECIAL && type.kind == 'u');
    return right && fits(m->values[at].type, type, small) ? at : -1;
}

static bool read_instruction(struct module *m, char *text)
{
    struct instruction *i = &m->code[m->length];
    char *rest, *word = strtok_r(text, " \n", &rest);
    const char *types = NULL; /* "add.rn" is an instruction, and ".f32" among its types */
    i->guard = *word == '@' ? find(m, word + 1) : -1;
    if (++m->length == MOST || (*word == '@' && (i->guard < 0 || m->values[i->guard].type.kind != 'p'
                                                 || !(word = strtok_r(NULL, " \n", &rest)))))
        return false;
    for (int op = 0; op < OPS && !types; op++) {
        size_t length = strlen(FORMS[i->op = (enum op)op].name);
        types = !strncmp(word, FORMS[op].name, length) && listed(FORMS[op].types, word + length) ? word + length : NULL;
    }
    if (!types)
        return false;
    if (*types)
        i->type = type_of(types), i->from = type_of(strrchr(types, '.'));
    word = strtok_r(NULL, ",", &rest);
    for (int n = 0; FORMS[i->op].operands[n]; n++, word = strtok_r(NULL, ",", &rest)) {
        size_t length = word ? strcspn(word += strspn(word, " \n"), " \n") : 0;
        if (!length || word[length + strspn(word + length, " \n")]
            || (word[length] = 0, i->at[n] = read_operand(m, i, n, word)) < 0)
            return false;
    }
    i->bits = m->values[i->at[0]].type.bits;
    return !word;
}

static bool read_statement(struct module *m, char *text)
{
    for (char *colon; text += strspn(text, " \n"), (colon = strchr(text, ':')); text = colon + 1) {
        *colon = 0;
        int at = read_label(m, text);
        if (at < 0 || m->values[at].content != MOST)
            return false;
        m->values[at].content = (uint64_t)m->length;
    }
    return !*text || (strncmp(text, ".reg ", 5) ? read_instruction(m, text) : read_registers(m, text + 5));
}

/* A header, and one kernel with parameters of 64 bits. Each statement ends with a semicolon. */
static bool read_module(struct module *m, char *text)
{
    char *open = strchr(text, '('), *body = open ? strchr(open, '{') : NULL, *last = strrchr(text, ';'), *rest, *word;
    bool fine = sscanf(text, ".version %*d.%*d .target sm_%*d .address_size 64 .visible .entry %23[a-z]", m->entry) == 1
        && body && last && !strcmp(last + 1 + strspn(last + 1, " \n"), "}\n");
    if (!fine)
        return false;
    *body = last[1] = 0;
    for (int i = 0; i < SPECIALS; i++)
        add(m, (struct value){.role = SPECIAL, .type = type_of(".u32")}, SPECIAL_NAMES[i]);
    for (word = strtok_r(open + 1, " ,)\n", &rest); fine && word; word = strtok_r(NULL, " ,)\n", &rest)) {
        char *kind = strtok_r(NULL, " ,)\n", &rest), *name = strtok_r(NULL, " ,)\n", &rest);
        fine = !strcmp(word, ".param") && name && listed(".u64 .f64", kind)
            && add(m, (struct value){.role = PARAMETER, .type = type_of(kind)}, name) >= 0;
    }
    for (word = strtok_r(body + 1, ";", &rest); fine && word; word = strtok_r(NULL, ";", &rest))
        fine = read_statement(m, word);
    for (int i = 0; i < m->values_made; i++)
        fine = fine && !(m->values[i].role == LABEL && m->values[i].content >= (uint64_t)m->length);
    return fine && m->length && m->code[m->length - 1].op == RET && m->code[m->length - 1].guard < 0;
}

/* ---- arithmetic ---- */

static float float_of(uint64_t bits) { uint32_t low = (uint32_t)bits; float x; memcpy(&x, &low, 4); return x; }
static double double_of(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
/* Single precision has one NaN on NVIDIA's devices, which is not the host's. */
static uint64_t float_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return isnan(x) ? 0x7fffffff : bits; }
static uint64_t double_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

static int64_t extended(uint64_t value, struct type type)
{
    return type.kind == 's' ? (int64_t)(value << (64 - type.bits)) >> (64 - type.bits) : (int64_t)cut(value, type.bits);
}

static uint64_t half_to_float(uint64_t half)
{
    uint64_t sign = (half & 0x8000) << 16, size = half & 0x7fff;
    return size > 0x7c00 ? 0x7fffffff : size == 0x7c00 ? sign | 0x7f800000
        : sign | float_bits(float_of(size << 13) * 0x1p112f); /* which is exact: exponents count from elsewhere */
}

static uint64_t float_to_half(uint64_t bits)
{
    uint64_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x477ff000) /* from 65520 on, which lies between the greatest and what would be next, and that is even */
        return size > 0x7f800000 ? 0x7fff : sign | 0x7c00;
    if (size < 0x38800000) /* 2^-14: a half and this is counted in 2^-24, as subnormals are */
        return sign | (float_bits(float_of(size) + 0.5f) - 0x3f000000);
    return sign | ((size + 0xfff + (size >> 13 & 1) - (UINT64_C(112) << 23)) >> 13);
}

#define REAL(NAME, T)                                                                                                     \
    static T NAME(enum op op, T a, T b)                                                                                   \
    {                                                                                                                     \
        bool lower = isnan(b) || a < b || (a == b && signbit(a)), greater = isnan(b) || a > b || (a == b && !signbit(a)); \
        return op == MUL_RN ? a * b : op == DIV_RN ? a / b : op == MIN ? (lower ? a : b) : op == MAX ? (greater ? a : b)  \
            : a + b;                                                                                                      \
    }
REAL(real32, float)
REAL(real64, double)

static uint64_t computed(const struct instruction *i, uint64_t a, uint64_t b, uint64_t c)
{
    bool real = i->type.kind == 'f', single = i->type.bits == 32, s = i->type.kind == 's';
    int64_t x = extended(a, i->type), y = extended(b, i->type);
    bool lower = s ? x < y : (uint64_t)x < (uint64_t)y;
    if (real && i->op >= ADD && i->op <= MAX)
        return single ? float_bits(real32(i->op, float_of(a), float_of(b)))
            : double_bits(real64(i->op, double_of(a), double_of(b)));
    switch (i->op) {
    case ADD: return (uint64_t)x + (uint64_t)y;
    case MUL_LO: case MUL_WIDE: return (uint64_t)x * (uint64_t)y;
    case DIV: return y == 0 ? UINT64_MAX : !s ? (uint64_t)x / (uint64_t)y : y == -1 ? -(uint64_t)x : (uint64_t)(x / y);
    case MIN: return lower ? a : b;
    case MAX: return lower ? b : a;
    case GE: return !lower;
    case NE: return x != y;
    case IS_NAN: return single ? isnan(float_of(a)) || isnan(float_of(b)) : isnan(double_of(a)) || isnan(double_of(b));
    case SELP: return c ? a : b;
    case CVT: return real ? half_to_float(a) : (uint64_t)extended(a, i->from);
    case CVT_RN: return single ? float_bits((float)double_of(a)) : float_to_half(a);
    case SHL: return b < 64 ? a << b : 0;
    case SHR: return s ? (uint64_t)(x >> (b < 64 ? b : 63)) : b < 64 ? a >> b : 0;
    case AND: return a & b;
    case OR: return a | b;
    case XOR: return a ^ b;
    default: return a;
    }
}

/* ---- running ---- */

struct launch {
    const struct module *module;
    unsigned blocks, threads;
    uint64_t values[MOST];           /* as a thread begins */
    const struct block *found[MOST]; /* by instruction: the device's memory where its last element lay */
};

/* Where an element lies. NULL, and all is broken from then on, where no memory of the device is, or not as its type wants it. */
static char *element(struct launch *l, int number, uintptr_t address, size_t bytes)
{
    const struct block *b = l->found[number];
    if (!b || address - (uintptr_t)b->seen >= b->bytes)
        for (b = blocks; b && (b->device != l->module->device || address - (uintptr_t)b->seen >= b->bytes);)
            b = b->next;
    l->found[number] = b;
    if (!b || address % bytes)
        sticky = b ? MISALIGNED : ILLEGAL_ADDRESS;
    return sticky ? NULL : b->reached + (address - (uintptr_t)b->seen);
}

static void run_thread(struct launch *l, uint64_t *values)
{
    for (int next = 0, number; number = next++, !sticky;) {
        const struct instruction *i = &l->module->code[number];
        uint64_t a = values[i->at[1]], loaded = 0;
        size_t bytes = (size_t)i->type.bits / 8;
        char *place;
        if (i->guard >= 0 && !values[i->guard])
            continue;
        if (i->op == RET)
            return;
        if (i->op == BRA)
            next = (int)values[i->at[0]];
        else if (i->op == ST && (place = element(l, number, values[i->at[0]], bytes)))
            memcpy(place, &a, bytes);
        else if (i->op == LD && (place = element(l, number, a, bytes)))
            values[i->at[0]] = cut((uint64_t)extended((memcpy(&loaded, place, bytes), loaded), i->type), i->bits);
        else if (i->op != LD && i->op != ST)
            values[i->at[0]] = cut(computed(i, a, values[i->at[2]], values[i->at[3]]), i->bits);
    }
}

/* Carried out by a stream. Between blocks others have the lock, and may free memory. */
static void run(void *argument)
{
    struct launch *l = argument;
    uint64_t values[MOST];
    nanosleep(&(struct timespec){0, 50000}, NULL); /* as copies, so that missing order shows */
    for (unsigned block = 0; block < l->blocks; block++) {
        pthread_mutex_lock(&lock);
        memset(l->found, 0, sizeof l->found);
        l->values[BLOCK] = block;
        for (unsigned thread = 0; thread < l->threads; thread++) {
            l->values[THREAD] = thread;
            memcpy(values, l->values, sizeof *values * (size_t)l->module->values_made);
            run_thread(l, values);
        }
        pthread_mutex_unlock(&lock);
    }
    free(l);
}

/* ---- the driver's functions ---- */

int cuModuleLoadData(uintptr_t *module, const char *image)
{
    int code = begin("cuModuleLoadData");
    if (code)
        return code;
    struct module *m = calloc(1, sizeof *m);
    char *text = strdup(image);
    bool fine = read_module(m, text);
    m->device = current;
    *module = fine ? (uintptr_t)m : 0;
    free(text);
    if (!fine)
        free(m);
    return end(fine ? OK : INVALID_PTX);
}

int cuModuleGetFunction(uintptr_t *function, uintptr_t module, const char *name)
{
    int code = begin("cuModuleGetFunction");
    if (code)
        return code;
    *function = module;
    return end(strcmp(((struct module *)module)->entry, name) ? NOT_FOUND : OK);
}

int cuLaunchKernel(uintptr_t function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned thread_y, unsigned thread_z,
                   unsigned shared, uintptr_t handle, void **parameters, void **extra)
{
    int code = begin("cuLaunchKernel");
    if (code)
        return code;
    struct stream *s = stream_of(handle);
    const struct module *m = (struct module *)function;
    if (!s || m->device != current) /* a module is a context's */
        return end(BAD_HANDLE);
    if (!x || !threads || threads > 1024 || y != 1 || z != 1 || thread_y != 1 || thread_z != 1 || shared || extra)
        return end(INVALID);
    struct launch *l = malloc(sizeof *l);
    *l = (struct launch){.module = m, .blocks = x, .threads = threads};
    for (int i = 0; i < m->values_made; i++) {
        l->values[i] = m->values[i].content;
        if (m->values[i].role == PARAMETER)
            memcpy(&l->values[i], *parameters++, sizeof *l->values);
    }
    l->values[THREADS] = threads;
    l->values[BLOCKS] = x;
    stream_run(s, run, l);
    return end(OK);
}
