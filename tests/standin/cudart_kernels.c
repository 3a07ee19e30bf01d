/* Kernels in the stand-in for CUDA's runtime: the driver's functions that load and launch them, and an interpreter of as much PTX as
 * arraycomm writes. Strict where NVIDIA's compiler is: what it would refuse is refused here, so that a kernel with a wrong register
 * or type fails in tests without a GPU. One operation on floats at a time, so that nothing is fused. */
#include "cudart.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INVALID_PTX = 218, NOT_FOUND = 500, MOST = 512, OPERANDS = 4, NAME = 24 };

struct type {
    char kind; /* b, u, s, f, or p: predicate */
    int bits;
};

struct name {
    char text[NAME];
    struct type type;
};

struct operand {
    enum { REGISTER, NUMBER, PARAMETER } what;
    int at;
    uint64_t value;
};

struct form { /* of instructions: what comes before their types */
    const char *name;
    int operands, types;
};

enum op { LD_PARAM, LD, ST, MOV, CVTA, ADD, ADD_RN, MUL_RN, MUL_LO, MUL_WIDE, DIV, DIV_RN, MIN, MAX, GE, NE, NAN_, SELP, CVT, CVT_RN, SHL,
          SHR, AND, OR, XOR, BRA, RET, OPS };
static const struct form FORMS[OPS] = {
    {"ld.param", 2, 1}, {"ld.global", 2, 1}, {"st.global", 2, 1}, {"mov", 2, 1}, {"cvta.to.global", 2, 1}, {"add", 3, 1},
    {"add.rn", 3, 1}, {"mul.rn", 3, 1}, {"mul.lo", 3, 1}, {"mul.wide", 3, 1}, {"div", 3, 1}, {"div.rn", 3, 1}, {"min", 3, 1},
    {"max", 3, 1}, {"setp.ge", 3, 1}, {"setp.ne", 3, 1}, {"setp.nan", 3, 1}, {"selp", 4, 1}, {"cvt", 2, 2}, {"cvt.rn", 2, 2},
    {"shl", 3, 1}, {"shr", 3, 1}, {"and", 3, 1}, {"or", 3, 1}, {"xor", 3, 1}, {"bra", 1, 0}, {"ret", 0, 0}};

struct instruction {
    enum op op;
    struct type type, from; /* from: of a conversion */
    struct operand operands[OPERANDS];
    int guard, target; /* a predicate, or -1; where a branch goes */
};

struct module { /* with one kernel */
    struct module *next;
    char entry[NAME];
    struct name registers[MOST], parameters[MOST], labels[MOST]; /* a label's type.bits: the instruction after it */
    struct instruction code[MOST];
    int registers_made, parameters_made, labels_made, length;
};

static struct module *modules;
static const struct name SPECIAL[] = {{"%tid.x", {'u', 32}}, {"%ctaid.x", {'u', 32}}, {"%ntid.x", {'u', 32}}, {"%nctaid.x", {'u', 32}}};
enum { THREAD, BLOCK, THREADS, BLOCKS, SPECIALS };

/* ---- reading ---- */

static bool read_type(const char *text, struct type *type)
{
    if (!strcmp(text, "pred")) {
        *type = (struct type){'p', 1};
        return true;
    }
    *type = (struct type){*text, atoi(*text ? text + 1 : text)};
    bool known = *text && strchr("busf", *text) && (type->bits == 8 || type->bits == 16 || type->bits == 32 || type->bits == 64);
    return known && !(*text == 'f' && type->bits == 8);
}

static int find_name(const struct name *names, int count, const char *text)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i].text, text))
            return i;
    return -1;
}

static bool add_name(struct name *names, int *count, const char *text, struct type type)
{
    if (*count == MOST || strlen(text) >= NAME || find_name(names, *count, text) >= 0)
        return false;
    names[*count].type = type;
    strcpy(names[(*count)++].text, text);
    return true;
}

/* ".reg .u32 %a, %r<2>": one register, and two. */
static bool read_registers(struct module *m, char *text)
{
    char *rest, *kind = strtok_r(text, " .", &rest);
    struct type type;
    bool fine = kind && read_type(kind, &type);
    for (char *name; fine && (name = strtok_r(NULL, " ,", &rest));) {
        char *many = strchr(name, '<'), numbered[2 * NAME];
        if (!many)
            fine = add_name(m->registers, &m->registers_made, name, type);
        for (int i = 0; many && i < atoi(many + 1) && fine; i++) {
            snprintf(numbered, sizeof numbered, "%.*s%d", (int)(many - name), name, i);
            fine = add_name(m->registers, &m->registers_made, numbered, type);
        }
    }
    return fine;
}

/* Whether an instruction of this type takes this register. wide: types of 8 and 16 bits lie in longer ones. */
static bool fits(struct type reg, struct type type, bool wide)
{
    if (reg.kind == 'p' || type.kind == 'p')
        return reg.kind == type.kind;
    if (wide && type.bits < 32 && type.kind != 'f')
        return reg.kind != 'f' && reg.bits >= type.bits;
    bool integers = reg.kind != 'f' && type.kind != 'f';
    return reg.bits == type.bits && (integers || reg.kind == type.kind || reg.kind == 'b' || type.kind == 'b');
}

static bool read_operand(struct module *m, char *text, struct type type, bool wide, struct operand *operand)
{
    int at = find_name(m->registers, m->registers_made, text);
    *operand = (struct operand){.what = REGISTER, .at = at};
    if (at >= 0)
        return fits(m->registers[at].type, type, wide);
    char *end;
    operand->what = NUMBER;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'd')) {
        operand->value = strtoull(text + 2, &end, 16);
        return !*end && end - text == (text[1] == 'f' ? 10 : 18) && type.bits == (text[1] == 'f' ? 32 : 64) && type.kind == 'f';
    }
    operand->value = strtoull(text, &end, 0);
    return *text && !*end && type.kind != 'f' && type.kind != 'p';
}

/* The type that operand i must have. */
static struct type type_of(const struct instruction *i, int operand)
{
    static const struct type PREDICATE = {'p', 1}, WORD = {'u', 32}, ADDRESS = {'u', 64};
    switch (i->op) {
    case LD: return operand == 1 ? ADDRESS : i->type;
    case ST: return operand == 0 ? ADDRESS : i->type;
    case GE: case NE: case NAN_: return operand == 0 ? PREDICATE : i->type;
    case SELP: return operand == 3 ? PREDICATE : i->type;
    case CVT: case CVT_RN: return operand == 1 ? i->from : i->type;
    case SHL: case SHR: return operand == 2 ? WORD : i->type;
    case MUL_WIDE: return operand == 0 ? (struct type){i->type.kind, 2 * i->type.bits} : i->type;
    default: return i->type;
    }
}

/* Whether there is such an instruction of these types. */
static bool exists(const struct instruction *i)
{
    bool real = i->type.kind == 'f' && i->type.bits >= 32, integer = (i->type.kind == 'u' || i->type.kind == 's') && i->type.bits >= 16;
    switch (i->op) {
    case ADD: case MIN: case MAX: case GE: case NE: return real || integer;
    case ADD_RN: case MUL_RN: case DIV_RN: case NAN_: return real;
    case MUL_LO: case DIV: return integer;
    case MUL_WIDE: return integer && i->type.bits < 64;
    case MOV: return i->type.kind != 'p' && i->type.bits >= 16;
    case SELP: return i->type.bits >= 16;
    case CVTA: return i->type.kind == 'u' && i->type.bits == 64;
    case LD: case ST: case LD_PARAM: return !(i->type.kind == 'f' && i->type.bits == 16);
    case SHL: case AND: case OR: case XOR: return i->type.kind == 'b' && i->type.bits >= 16;
    case SHR: return i->type.kind != 'f' && i->type.bits >= 16;
    case CVT: return i->from.kind == 'f' ? i->type.kind == 'f' && i->type.bits > i->from.bits : i->type.kind != 'f';
    case CVT_RN: return i->from.kind == 'f' && i->type.kind == 'f' && i->type.bits < i->from.bits;
    default: return true;
    }
}

static bool read_operands(struct module *m, struct instruction *i, char *text)
{
    char *rest, *word = strtok_r(text, " ,[]", &rest);
    for (int n = 0; n < FORMS[i->op].operands; n++, word = strtok_r(NULL, " ,[]", &rest)) {
        struct operand *to = &i->operands[n];
        int special = word && i->op == MOV && n == 1 ? find_name(SPECIAL, SPECIALS, word) : -1;
        if (!word)
            return false;
        if (i->op == BRA) /* known when all has been read */
            *to = (struct operand){.what = NUMBER, .value = (uint64_t)(uintptr_t)strdup(word)};
        else if (i->op == LD_PARAM && n == 1) {
            *to = (struct operand){.what = PARAMETER, .at = find_name(m->parameters, m->parameters_made, word)};
            if (to->at < 0 || m->parameters[to->at].type.bits != i->type.bits)
                return false;
        } else if (special >= 0)
            *to = (struct operand){.what = REGISTER, .at = MOST + special};
        else if (!read_operand(m, word, type_of(i, n), i->op == LD || i->op == ST || i->op == CVT, to))
            return false;
    }
    return !word;
}

static bool read_instruction(struct module *m, char *text)
{
    struct instruction *i = &m->code[m->length];
    char *rest, *word = strtok_r(text, " ", &rest);
    *i = (struct instruction){.guard = -1};
    if (*word == '@') {
        i->guard = find_name(m->registers, m->registers_made, word + 1);
        if (i->guard < 0 || m->registers[i->guard].type.kind != 'p' || !(word = strtok_r(NULL, " ", &rest)))
            return false;
    }
    for (int op = 0; op < OPS; op++) {
        const struct form *form = &FORMS[op];
        size_t length = strlen(form->name);
        if (strncmp(word, form->name, length) || (word[length] && word[length] != '.'))
            continue;
        char types[2 * NAME], *more, *first, *second;
        snprintf(types, sizeof types, "%s", word + length);
        first = strtok_r(types, ".", &more);
        second = first ? strtok_r(NULL, ".", &more) : NULL;
        bool two = second != NULL && !strtok_r(NULL, ".", &more);
        i->op = (enum op)op;
        if (form->types == (first != NULL) + two && !(second && !two) && (!first || read_type(first, &i->type))
            && (!second || read_type(second, &i->from)))
            return m->length++ < MOST - 1 && exists(i) && read_operands(m, i, rest);
    }
    return false;
}

static bool read_body(struct module *m, char *text)
{
    char *rest;
    for (char *line = strtok_r(text, ";", &rest); line; line = strtok_r(NULL, ";", &rest)) {
        line += strspn(line, " \n");
        for (char *colon; (colon = strchr(line, ':')); line = colon + 1 + strspn(colon + 1, " \n")) {
            *colon = 0;
            if (!add_name(m->labels, &m->labels_made, line, (struct type){'b', m->length}))
                return false;
        }
        if (*line && !(strncmp(line, ".reg ", 5) ? read_instruction(m, line) : read_registers(m, line + 5)))
            return false;
    }
    for (struct instruction *i = m->code; i < m->code + m->length; i++)
        if (i->op == BRA) {
            char *label = (char *)(uintptr_t)i->operands[0].value;
            int at = find_name(m->labels, m->labels_made, label);
            free(label);
            if (at < 0)
                return false;
            i->target = m->labels[at].type.bits;
        }
    return m->length && m->code[m->length - 1].op == RET;
}

/* A header, and one kernel with parameters of 64 bits. */
static bool read_module(struct module *m, char *text)
{
    char *open = strchr(text, '('), *body = strchr(text, '{'), *end = body ? strchr(body, '}') : NULL, *rest;
    float version;
    int target;
    if (sscanf(text, ".version %f\n.target sm_%d\n.address_size 64\n.visible .entry %23[a-z]", &version, &target, m->entry) != 3
        || !open || !end || open > body)
        return false;
    *body = *end = 0;
    for (char *word = strtok_r(open + 1, " ,)\n", &rest); word; word = strtok_r(NULL, " ,)\n", &rest)) {
        struct type type;
        char *kind = strtok_r(NULL, " ,)\n", &rest), *name = strtok_r(NULL, " ,)\n", &rest);
        if (strcmp(word, ".param") || !name || !read_type(kind + 1, &type) || type.bits != 64
            || !add_name(m->parameters, &m->parameters_made, name, type))
            return false;
    }
    return read_body(m, body + 1);
}

/* ---- running ---- */

struct launch {
    const struct module *module;
    unsigned blocks, threads;
    uint64_t parameters[MOST];
};

static uint64_t cut(uint64_t value, int bits) { return bits < 64 ? value & ((UINT64_C(1) << bits) - 1) : value; }

static int64_t extended(uint64_t value, struct type type)
{
    int above = 64 - type.bits;
    return type.kind == 's' ? (int64_t)(value << above) >> above : (int64_t)cut(value, type.bits);
}

static float float_of(uint64_t bits) { uint32_t low = (uint32_t)bits; float x; memcpy(&x, &low, 4); return x; }
static double double_of(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static uint64_t bits_of(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static uint64_t bits_of_double(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

static double half_of(uint64_t code)
{
    int exponent = code >> 10 & 31;
    double part = (double)(code & 1023), x = exponent == 31 ? (part ? NAN : INFINITY)
        : exponent ? ldexp(1024 + part, exponent - 25) : ldexp(part, -24);
    return code >> 15 ? -x : x;
}

static uint64_t half_bits(double x)
{
    uint64_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return 0x7fff;
    int exponent = -14;
    if (fabs(x) >= ldexp(1, -14) && !isinf(x))
        frexp(x, &exponent), exponent--;
    double units = isinf(x) ? 0 : rint(ldexp(fabs(x), 10 - exponent)); /* to even; up to 2048: the next exponent's first */
    if (isinf(x) || ldexp(units, exponent - 10) >= 65536)
        return sign | 0x7c00;
    return sign | (units < 1024 ? (uint64_t)units : ((uint64_t)(exponent + 14) << 10) + (uint64_t)units);
}

#define REAL(NAME, T)                                                                              \
    static T NAME(enum op op, T a, T b)                                                            \
    {                                                                                              \
        bool lower = a < b || (a == b && signbit(a));                                              \
        switch (op) {                                                                              \
        case MUL_RN: return a * b;                                                                 \
        case DIV_RN: return a / b;                                                                 \
        case MIN: return isnan(a) ? b : isnan(b) || lower ? a : b;                                 \
        case MAX: return isnan(a) ? b : isnan(b) || !lower ? a : b;                                \
        default: return a + b;                                                                     \
        }                                                                                          \
    }
REAL(real32, float)
REAL(real64, double)

static uint64_t integer(const struct instruction *i, uint64_t left, uint64_t right)
{
    int64_t a = extended(left, i->type), b = extended(right, i->type);
    bool lower = i->type.kind == 's' ? a < b : (uint64_t)a < (uint64_t)b;
    switch (i->op) {
    case MUL_LO: case MUL_WIDE: return (uint64_t)a * (uint64_t)b;
    case DIV: return b == 0 ? UINT64_MAX : i->type.kind == 's' ? (uint64_t)(a / b) : (uint64_t)a / (uint64_t)b;
    case MIN: return (uint64_t)(lower ? a : b);
    case MAX: return (uint64_t)(lower ? b : a);
    default: return (uint64_t)a + (uint64_t)b;
    }
}

static bool compared(const struct instruction *i, uint64_t left, uint64_t right)
{
    if (i->type.kind == 'f') {
        double a = i->type.bits == 32 ? float_of(left) : double_of(left), b = i->type.bits == 32 ? float_of(right) : double_of(right);
        return i->op == NAN_ ? isnan(a) || isnan(b) : i->op == GE ? a >= b : a < b || a > b;
    }
    int64_t a = extended(left, i->type), b = extended(right, i->type);
    return i->op == NE ? a != b : i->type.kind == 's' ? a >= b : (uint64_t)a >= (uint64_t)b;
}

static uint64_t converted(const struct instruction *i, uint64_t value)
{
    if (i->type.kind != 'f')
        return (uint64_t)extended(value, i->from);
    double x = i->from.bits == 16 ? half_of(value) : i->from.bits == 32 ? float_of(value) : double_of(value);
    return i->type.bits == 16 ? half_bits(x) : i->type.bits == 32 ? bits_of((float)x) : bits_of_double(x);
}

static uint64_t computed(const struct instruction *i, const uint64_t *v)
{
    switch (i->op) {
    case CVT: case CVT_RN: return converted(i, v[1]);
    case GE: case NE: case NAN_: return compared(i, v[1], v[2]);
    case SELP: return v[3] ? v[1] : v[2];
    case SHL: return v[2] >= 64 ? 0 : v[1] << v[2];
    case SHR: return (uint64_t)(extended(v[1], i->type) >> (v[2] > 63 ? 63 : v[2]));
    case AND: return v[1] & v[2];
    case OR: return v[1] | v[2];
    case XOR: return v[1] ^ v[2];
    case MOV: case CVTA: case LD_PARAM: return v[1];
    default:
        return i->type.kind != 'f' ? integer(i, v[1], v[2]) : i->type.bits == 32 ? bits_of(real32(i->op, float_of(v[1]), float_of(v[2])))
             : bits_of_double(real64(i->op, double_of(v[1]), double_of(v[2])));
    }
}

/* Where an element lies; NULL, and all is broken from then on, where no device's memory is, or not as its type wants it. */
static char *element(uint64_t address, int bytes)
{
    bool pinned;
    char *at = reach(address, (size_t)bytes, &pinned);
    if (!at || pinned || address % (uint64_t)bytes)
        sticky = ILLEGAL_ADDRESS;
    return sticky ? NULL : at;
}

static void run_thread(const struct launch *l, uint64_t *registers)
{
    const struct module *m = l->module;
    for (int at = 0; !sticky && m->code[at].op != RET;) {
        const struct instruction *i = &m->code[at++];
        uint64_t v[OPERANDS], loaded = 0;
        int bytes = i->type.bits / 8;
        if (i->guard >= 0 && !registers[i->guard])
            continue;
        if (i->op == BRA) {
            at = i->target;
            continue;
        }
        for (int n = 0; n < FORMS[i->op].operands; n++) {
            const struct operand *o = &i->operands[n];
            v[n] = o->what == REGISTER ? registers[o->at] : o->what == NUMBER ? o->value : l->parameters[o->at];
        }
        char *place = i->op == LD || i->op == ST ? element(v[i->op == LD], bytes) : NULL;
        if (place && i->op == ST)
            memcpy(place, &v[1], (size_t)bytes);
        if (place && i->op == LD)
            memcpy(&loaded, place, (size_t)bytes);
        if (i->op != ST) {
            int to = i->operands[0].at;
            uint64_t value = i->op == LD ? (uint64_t)extended(loaded, i->type) : computed(i, v);
            registers[to] = cut(value, m->registers[to].type.bits);
        }
    }
}

static void run(void *argument)
{
    static const struct timespec PAUSE = {0, 50000};
    struct launch *l = argument;
    uint64_t registers[MOST + SPECIALS];
    nanosleep(&PAUSE, NULL); /* as copies take some, so that missing order shows */
    pthread_mutex_lock(&lock);
    for (unsigned block = 0; block < l->blocks; block++)
        for (unsigned thread = 0; thread < l->threads; thread++) {
            memset(registers, 0xA5, sizeof registers); /* what nobody has written holds garbage */
            registers[MOST + THREAD] = thread, registers[MOST + BLOCK] = block;
            registers[MOST + THREADS] = l->threads, registers[MOST + BLOCKS] = l->blocks;
            run_thread(l, registers);
        }
    pthread_mutex_unlock(&lock);
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
    free(text);
    if (!fine) {
        free(m);
        return end(INVALID_PTX);
    }
    m->next = modules;
    modules = m;
    *module = (uintptr_t)m;
    return end(OK);
}

int cuModuleGetFunction(uintptr_t *function, uintptr_t module, const char *name)
{
    int code = begin("cuModuleGetFunction");
    if (code)
        return code;
    struct module *m = modules;
    while (m && (uintptr_t)m != module)
        m = m->next;
    *function = module;
    return end(!m ? BAD_HANDLE : strcmp(m->entry, name) ? NOT_FOUND : OK);
}

int cuLaunchKernel(uintptr_t function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned thread_y, unsigned thread_z,
                   unsigned shared, uintptr_t handle, void **parameters, void **extra)
{
    int code = begin("cuLaunchKernel");
    if (code)
        return code;
    struct stream *s = stream_of(handle);
    const struct module *m = (const struct module *)function;
    if (!s)
        return end(BAD_HANDLE);
    if (!blocks || !threads || threads > 1024 || y != 1 || z != 1 || thread_y != 1 || thread_z != 1 || shared || extra)
        return end(INVALID);
    struct launch *l = calloc(1, sizeof *l);
    *l = (struct launch){.module = m, .blocks = blocks, .threads = threads};
    for (int i = 0; i < m->parameters_made; i++)
        memcpy(&l->parameters[i], parameters[i], sizeof l->parameters[i]);
    stream_run(s, run, l);
    return end(OK);
}
