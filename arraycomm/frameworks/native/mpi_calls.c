/* The dozen functions of MPI by which jaxlib's "mpi" collectives communicate, over our engine: MPItrampoline, which is a part of
 * jaxlib, takes them from the library that MPITRAMPOLINE_LIB names, and that is this one. They come from XLA's threads, without the
 * GIL, and XLA's buffers are the engine's: nothing is copied. A communicator's group is made by Python, once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call/call.h"
#include "mpi_names.h"
#include "xla_ffi.h"

enum { MPI_ERROR = 1, MPI_TEXT = 1024, MPI_ROOM = 1 << 16 }; /* TEXT: the caller's capacity; ROOM: devices of a clique */

struct mpi_comm {
    int64_t number; /* the handle of its group */
    int rank, size;
    char *why;      /* it could not be made, and every call returns this text; else NULL */
};

/* A queued message. XLA waits for all its begun messages at once, so they are run together then: a single one is a plain call,
 * which costs less than an asynchronous one. If XLA stops in between, none has been begun. */
struct mpi_request {
    struct mpi_comm *comm;
    acomm_call call;
    acomm_work *work;
    struct mpi_request *next; /* of this thread's, in the order of the calls */
    bool over;
    int code;
};

static _Thread_local char mpi_text[MPI_TEXT];
static _Thread_local struct mpi_request *mpi_open;

/* Of Python (frameworks/jax/cpu_collectives.py), with the GIL: the number of the group of these devices, this rank being the one
 * of devices[rank]. 0: *text has the reason. */
int64_t acomm_mpi_join(int32_t *devices, int size, int rank, char *text);

int mpi_failed(const char *text)
{
    size_t length = strnlen(text, MPI_TEXT - 1);
    while (length == MPI_TEXT - 1 && length && ((unsigned char)text[length] & 0xc0) == 0x80)
        length--; /* complete characters */
    memcpy(mpi_text, text, length);
    mpi_text[length] = 0;
    return MPI_ERROR;
}

/* ---- the world and its parts ---- */

static int mpi_give(int *to, int value)
{
    *to = value;
    return 0;
}

MPI_EXPORTED int MPIABI_Init_thread(int *Py_UNUSED(argc), char ***Py_UNUSED(argv), int Py_UNUSED(required), int *provided)
{
    return mpi_give(provided, MPI_VALUE_THREAD_MULTIPLE);
}

MPI_EXPORTED int MPIABI_Query_thread(int *provided) { return mpi_give(provided, MPI_VALUE_THREAD_MULTIPLE); }
MPI_EXPORTED int MPIABI_Is_thread_main(int *flag) { return mpi_give(flag, 1); } /* jaxlib asks whether this thread may call */
MPI_EXPORTED int MPIABI_Initialized(int *flag) { return mpi_give(flag, 1); }
MPI_EXPORTED int MPIABI_Finalized(int *flag) { return mpi_give(flag, 0); }
MPI_EXPORTED int MPIABI_Finalize(void) { return 0; } /* the groups are Python's */

MPI_EXPORTED int MPIABI_Get_library_version(char *text, int *length)
{
    return mpi_give(length, sprintf(text, "arraycomm (docs/guide/jax.md)"));
}

MPI_EXPORTED int MPIABI_Error_string(int Py_UNUSED(code), char *text, int *length)
{
    strcpy(text, mpi_text);
    return mpi_give(length, (int)strlen(text));
}

static bool mpi_is_world(const struct mpi_comm *comm)
{
    return (intptr_t)comm == MPI_VALUE_COMM_WORLD;
}

/* For the world, jaxlib asks only for its log. */
MPI_EXPORTED int MPIABI_Comm_rank(struct mpi_comm *comm, int *rank)
{
    return mpi_give(rank, mpi_is_world(comm) ? 0 : comm->rank);
}

MPI_EXPORTED int MPIABI_Comm_size(struct mpi_comm *comm, int *size)
{
    return mpi_give(size, mpi_is_world(comm) ? 1 : comm->size);
}

/* XLA ignores the code of this one: a communicator that cannot be made returns the reason in each of its calls. */
MPI_EXPORTED int MPIABI_Comm_split(struct mpi_comm *Py_UNUSED(parent), int color, int key, struct mpi_comm **out)
{
    static const char unknown[] =
        "the members of this communicator are not known: this jaxlib keeps them in another way than those that arraycomm knows "
        "(docs/guide/jax.md names the versions). Use one of these, or jax_cpu_collectives_implementation=gloo";
    struct mpi_comm *comm = calloc(1, sizeof *comm);
    int32_t *devices = malloc(MPI_ROOM * sizeof *devices);
    *out = comm;
    if (!comm || !devices)
        abort(); /* this call cannot report it */
    comm->rank = key;
    comm->size = mpi_clique_find(color, key, __builtin_return_address(0), devices, MPI_ROOM);
    if (!comm->size)
        comm->why = strdup(unknown);
    else if (!(comm->number = acomm_mpi_join(devices, comm->size, key, mpi_text)))
        comm->why = strdup(mpi_text);
    free(devices);
    return 0;
}

MPI_EXPORTED int MPIABI_Comm_free(struct mpi_comm **comm)
{
    if (!mpi_is_world(*comm) && *comm) {
        free((*comm)->why);
        free(*comm);
    }
    *comm = NULL;
    return 0;
}

/* ---- calls ---- */

static int mpi_dtype(intptr_t type)
{
    switch (type) {
    case MPI_VALUE_INT8_T: return ACOMM_INT8;
    case MPI_VALUE_INT16_T: return ACOMM_INT16;
    case MPI_VALUE_INT32_T: return ACOMM_INT32;
    case MPI_VALUE_INT64_T: return ACOMM_INT64;
    case MPI_VALUE_BYTE:
    case MPI_VALUE_UINT8_T: return ACOMM_UINT8;
    case MPI_VALUE_UINT16_T: return ACOMM_UINT16;
    case MPI_VALUE_UINT32_T: return ACOMM_UINT32;
    case MPI_VALUE_UINT64_T: return ACOMM_UINT64;
    case MPI_VALUE_FLOAT: return ACOMM_FLOAT32;
    case MPI_VALUE_DOUBLE: return ACOMM_FLOAT64;
    case MPI_VALUE_C_COMPLEX: return ACOMM_COMPLEX64;
    case MPI_VALUE_C_DOUBLE_COMPLEX: return ACOMM_COMPLEX128;
    }
    return -1;
}

static int mpi_redop(intptr_t op)
{
    switch (op) {
    case MPI_VALUE_SUM: return ACOMM_SUM;
    case MPI_VALUE_PROD: return ACOMM_PRODUCT;
    case MPI_VALUE_MIN: return ACOMM_MIN;
    case MPI_VALUE_MAX: return ACOMM_MAX;
    }
    return -1;
}

/* Notes the error's text. */
static int mpi_explain(const struct mpi_comm *comm, int code)
{
    char *text = xla_explain(comm->number, 0);
    mpi_failed(text ? text : acomm_code_text(code));
    free(text);
    return MPI_ERROR;
}

/* The request's call has returned this code. XLA asks for the text of the first failure only. */
static void mpi_over(struct mpi_request *request, int code, bool *failed)
{
    request->over = true;
    request->code = code ? MPI_ERROR : 0;
    if (code && !*failed)
        mpi_explain(request->comm, code);
    *failed |= code != 0;
}

static void mpi_forget(void)
{
    for (struct mpi_request *next; mpi_open; mpi_open = next) {
        next = mpi_open->next;
        free(mpi_open);
    }
}

/* Why a call is not supported; NULL if it is. */
static const char *mpi_refusal(const struct mpi_comm *comm, int count, const acomm_call *call)
{
    static const char negative[] =
        "jaxlib counts in 32-bit integers here, in bytes in lax.ppermute and lax.all_to_all, in elements elsewhere, and this array is "
        "too long for that: its count has come as a negative number. From 2^32 on jaxlib moves a part of an array without an error. "
        "Use several shorter arrays, or arraycomm's own operations in jit (docs/guide/jax.md)";
    if (comm->why)
        return comm->why;
    if (count < 0)
        return negative;
    return call->dtype < 0 || call->redop < 0 ? "arraycomm does not know this MPI type or operation" : NULL;
}

/* Runs `call` and, if there is one, `second` at the same time. */
static int mpi_call(struct mpi_comm *comm, int count, acomm_call *call, acomm_call *second)
{
    const char *refusal = mpi_refusal(comm, count, call);
    if (refusal)
        return mpi_failed(refusal);
    call->count = (uint64_t)count;
    acomm_call *into = second ? second : call;
    xla_prepare(into->out, into->count * acomm_dtype_bytes(into->dtype) * (into->kind == ACOMM_ALL_GATHER ? (uint64_t)comm->size : 1));
    int code = second ? c_api.exchange(comm->number, call, second) : c_api.run(comm->number, call);
    return code ? mpi_explain(comm, code) : 0;
}

MPI_EXPORTED int MPIABI_Allreduce(const void *in, void *out, int count, intptr_t type, intptr_t op, struct mpi_comm *comm)
{
    acomm_call call = {.in = (intptr_t)in == MPI_VALUE_IN_PLACE ? out : in, .out = out,
                       .kind = ACOMM_ALL_REDUCE, .dtype = mpi_dtype(type), .redop = mpi_redop(op), .root = -1};
    return mpi_call(comm, count, &call, NULL);
}

/* The second count and type are those of the send buffer. */
MPI_EXPORTED int MPIABI_Allgather(const void *in, int count, intptr_t type, void *out, int Py_UNUSED(counts),
                                  intptr_t Py_UNUSED(types), struct mpi_comm *comm)
{
    acomm_call call = {.in = in, .out = out, .kind = ACOMM_ALL_GATHER, .dtype = mpi_dtype(type), .root = -1};
    return mpi_call(comm, count, &call, NULL);
}

/* XLA's counts are equal. */
MPI_EXPORTED int MPIABI_Reduce_scatter(const void *in, void *out, const int *counts, intptr_t type, intptr_t op,
                                       struct mpi_comm *comm)
{
    acomm_call call = {.in = in, .out = out, .kind = ACOMM_REDUCE_SCATTER, .dtype = mpi_dtype(type),
                       .redop = mpi_redop(op), .root = -1};
    return mpi_call(comm, counts[0], &call, NULL);
}

static acomm_call mpi_message(int kind, const void *in, void *out, intptr_t type, int peer, int tag)
{
    return (acomm_call){.in = in, .out = out, .kind = kind, .dtype = mpi_dtype(type), .root = peer, .tag = tag};
}

MPI_EXPORTED int MPIABI_Sendrecv(const void *in, int count, intptr_t type, int to, int tag, void *out, int count_in,
                                 intptr_t type_in, int from, int tag_in, struct mpi_comm *comm, void *Py_UNUSED(status))
{
    acomm_call send = mpi_message(ACOMM_SEND, in, NULL, type, to, tag);
    acomm_call receive = mpi_message(ACOMM_RECV, NULL, out, type_in, from, tag_in);
    receive.count = (uint64_t)count_in;
    return mpi_call(comm, count_in < 0 ? count_in : count, &send, &receive);
}

static int mpi_begin(struct mpi_comm *comm, int count, const acomm_call *call, struct mpi_request **out)
{
    const char *refusal = mpi_refusal(comm, count, call);
    struct mpi_request *request = malloc(sizeof *request), **end = &mpi_open;
    if (refusal || !request) {
        free(request);
        mpi_forget();
        return mpi_failed(refusal ? refusal : "no memory");
    }
    *request = (struct mpi_request){.comm = comm, .call = *call};
    request->call.count = (uint64_t)count;
    xla_prepare(call->out, (uint64_t)count * acomm_dtype_bytes(call->dtype));
    while (*end)
        end = &(*end)->next;
    *out = *end = request;
    return 0;
}

/* Runs all messages that this thread has begun, in the order of the calls: the last one is run, while those before it are under
 * way. All have ended, with success or failure, before this returns, as they read and write the program's memory. */
static void mpi_move(void)
{
    struct mpi_request *open = mpi_open, *last = open;
    mpi_open = NULL;
    bool failed = false;
    for (; last->next; last = last->next)
        mpi_over(last, c_api.start(last->comm->number, &last->call, &last->work), &failed);
    mpi_over(last, c_api.run(last->comm->number, &last->call), &failed);
    for (struct mpi_request *r = open; r != last; r = r->next)
        if (!r->code)
            mpi_over(r, c_api.finish(r->work), &failed);
}

MPI_EXPORTED int MPIABI_Isend(const void *in, int count, intptr_t type, int to, int tag, struct mpi_comm *comm,
                              struct mpi_request **out)
{
    acomm_call call = mpi_message(ACOMM_SEND, in, NULL, type, to, tag);
    return mpi_begin(comm, count, &call, out);
}

MPI_EXPORTED int MPIABI_Irecv(void *data, int count, intptr_t type, int from, int tag, struct mpi_comm *comm,
                              struct mpi_request **out)
{
    acomm_call call = mpi_message(ACOMM_RECV, NULL, data, type, from, tag);
    return mpi_begin(comm, count, &call, out);
}

MPI_EXPORTED int MPIABI_Wait(struct mpi_request **out, void *Py_UNUSED(status))
{
    struct mpi_request *request = *out;
    if (!request->over)
        mpi_move();
    int code = request->code;
    free(request);
    *out = NULL;
    return code;
}
