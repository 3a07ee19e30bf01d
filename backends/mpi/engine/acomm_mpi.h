/* Public header of the MPI backend's C half, beside acomm.h, whose types it uses: a library that is opened at run time, and the
 * fabric that carries the engine's links. It is compiled without any mpi.h and linked with no MPI; the differences between
 * implementations are in one table (mpi_library.c). */
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
    int32_t gpus;         /* whether it takes arrays on CUDA devices; -1 before initialisation */
} acomm_mpi_facts;

/* Opens the library at `path` (NULL: symbols of the process). 0, or ACOMM_LIBRARY and why in `text` (256 bytes). */
int acomm_mpi_load(const char *path, acomm_mpi **out, char *text);
void acomm_mpi_ask(acomm_mpi *mpi, acomm_mpi_facts *out);
/* MPI_Init_thread with MPI_THREAD_MULTIPLE, unless MPI is initialised already. Blocks, and cannot be cancelled: the launcher
 * brings the processes together. Called once. */
int acomm_mpi_begin(acomm_mpi *mpi, int initialized, char *text);
/* No link calls MPI from here on: sent data is flushed first, within a second. `finalizes`: then MPI_Finalize. */
void acomm_mpi_end(acomm_mpi *mpi, int finalizes);
uintptr_t acomm_mpi_world(acomm_mpi *mpi);
/* cudaSetDevice(), cuCtxPushCurrent() and cuCtxPopCurrent(), for arrays on GPUs (ACOMM_ON_GPU). Set before the first one. */
extern int (*acomm_mpi_use_device)(int device);
extern int (*acomm_mpi_push)(uintptr_t context), (*acomm_mpi_pop)(uintptr_t *context);
/* Handles of this implementation are ints (4) or pointers (8). */
int acomm_mpi_handle_bytes(acomm_mpi *mpi);
/* Rank and size in a communicator. */
int acomm_mpi_place(acomm_mpi *mpi, uintptr_t comm, int32_t *rank, int32_t *size);

/* A duplicate of the communicator, which all its ranks make: 0, or a code, and in `text` (192 bytes) why. */
int acomm_fabric_open(acomm_mpi *mpi, uintptr_t comm, int64_t timeout, acomm_fabric **out, char *text);
/* Every rank's `bytes`, in rank order. As acomm_fabric_open(). */
int acomm_fabric_gather(acomm_fabric *fabric, const void *mine, void *all, int bytes, int64_t timeout, char *text);
/* Called after all groups over it are closed. Their last messages are still sent. */
void acomm_fabric_close(acomm_fabric *fabric);
#endif
