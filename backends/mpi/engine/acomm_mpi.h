/* Public header of the MPI backend's C half, beside acomm.h, whose types it uses. It is compiled without any mpi.h and linked
 * with no MPI: the library is opened at run time, and what differs between implementations stands in one table (mpi_library.c).
 *
 * Collectives of a group run in the order of the calls: in the caller's thread where nothing is before them, otherwise in
 * the group's worker. Codes are acomm.h's. A failure poisons the group here and, by a message, on its peers. */
#ifndef ACOMM_MPI_H
#define ACOMM_MPI_H
#include "acomm.h"

typedef struct acomm_mpi acomm_mpi; /* a loaded library; never unloaded */

typedef struct acomm_mpi_facts {
    char version[256];    /* MPI_Get_library_version, first line */
    const char *family;   /* which ABI: "Open MPI", "MPICH" or "MPI ABI" */
    int32_t standard[2];  /* MPI_Get_version */
    int32_t initialized, finalized;
    int32_t threads;      /* MPI_Query_thread as 0 single to 3 multiple; -1 before initialisation */
    int32_t fault_tolerant; /* it has ULFM's functions */
    int32_t died;         /* a process of the world has: MPI_Finalize may never end */
} acomm_mpi_facts;

/* Opens the library at `path` (NULL: symbols of the process). 0, or ACOMM_LIBRARY and why in `text` (256 bytes). */
int acomm_mpi_load(const char *path, acomm_mpi **out, char *text);
void acomm_mpi_ask(acomm_mpi *mpi, acomm_mpi_facts *out);
/* Once begun: 1 where it says that it takes memory of CUDA devices. */
int acomm_mpi_says_cuda(acomm_mpi *mpi);
/* MPI_Init_thread with MPI_THREAD_MULTIPLE, unless somebody has initialised it. Blocks, and cannot be given up: the launcher brings
 * the processes together. Called once. */
int acomm_mpi_begin(acomm_mpi *mpi, int initialized, char *text);
/* Groups, which are to be closed first, let go of MPI; `finalizes`: then MPI_Finalize. */
void acomm_mpi_end(acomm_mpi *mpi, int finalizes);
uintptr_t acomm_mpi_world(acomm_mpi *mpi);
/* Handles of this implementation are ints (4) or pointers (8). */
int acomm_mpi_handle_bytes(acomm_mpi *mpi);
/* Rank and size in a communicator. */
int acomm_mpi_place(acomm_mpi *mpi, uintptr_t comm, int32_t *rank, int32_t *size);

typedef struct acomm_mpi_options {
    uint64_t id;       /* equal on all ranks */
    int64_t timeout;   /* ns, the group's default, and for opening */
    int32_t check;     /* 1: compare headers before every collective */
    int32_t crowded;   /* 1: not every rank has a core of its own */
} acomm_mpi_options;
/* A group of all ranks of a communicator, which is duplicated. *out is NULL and *failure filled when it fails. */
int acomm_mpi_open(acomm_mpi *mpi, uintptr_t comm, const acomm_mpi_options *options, acomm_group **out,
                   acomm_failure *failure);
/* gone: 1 for each rank that has died or left, 0 for the others. Where one has died all that live call it, and agree. 0, a code, or
 * an error of the library. */
int acomm_mpi_gone(acomm_group *group, uint8_t *gone);
/* A group of these ranks of a group, who alone call it; blocks until all have. */
int acomm_mpi_part(acomm_group *group, const int32_t *members, int size, const acomm_mpi_options *options,
                   acomm_group **out, acomm_failure *failure);
/* As in the options, once more is known of the ranks. Before any other thread uses the group. */
void acomm_mpi_settle(acomm_group *group, int crowded, int check);
/* Bytes of memory that so many ranks of one host share, to exchange records there; 0: they are too many. */
uint64_t acomm_mpi_shared_bytes(int size);
/* Maps it. 0: it cannot be; 2: and the memory of every rank's process can be read; else 1. processes: each rank's. */
int acomm_mpi_share(acomm_group *group, int descriptor, const int32_t *processes);
/* From the next collective on it is used: all ranks could map it. reads: 1 where all can read each other's memory. */
void acomm_mpi_share_from_now(acomm_group *group, int reads);
int acomm_mpi_rank(acomm_group *group);
int acomm_mpi_size(acomm_group *group);

/* Where the arrays are on a device: the function by which a thread makes it its own (cudaSetDevice). What was to read or write them
 * has ended; the library moves them, nobody here touches them. Not for reductions. */
typedef struct acomm_mpi_device {
    int (*enter)(int device);
    int32_t number;
} acomm_mpi_device;
/* As acomm_run() and acomm_start(). device: NULL: the host. */
int acomm_mpi_run(acomm_group *group, acomm_call *call, const acomm_mpi_device *device);
int acomm_mpi_start(acomm_group *group, const acomm_call *call, const acomm_mpi_device *device, acomm_op **out);
/* As acomm_probe(). */
int acomm_mpi_probe(acomm_group *group, int source, int64_t tag, int64_t timeout, acomm_message *out);
const acomm_entries *acomm_mpi_lend(void);

/* A rank that is known to have left or died, or -1; *text: why. */
int acomm_mpi_missing(acomm_group *group, char *text);
int acomm_mpi_failure(acomm_group *group, acomm_failure *out);
void acomm_mpi_abort(acomm_group *group, const char *text);
/* Ends all operations with ACOMM_CLOSED, waits until no thread is in one, and tells the peers; `why` and what it returns as
 * acomm_group_stop(). */
int acomm_mpi_stop(acomm_group *group, const char *why);
/* Frees it, once the peers have said goodbye too: the communicator may still get messages of theirs. Stop comes first. */
void acomm_mpi_close(acomm_group *group);
/* 1 where MPI may still use memory of operations that have failed: it cannot take requests back. */
int acomm_mpi_stuck(acomm_group *group);
#endif
