/* A stand-in for an MPI library that was built for CUDA: the one that it is linked with, whose messages take memory of the stand-in
 * for CUDA's devices too. Nothing but messages does.
 *
 * STANDIN_MPI=no: it says that it does not. crash, wrong, stuck: it says that it does, and then reads the memory as if it were
 * the host's, or sends other bytes, or never comes back. fails: long messages are errors, wherever they lie. held: the main thread's next look
 * whether one has come waits in between until another process has opened the fifo STANDIN_MPI_GATE to read, and then to write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

static int told(const char *how)
{
    const char *wanted = getenv("STANDIN_MPI");
    return wanted && !strcmp(wanted, how);
}

static void *of(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? dlsym(handle, name) : NULL;
}

/* Where the bytes of a device lie; what is not a device's stays as it is. */
static void *reached(const void *address, int bytes)
{
    const char *cudart = getenv("ARRAYCOMM_CUDART_LIBRARY");
    void *(*reach)(uintptr_t, size_t) = cudart ? (void *(*)(uintptr_t, size_t))of(cudart, "standin_reach") : NULL;
    void *found = reach && bytes ? reach((uintptr_t)address, (size_t)bytes) : NULL;
    if (!found || found == address || told("crash"))
        return (void *)address;
    while (told("stuck"))
        pause();
    return found;
}

typedef int send_function(const void *, int, uintptr_t, int, int, uintptr_t, void *);
typedef int receive_function(void *, int, uintptr_t, int, int, uintptr_t, void *);

PUBLIC int MPI_Isend(const void *data, int bytes, uintptr_t type, int peer, int tag, uintptr_t comm, void *request)
{
    char *from = reached(data, bytes);
    if (bytes > 100000 && told("fails"))
        return 16; /* an error class of every MPI */
    if (from != data && told("wrong"))
        from = memset(malloc((size_t)bytes), 1, (size_t)bytes);
    return ((send_function *)of(REAL, "MPI_Isend"))(from, bytes, type, peer, tag, comm, request);
}

PUBLIC int MPI_Irecv(void *data, int bytes, uintptr_t type, int peer, int tag, uintptr_t comm, void *request)
{
    return ((receive_function *)of(REAL, "MPI_Irecv"))(reached(data, bytes), bytes, type, peer, tag, comm, request);
}

PUBLIC int MPI_Test(void *request, int *flag, uintptr_t status)
{
    if (told("held") && gettid() == getpid()) {
        unsetenv("STANDIN_MPI");
        close(open(getenv("STANDIN_MPI_GATE"), O_WRONLY));
        close(open(getenv("STANDIN_MPI_GATE"), O_RDONLY));
    }
    return ((int (*)(void *, int *, uintptr_t))of(REAL, "MPI_Test"))(request, flag, status);
}

PUBLIC int MPIX_Query_cuda_support(void)
{
    return !told("no");
}

PUBLIC int MPIX_GPU_query_support(int kind, int *flag)
{
    *flag = kind == 0 && !told("no");
    return 0;
}
