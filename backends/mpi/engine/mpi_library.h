/* An MPI library: its functions by name, and what the implementations number differently. */
#ifndef MPI_LIBRARY_H
#define MPI_LIBRARY_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "acomm_mpi.h"

/* MPI_Comm and its like: a pointer, or an int in the low half of one, which the calling conventions of 64-bit Linux pass
 * alike. Where the library writes a handle, only `handle_bytes` of it are written. */
typedef uintptr_t mpi_handle;

/* required, name, parameters; all return MPI's int code */
#define MPI_FUNCTIONS(X)                                                                                             \
    X(true, Init_thread, (int *argc, char ***argv, int required, int *provided))                                     \
    X(true, Initialized, (int *flag))                                                                                \
    X(true, Finalized, (int *flag))                                                                                  \
    X(true, Finalize, (void))                                                                                        \
    X(true, Query_thread, (int *provided))                                                                           \
    X(true, Get_library_version, (char *version, int *length))                                                       \
    X(true, Get_version, (int *version, int *subversion))                                                            \
    X(true, Comm_rank, (mpi_handle comm, int *rank))                                                                 \
    X(true, Comm_size, (mpi_handle comm, int *size))                                                                 \
    X(true, Comm_idup, (mpi_handle comm, void *duplicate, void *request))                                            \
    X(true, Comm_group, (mpi_handle comm, void *group))                                                              \
    X(true, Comm_create_group, (mpi_handle comm, mpi_handle group, int tag, void *made))                             \
    X(true, Comm_set_errhandler, (mpi_handle comm, mpi_handle handler))                                              \
    X(true, Comm_free, (void *comm))                                                                                 \
    X(true, Group_incl, (mpi_handle group, int n, const int *ranks, void *made))                                     \
    X(true, Group_translate_ranks, (mpi_handle from, int n, const int *ranks, mpi_handle to, int *found))            \
    X(true, Group_size, (mpi_handle group, int *size))                                                               \
    X(true, Group_free, (void *group))                                                                               \
    X(true, Isend, (const void *in, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request))  \
    X(true, Irecv, (void *out, int count, mpi_handle type, int peer, int tag, mpi_handle comm, void *request))       \
    X(true, Test, (void *request, int *flag, void *status))                                                          \
    X(true, Cancel, (void *request))                                                                                 \
    X(true, Comm_create_keyval, (int (*copy)(mpi_handle, int, void *, void *, void *, int *),                        \
                                 int (*leave)(mpi_handle, int, void *, void *), int *key, void *extra))             \
    X(true, Comm_set_attr, (mpi_handle comm, int key, void *value))                                                  \
    X(true, Error_class, (int code, int *class))                                                                     \
    X(true, Error_string, (int code, char *text, int *length))                                                       \
    X(true, Ibcast, (void *data, int count, mpi_handle type, int root, mpi_handle comm, void *request))              \
    X(false, Abi_get_version, (int *version, int *subversion))                                                       \
    X(false, Comm_get_info, (mpi_handle comm, void *info))                                                           \
    X(false, Info_get_string, (mpi_handle info, const char *key, int *room, char *value, int *flag))                 \
    X(false, Info_free, (void *info))
/* Their names begin with MPIX_: ULFM; whether memory of CUDA devices is taken, by Open MPI and by MPICH (kind 0: CUDA). */
#define MPIX_FUNCTIONS(X)                                                                                            \
    X(false, Comm_get_failed, (mpi_handle comm, void *group))                                                        \
    X(false, Comm_shrink, (mpi_handle comm, void *made))                                                             \
    X(false, Query_cuda_support, (void))                                                                             \
    X(false, GPU_query_support, (int kind, int *flag))

struct acomm_mpi {
    const char *family;
    size_t handle_bytes;
    mpi_handle world, self, byte, no_request, errors_return;
    uint64_t short_bytes;           /* contents up to that travel with the headers, */
    uint64_t short_moved;           /* of operations that only move them, up to that */
    uint64_t short_message;         /* a message's contents up to that come with its head */
    uint64_t cut, piece;            /* contents up to `cut` go in messages of `piece` bytes; 0: in one */
    uint64_t slice;                 /* of a long reduction, by one rank and round */
    uint64_t first;                 /* contents that come in a record's own message, at most */
    bool yields;                    /* at every look, where there are more ranks than cores */
    int any_source, multiple;       /* MPI_ANY_SOURCE, MPI_THREAD_MULTIPLE */
    int failed, failed_pending, revoked; /* ULFM's error classes */
    void *ignore;                   /* MPI_STATUS_IGNORE */
    _Atomic bool died;              /* a process of the world has */
#define MPI_MEMBER(required, name, parameters) int (*name) parameters;
    MPI_FUNCTIONS(MPI_MEMBER)
    MPIX_FUNCTIONS(MPI_MEMBER)
#undef MPI_MEMBER
};

/* Of the messages that so many bytes of contents go in. */
static inline uint64_t mpi_piece(const acomm_mpi *mpi, uint64_t bytes)
{
    return bytes && bytes <= mpi->cut ? mpi->piece : (uint64_t)1 << 30; /* MPI's counts are ints */
}
/* The handle that the library has written there. */
mpi_handle mpi_read(const acomm_mpi *mpi, const void *place);
/* The library's words for a code, 192 bytes at most. */
void mpi_words(const acomm_mpi *mpi, int code, char *text);
/* Whether the code tells of a process that has died, or of a communicator revoked for that. */
bool mpi_tells_of_death(const acomm_mpi *mpi, int code);
#endif
