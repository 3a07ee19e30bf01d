/* A stand-in for an MPI library: the one that it is linked with, where sending anything long is an error if STANDIN_MPI=fails, and
 * whose messages and blocking collectives take arrays on the devices of the stand-in for CUDA's runtime, as those of a GPU-aware
 * library do: by the address under which they can be reached (cudart.c). Whoever else gives such an array to MPI dies of it. STANDIN_MPI=gpus: it
 * says that it takes them. STANDIN_MPI=dies: it ends the process with the first one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

static void *real(const char *name)
{
    return dlsym(dlopen(REAL, RTLD_LAZY | RTLD_NOLOAD), name);
}

static int told(const char *what)
{
    const char *wanted = getenv("STANDIN_MPI");
    return wanted && !strcmp(wanted, what);
}

/* ---- arrays on devices ---- */

static _Atomic int taken; /* arrays on devices */

/* How many the library has been given since the start. */
PUBLIC int standin_mpi_taken(void)
{
    return taken;
}

/* An error of the real libraries, which end the process for it. */
static int whether_taken(void)
{
    int (*asked[])(int *) = {(int (*)(int *))real("MPI_Initialized"), (int (*)(int *))real("MPI_Finalized")}, begun = 0, over = 1;
    asked[0](&begun);
    asked[1](&over);
    if (!begun || over)
        abort();
    return told("gpus");
}

#ifdef AS_MPICH
PUBLIC int MPIX_GPU_query_support(int kind, int *flag)
{
    *flag = kind == 0 && whether_taken();
    return 0;
}
#else
PUBLIC int MPIX_Query_cuda_support(void)
{
    return whether_taken();
}
#endif

struct attributes { int type, device; uintptr_t device_pointer, host_pointer; };

/* An array as the real library can use it. Its device must be the thread's current one. */
static void *reach(const void *array)
{
    const char *path = getenv("ARRAYCOMM_CUDART_LIBRARY");
    void *cuda = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL, *same = (void *)(uintptr_t)array;
    struct attributes about;
    int current;
    if (!cuda || !array || same == (void *)1 || same == (void *)UINTPTR_MAX) /* MPI_IN_PLACE */
        return same;
    void *reached = ((void *(*)(uintptr_t, size_t))dlsym(cuda, "standin_reach"))((uintptr_t)array, 1);
    if (!reached || reached == same)
        return same;
    ((int (*)(struct attributes *, uintptr_t))dlsym(cuda, "cudaPointerGetAttributes"))(&about, (uintptr_t)array);
    taken++;
    if (told("dies"))
        kill(getpid(), SIGKILL);
    ((int (*)(int *))dlsym(cuda, "cudaGetDevice"))(&current);
    if (current != about.device)
        abort();
    return reached;
}

/* ---- messages ---- */

typedef int message_function(const void *, int, uintptr_t, int, int, uintptr_t, void *);

PUBLIC int MPI_Isend(const void *data, int count, uintptr_t type, int peer, int tag, uintptr_t comm, void *request)
{
    if (count > 50000 && told("fails"))
        return 16; /* an error class of every MPI */
    return ((message_function *)real("MPI_Isend"))(reach(data), count, type, peer, tag, comm, request);
}

PUBLIC int MPI_Irecv(void *data, int count, uintptr_t type, int peer, int tag, uintptr_t comm, void *request)
{
    return ((message_function *)real("MPI_Irecv"))(reach(data), count, type, peer, tag, comm, request);
}

/* ---- collectives ---- */

#define REDUCED const void *in, void *out, int n, uintptr_t type, uintptr_t op
#define MOVED const void *in, int gives, uintptr_t type, void *out, int gets, uintptr_t received
#define TAKES(name, parameters, ...)                                                                                           \
    PUBLIC int name parameters                                                                                                 \
    {                                                                                                                          \
        return ((int (*) parameters)real(#name))(__VA_ARGS__);                                                                 \
    }

TAKES(MPI_Bcast, (void *out, int n, uintptr_t type, int root, uintptr_t comm), reach(out), n, type, root, comm)
TAKES(MPI_Allreduce, (REDUCED, uintptr_t comm), reach(in), reach(out), n, type, op, comm)
TAKES(MPI_Reduce, (REDUCED, int root, uintptr_t comm), reach(in), reach(out), n, type, op, root, comm)
TAKES(MPI_Scan, (REDUCED, uintptr_t comm), reach(in), reach(out), n, type, op, comm)
TAKES(MPI_Reduce_scatter_block, (REDUCED, uintptr_t comm), reach(in), reach(out), n, type, op, comm)
TAKES(MPI_Allgather, (MOVED, uintptr_t comm), reach(in), gives, type, reach(out), gets, received, comm)
TAKES(MPI_Gather, (MOVED, int root, uintptr_t comm), reach(in), gives, type, reach(out), gets, received, root, comm)
TAKES(MPI_Scatter, (MOVED, int root, uintptr_t comm), reach(in), gives, type, reach(out), gets, received, root, comm)
TAKES(MPI_Alltoall, (MOVED, uintptr_t comm), reach(in), gives, type, reach(out), gets, received, comm)
