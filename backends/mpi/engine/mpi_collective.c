/* The library's own collectives, as one of the engine's algorithms. An array goes in segments through the group's staging buffer:
 * MPI cannot cancel a collective, so if a group fails before its end, MPI keeps this buffer, and no memory of the program. A
 * waiting thread polls the request, as it polls links.
 *
 * An array on a GPU goes to MPI itself, if the library takes it. That is a blocking call in a thread of its own: Open MPI's
 * nonblocking collectives do not take such arrays. After a failure the thread stays in MPI, which keeps the program's array. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "base/clock.h"
#include "collectives/collectives.h"
#include "mpi_fabric.h"

#define SEGMENT ((uint64_t)4 << 20) /* bytes of all blocks of one */
#define NAP_MIN_NS 50000
#define NAP_MAX_NS 1000000
#define TAGS 32768
#define MPI_IS_OVER (-1)

/* A group's state for them. Never freed once MPI may use some of it forever. */
struct mpi_group {
    struct mpi_fabric *fabric;
    uint64_t comm, request;  /* as the library writes them */
    int rank, size, tag;
    _Atomic bool made;       /* the communicator is, and no thread of the group is in MPI */
    bool busy;               /* the request is under way */
    bool none;               /* MPI could not make a communicator for some rank, for example after a death */
    int code;                /* MPI's, or MPI_IS_OVER */
    int *counts;             /* of uneven blocks: send counts, send displacements, receive counts, receive displacements; before
                              * that each rank's rank in the fabric's communicator */
    char *given, *got;
    size_t bytes;            /* of each */
    struct acomm_op op;      /* of arrays on a GPU: with the arrays for MPI, */
    struct mpi_type type;
    char *result;            /* and where its result is to be copied from `out`, unless it is the same */
};

/* ---- waiting ---- */

static bool request_ended(struct mpi_group *m)
{
    int flag = 0;
    if (!fabric_enter()) {
        m->code = MPI_IS_OVER;
        return true;
    }
    m->code = m->fabric->mpi->Test(&m->request, &flag, m->fabric->mpi->family.ignore);
    fabric_leave();
    m->busy = !flag;
    return flag || m->code;
}

static bool comm_made(struct mpi_group *m)
{
    return atomic_load_explicit(&m->made, memory_order_acquire);
}

static void nap(const struct acomm_op *op, int64_t *ns)
{
    struct pollfd wake = {.fd = op->group->wake_fd, .events = POLLIN};
    int64_t left = op->deadline - clock_now();
    ppoll(&wake, 1, &(struct timespec){0, left < 0 ? 0 : left < *ns ? left : *ns}, NULL);
    *ns = *ns * 2 < NAP_MAX_NS ? *ns * 2 : NAP_MAX_NS;
}

static int own_failed(struct acomm_op *op, const struct mpi_group *m)
{
    const acomm_mpi *mpi = m->fabric->mpi;
    char words[192] = "MPI has been finalised";
    if (m->code == MPI_IS_OVER)
        return group_fail_op(op, ACOMM_CLOSED, -1, 0, words);
    mpi_words(mpi, m->code, words);
    if (!mpi_tells_of_death(mpi, m->code))
        return group_fail_op(op, ACOMM_LIBRARY, -1, 0, words);
    wait_news(op->group, -1); /* its rank */
    return group_fail_op(op, ACOMM_LOST, -1, 0, words);
}

/* 0, or the group's failure. */
static int wait_until(struct acomm_op *op, struct mpi_group *m, bool (*ended)(struct mpi_group *m))
{
    struct wait w = wait_start_links(op);
    int64_t ns = NAP_MIN_NS;
    while (!ended(m)) {
        int rc = wait_step(&w);
        if (rc)
            return group_fail_op(op, rc, -1, 0, NULL);
        if (w.sleepy) {
            nap(op, &ns);
            wait_woke(&w);
        }
    }
    return 0;
}

/* ---- the group's communicator ---- */

static int comm_make(struct mpi_group *m)
{
    acomm_mpi *mpi = m->fabric->mpi;
    uint64_t all = 0, some = 0;
    int rc = mpi->Comm_group(m->fabric->comm, &all);
    rc = rc ? rc : mpi->Group_incl(mpi_read(mpi, &all), m->size, m->counts, &some);
    rc = rc ? rc : mpi->Comm_create_group(m->fabric->comm, mpi_read(mpi, &some), m->tag, &m->comm);
    if (some)
        mpi->Group_free(&some);
    if (all)
        mpi->Group_free(&all);
    return rc ? rc : mpi->Comm_set_errhandler(mpi_read(mpi, &m->comm), mpi->errors_return);
}

/* A thread of its own: MPI makes communicators of some ranks only in a call that waits for all of them, and has no timeout. */
static void *comm_thread(void *group)
{
    struct mpi_group *m = group;
    m->code = comm_make(m);
    atomic_store_explicit(&m->made, true, memory_order_release);
    return NULL;
}

static void own_free(struct mpi_group *m)
{
    free(m->counts);
    free(m->given);
    free(m->got);
    free(m);
}

static struct mpi_group *own_new(const struct acomm_group *g, bool none)
{
    struct mpi_group *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct mpi_group){.fabric = (struct mpi_fabric *)g->fabric, .rank = g->rank, .size = g->size,
                            .tag = (int)(g->id % TAGS), .none = none, .made = none,
                            .counts = malloc(4 * (size_t)g->size * sizeof *m->counts)};
    if (!m->counts) {
        free(m);
        return NULL;
    }
    memcpy(m->counts, g->members, (size_t)g->size * sizeof *m->counts);
    return m;
}

static int out_of_memory(struct acomm_op *op)
{
    return group_fail_op(op, ACOMM_RESOURCE, op->group->rank, ENOMEM, NULL);
}

/* Whether all ranks agree, compared over the links. 0, or the group's failure. */
static int all_say(struct acomm_op *op, bool yes, bool *all)
{
    int32_t mine = yes, smallest = 0;
    struct acomm_op part = part_of(op, op->team, ACOMM_ALL_REDUCE, &mine, &smallest, 1);
    part.dtype = ACOMM_INT32;
    part.redop = ACOMM_MIN;
    part.width = sizeof mine;
    part.algorithm = op->algorithm;
    int rc = part_run_by(op, &part, bruck_run);
    *all = smallest;
    return rc;
}

/* Not begun if a rank knows of a death: Open MPI's call would end with an error on some ranks and never on others. Even so, a
 * rank may get its communicator and another one an error. */
static int comm_open(struct acomm_op *op)
{
    struct acomm_group *g = op->group;
    struct mpi_group *m = g->fabric_own;
    if (m)
        return m->none ? FABRIC_CANNOT : 0;
    bool all;
    int rc = all_say(op, acomm_node_failed(g->node) < 0, &all);
    if (rc)
        return rc;
    if (!(m = own_new(g, !all)))
        return out_of_memory(op);
    if (all && thread_detached(comm_thread, m)) {
        own_free(m);
        return out_of_memory(op);
    }
    g->fabric_own = m;
    if (!all)
        return FABRIC_CANNOT;
    rc = wait_until(op, m, comm_made);
    rc = rc ? rc : all_say(op, m->code == 0, &all);
    if (rc)
        return rc;
    m->none = !all;
    return all ? 0 : FABRIC_CANNOT;
}

void mpi_collective_leave(struct acomm_group *g)
{
    struct mpi_group *m = g->fabric_own;
    if (!comm_made(m) || m->busy || !fabric_enter())
        return;
    if (m->comm && !m->none)
        m->fabric->mpi->Comm_free(&m->comm);
    fabric_leave();
    own_free(m);
}

/* ---- a collective ---- */

struct call {
    struct acomm_op *op;
    const char *in;
    struct mpi_group *m;
    struct reduction reduction;
    struct mpi_type type;
    size_t width;            /* bytes of an element on its way */
    uint64_t longest;        /* elements of the longest block of any rank */
    uint64_t segment, at;    /* elements of a block that go together, and where these begin */
};

static bool uneven(const struct acomm_op *op)
{
    return op->send_counts || op->recv_counts;
}

/* Elements of a block of `count` that are in this segment. */
static uint64_t call_part(const struct call *c, uint64_t count)
{
    uint64_t left = count > c->at ? count - c->at : 0;
    return left < c->segment ? left : c->segment;
}

static int mpi_count(const struct call *c, uint64_t elements)
{
    return (int)(elements * (uint64_t)c->type.each);
}

/* Elements of the block that this rank sends or receives, if there is one. */
static uint64_t call_block(const struct call *c)
{
    const uint64_t *counts = c->op->send_counts ? c->op->send_counts : c->op->recv_counts;
    return counts ? counts[c->m->rank] : c->op->count;
}

static void copy(const struct call *c, char *to, const char *from, uint64_t elements, bool gives)
{
    if (!op_reduces(c->op))
        memcpy(to, from, elements * c->width);
    else if (gives)
        reduce_begin(&c->reduction, to, from, elements);
    else
        reduce_finish(&c->reduction, to, from, elements);
}

/* Copies the segment of the array's blocks to or from MPI's buffer, where they are consecutive. counts: NULL where they are even.
 * Notes how many MPI elements each has there, and where they begin. */
static void copy_blocks(const struct call *c, char *array, char *packed, const uint64_t *counts, bool gives)
{
    int *lengths = c->m->counts + (gives ? 0 : 2 * c->m->size), *places = lengths + c->m->size;
    bool several = op_array(c->op) & (gives ? ACOMM_CUTS : ACOMM_JOINS);
    uint64_t begins = 0, packs = 0;
    for (int i = 0; i < (several ? c->m->size : 1); i++) {
        uint64_t count = !several ? call_block(c) : counts ? counts[i] : c->op->count, n = call_part(c, count);
        char *at = array + (begins + c->at) * c->op->width, *there = packed + packs * c->width;
        lengths[i] = mpi_count(c, n);
        places[i] = mpi_count(c, packs);
        if (array && n)
            copy(c, gives ? there : at, gives ? at : there, n, gives);
        begins += count;
        packs += n;
    }
}

static int call_start_uneven(const struct call *c)
{
    struct mpi_group *m = c->m;
    const acomm_mpi *mpi = m->fabric->mpi;
    mpi_handle comm = mpi_read(mpi, &m->comm), type = c->type.type;
    const int *gives = m->counts, *from = gives + m->size, *gets = from + m->size, *to = gets + m->size;
    switch (c->op->kind) {
    case ACOMM_ALL_GATHER: return mpi->Iallgatherv(m->given, gives[0], type, m->got, gets, to, type, comm, &m->request);
    case ACOMM_REDUCE_SCATTER: return mpi->Ireduce_scatter(m->given, m->got, gives, type, c->type.op, comm, &m->request);
    default: return mpi->Ialltoallv(m->given, gives, from, type, m->got, gets, to, type, comm, &m->request);
    }
}

static int call_start_even(const struct call *c)
{
    struct mpi_group *m = c->m;
    const acomm_mpi *mpi = m->fabric->mpi;
    mpi_handle comm = mpi_read(mpi, &m->comm), type = c->type.type, with = c->type.op;
    void *in = m->given, *out = m->got, *request = &m->request;
    int n = mpi_count(c, call_part(c, c->op->count)), root = c->op->root;
    switch (c->op->kind) {
#define CASE(kind, blocking, name, parameters, arguments) case ACOMM_##kind: return mpi->name(MPI_BARE arguments, request);
    MPI_COLLECTIVES(CASE)
#undef CASE
    default: return mpi->Ibarrier(comm, request);
    }
}

/* Begins it and waits for its end. */
static int call_run(const struct call *c, int (*start)(const struct call *c))
{
    struct mpi_group *m = c->m;
    m->code = MPI_IS_OVER;
    if (fabric_enter()) {
        m->code = start(c);
        m->busy = !m->code;
        fabric_leave();
    }
    int rc = m->code ? 0 : wait_until(c->op, m, request_ended);
    return rc || !m->code ? rc : own_failed(c->op, m);
}

static int longest_start(const struct call *c)
{
    struct mpi_group *m = c->m;
    const acomm_mpi *mpi = m->fabric->mpi;
    return mpi->Iallreduce(m->given, m->got, 1, mpi->types[ACOMM_UINT64], mpi->ops[ACOMM_MAX], mpi_read(mpi, &m->comm), &m->request);
}

static int memory(const struct call *c, size_t bytes)
{
    struct mpi_group *m = c->m;
    if (m->bytes >= bytes)
        return 0;
    free(m->given);
    free(m->got);
    m->given = malloc(bytes);
    m->got = malloc(bytes);
    m->bytes = m->given && m->got ? bytes : 0;
    return m->bytes ? 0 : out_of_memory(c->op);
}

/* Segments are the same on all ranks, but in an uneven all_to_all each rank knows only its own counts. */
static int call_measure(struct call *c)
{
    const struct acomm_op *op = c->op;
    uint64_t sent = op_largest(op->send_counts, op->count, c->m->size), got = op_largest(op->recv_counts, op->count, c->m->size);
    c->longest = sent > got ? sent : got;
    if (op_array(op) != ACOMM_EXCHANGES || !uneven(op))
        return 0;
    memcpy(c->m->given, &c->longest, sizeof c->longest);
    int rc = call_run(c, longest_start);
    if (!rc)
        memcpy(&c->longest, c->m->got, sizeof c->longest);
    return rc;
}

static int call_open(struct call *c)
{
    const struct acomm_op *op = c->op;
    acomm_mpi *mpi = c->m->fabric->mpi;
    c->width = op->width;
    c->type = mpi_type_moved(mpi, op->width);
    if (op_reduces(op)) {
        c->reduction = (struct reduction){.dtype = op->dtype, .redop = op->redop, .factor = op->factor,
                                          .ranks = op_inputs(op, c->m->rank, c->m->size)};
        c->width = acomm_dtype_bytes(reduce_partial_dtype(op->dtype));
        c->m->code = MPI_IS_OVER;
        if (fabric_enter()) {
            c->m->code = mpi_type_of(mpi, op->dtype, op->redop, &c->type);
            fabric_leave();
        }
        if (c->m->code)
            return own_failed(c->op, c->m);
    }
    int rc = memory(c, 64); /* for a barrier, and for measurements */
    rc = rc ? rc : call_measure(c);
    uint64_t blocks = op_array(op) == ACOMM_WHOLE ? 1 : (uint64_t)c->m->size, most = SEGMENT / c->width / blocks;
    c->segment = most < 1 ? 1 : most < c->longest ? most : c->longest;
    return rc ? rc : memory(c, c->segment * c->width * blocks);
}

static int call_segment(const struct call *c)
{
    struct acomm_op *op = c->op;
    char *given = op->kind == ACOMM_BROADCAST ? c->m->got : c->m->given; /* which has one array, of the root's or of the others' */
    copy_blocks(c, (char *)(uintptr_t)c->in, given, op->send_counts, true);
    copy_blocks(c, NULL, NULL, op->recv_counts, false);
    int rc = call_run(c, uneven(op) ? call_start_uneven : call_start_even);
    if (!rc && op->out && (!op_reduces(op) || c->reduction.ranks))
        copy_blocks(c, op->out, c->m->got, op->recv_counts, false);
    return rc;
}

/* ---- arrays on GPUs ---- */

int (*acomm_mpi_use_device)(int device);

static void *gpu_thread(void *group)
{
    struct mpi_group *m = group;
    const acomm_mpi *mpi = m->fabric->mpi;
    mpi_handle comm = mpi_read(mpi, &m->comm), type = m->type.type, with = m->type.op;
    const void *in = m->op.in;
    void *out = m->op.out;
    int n = (int)m->op.count * m->type.each, root = m->op.root;
    acomm_mpi_use_device(m->op.gpu - 1);
    switch (m->op.kind) {
#define CASE(kind, name, other, parameters, arguments) case ACOMM_##kind: m->code = mpi->name arguments; break;
    MPI_COLLECTIVES(CASE)
    }
    if (!m->code && out != m->result)
        m->code = mpi->Allgather(out, n, type, m->result, n, type, mpi->self); /* which knows memory of GPUs */
    fabric_inside--;
    atomic_store_explicit(&m->made, true, memory_order_release);
    return NULL;
}

/* MPI's arrays must not overlap: of a block of this rank's in its own whole MPI is told, or it comes through the group's memory. A
 * broadcast's root has two arrays. */
static int gpu_open(struct call *c)
{
    struct acomm_op *op = c->op, *given = &c->m->op;
    uint64_t place = (uint64_t)c->m->rank * op->count * op->width;
    bool inside = op_array(op) == ACOMM_CUTS && op->in && op->out == op->in + place, sends = op->kind == ACOMM_BROADCAST && op->in;
    int rc = inside ? memory(c, op->count * op->width) : 0;
    *given = *op;
    c->m->type = c->type;
    c->m->result = op->out;
    given->out = inside ? c->m->got : sends ? (char *)(uintptr_t)op->in : op->out;
    if (!inside && op->in && op->out && op->in == op->out + (op_array(op) == ACOMM_JOINS ? place : 0))
        given->in = c->m->fabric->mpi->family.in_place;
    return rc;
}

/* Without a communicator nothing has been sent, but a rank cannot stage alone. */
static int gpu_run(struct call *c, int rc)
{
    struct mpi_group *m = c->m;
    if (rc == FABRIC_CANNOT)
        return group_fail_op(c->op, ACOMM_LIBRARY, -1, 0, "MPI makes no communicator for this group: shrink() makes a group that "
                                                          "stages arrays on GPUs");
    rc = rc ? rc : gpu_open(c);
    if (rc || !c->op->count)
        return rc;
    m->code = 0;
    m->made = false;
    fabric_inside++;
    rc = thread_detached(gpu_thread, m) ? out_of_memory(c->op) : wait_until(c->op, m, comm_made);
    return rc || !m->code ? rc : own_failed(c->op, m);
}

int mpi_collective(struct acomm_op *op)
{
    int rc = comm_open(op);
    struct call c = {.op = op, .in = op->in, .m = op->group->fabric_own};
    const void *none = NULL;
    rc = rc ? rc : call_open(&c);
    if (op->gpu)
        return gpu_run(&c, rc);
    if (!rc && op_array(op) == ACOMM_JOINS && op->in && op->out) { /* in place, other ranks' blocks may lie in ours */
        char *mine = op->out + op_gathered(op, c.m->rank).offset;
        memmove(mine, op->in, call_block(&c) * op->width);
        c.in = mine;
    }
    if (!rc && op->kind == ACOMM_BARRIER)
        rc = call_run(&c, call_start_even);
    for (; c.at < c.longest && !rc; c.at += c.segment)
        rc = call_segment(&c);
    if (!rc && op->kind == ACOMM_EXSCAN && !c.m->rank)
        reduce_all(&c.reduction, op->out, &none, 0, op->count); /* MPI leaves it unchanged */
    return rc;
}
