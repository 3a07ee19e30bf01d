/* An MPI library: its functions by name, and the numbers that differ between implementations. */
#ifndef MPI_LIBRARY_H
#define MPI_LIBRARY_H
#include <stdbool.h>
#include "acomm_mpi.h"

/* MPI_Comm and its like: a pointer, or an int in the low half of one, which the calling conventions of 64-bit Linux pass
 * alike. Where the library writes a handle, only `handle_bytes` of it are written. */
typedef uintptr_t mpi_handle;

/* required, name, parameters; all return MPI's int code */
#define MPI_FUNCTIONS(X)                                                                                                       \
    X(true, Init_thread, (int *argc, char ***argv, int required, int *provided))                                               \
    X(true, Initialized, (int *flag))                                                                                          \
    X(true, Finalized, (int *flag))                                                                                            \
    X(true, Finalize, (void))                                                                                                  \
    X(true, Query_thread, (int *provided))                                                                                     \
    X(true, Get_library_version, (char *version, int *length))                                                                 \
    X(true, Get_version, (int *version, int *subversion))                                                                      \
    X(true, Comm_rank, (mpi_handle comm, int *rank))                                                                           \
    X(true, Comm_size, (mpi_handle comm, int *size))                                                                           \
    X(true, Comm_idup, (mpi_handle comm, void *duplicate, void *request))                                                      \
    X(true, Comm_set_errhandler, (mpi_handle comm, mpi_handle handler))                                                        \
    X(true, Comm_free, (void *comm))                                                                                           \
    X(true, Isend, (const void *in, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request))            \
    X(true, Issend, (const void *in, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request))           \
    X(true, Irecv, (void *out, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request))                 \
    X(true, Ibarrier, (mpi_handle comm, void *request))                                                                        \
    X(true, Ireduce_scatter, (const void *in, void *out, const int *counts, mpi_handle type, mpi_handle op, mpi_handle comm,   \
                              void *request))                                                                                  \
    X(true, Iallgatherv, (const void *in, int gives, mpi_handle type, void *out, const int *gets, const int *places,           \
                          mpi_handle received, mpi_handle comm, void *request))                                                \
    X(true, Ialltoallv, (const void *in, const int *gives, const int *from, mpi_handle type, void *out, const int *gets,       \
                         const int *places, mpi_handle received, mpi_handle comm, void *request))                              \
    X(true, Comm_group, (mpi_handle comm, void *group))                                                                        \
    X(true, Group_incl, (mpi_handle group, int count, const int *ranks, void *made))                                           \
    X(true, Group_free, (void *group))                                                                                         \
    X(true, Comm_create_group, (mpi_handle comm, mpi_handle group, int tag, void *made))                                       \
    X(true, Type_contiguous, (int count, mpi_handle type, void *made))                                                         \
    X(true, Type_commit, (void *type))                                                                                         \
    X(true, Op_create, (void (*combine)(void *in, void *inout, int *count, void *type), int commutes, void *made))             \
    X(true, Test, (void *request, int *flag, void *status))                                                                    \
    X(true, Cancel, (void *request))                                                                                           \
    X(true, Comm_create_keyval, (int (*copy)(mpi_handle, int, void *, void *, void *, int *),                                  \
                                 int (*leave)(mpi_handle, int, void *, void *), int *key, void *extra))                        \
    X(true, Comm_set_attr, (mpi_handle comm, int key, void *value))                                                            \
    X(true, Error_class, (int code, int *class))                                                                               \
    X(true, Error_string, (int code, char *text, int *length))
/* Collectives of even blocks, blocking and nonblocking, which has one parameter more: kind, their names, parameters, arguments. */
#define MPI_MOVED const void *, int, mpi_handle, void *, int, mpi_handle
#define MPI_REDUCED const void *, void *, int, mpi_handle, mpi_handle
#define MPI_BARE(...) __VA_ARGS__
#define MPI_COLLECTIVES(X)                                                                                                     \
    X(ALL_REDUCE, Allreduce, Iallreduce, (MPI_REDUCED, mpi_handle), (in, out, n, type, with, comm))                            \
    X(REDUCE, Reduce, Ireduce, (MPI_REDUCED, int, mpi_handle), (in, out, n, type, with, root, comm))                           \
    X(SCAN, Scan, Iscan, (MPI_REDUCED, mpi_handle), (in, out, n, type, with, comm))                                            \
    X(EXSCAN, Exscan, Iexscan, (MPI_REDUCED, mpi_handle), (in, out, n, type, with, comm))                                      \
    X(REDUCE_SCATTER, Reduce_scatter_block, Ireduce_scatter_block, (MPI_REDUCED, mpi_handle), (in, out, n, type, with, comm))  \
    X(BROADCAST, Bcast, Ibcast, (void *, int, mpi_handle, int, mpi_handle), (out, n, type, root, comm))                        \
    X(ALL_GATHER, Allgather, Iallgather, (MPI_MOVED, mpi_handle), (in, n, type, out, n, type, comm))                           \
    X(GATHER, Gather, Igather, (MPI_MOVED, int, mpi_handle), (in, n, type, out, n, type, root, comm))                          \
    X(SCATTER, Scatter, Iscatter, (MPI_MOVED, int, mpi_handle), (in, n, type, out, n, type, root, comm))                       \
    X(ALL_TO_ALL, Alltoall, Ialltoall, (MPI_MOVED, mpi_handle), (in, n, type, out, n, type, comm))
/* Their names begin with MPIX_: ULFM, and whether arrays on GPUs are taken (to be asked between MPI_Init and MPI_Finalize). */
#define MPIX_FUNCTIONS(X)                                                                                                      \
    X(false, Comm_get_failed, (mpi_handle comm, void *group))                                                                  \
    X(false, Comm_shrink, (mpi_handle comm, void *made))                                                                       \
    X(false, GPU_query_support, (int kind, int *flag))                                                                         \
    X(false, Query_cuda_support, (void))

struct mpi_family {
    const char *name;
    size_t handle_bytes;
    int multiple;                   /* MPI_THREAD_MULTIPLE */
    int failed;                     /* ULFM's error classes: failed, failed_pending and revoked, in a row */
    void *ignore, *in_place;        /* MPI_STATUS_IGNORE, MPI_IN_PLACE */
};

struct acomm_mpi {
    struct mpi_family family;
    mpi_handle world, self, byte, errors_return;
    mpi_handle types[ACOMM_DTYPES]; /* MPI's own, 0 where it has none, or one that takes another arithmetic */
    mpi_handle ops[ACOMM_REDOPS];
#define MPI_MEMBER(required, name, parameters) int (*name) parameters;
    MPI_FUNCTIONS(MPI_MEMBER)
    MPIX_FUNCTIONS(MPI_MEMBER)
#undef MPI_MEMBER
#define MPI_MEMBER(kind, name, other, parameters, arguments) int (*name) parameters, (*other)(MPI_BARE parameters, void *request);
    MPI_COLLECTIVES(MPI_MEMBER)
#undef MPI_MEMBER
};

/* The library of this process. */
acomm_mpi *mpi_loaded(void);
/* The handle that the library has written there. */
mpi_handle mpi_read(const acomm_mpi *mpi, const void *place);
/* The library's error text for a code, 192 bytes at most. */
void mpi_words(const acomm_mpi *mpi, int code, char *text);
/* Whether the code means a process that has died, or a communicator revoked for that. */
bool mpi_tells_of_death(const acomm_mpi *mpi, int code);
/* Ours for it, ACOMM_LOST or ACOMM_LIBRARY, and the words. */
int mpi_code_of(const acomm_mpi *mpi, int code, char *text);
#endif
