/* A stand-in for an MPI library: the one that it is linked with, where sending anything long is an error if STANDIN_MPI=fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int send_function(const void *, int, uintptr_t, int, int, uintptr_t, void *);

__attribute__((visibility("default"))) int MPI_Isend(const void *data, int bytes, uintptr_t type, int peer, int tag, uintptr_t comm,
                                                     void *request)
{
    const char *wanted = getenv("STANDIN_MPI");
    if (bytes > 50000 && wanted && !strcmp(wanted, "fails"))
        return 16; /* an error class of every MPI */
    return ((send_function *)dlsym(dlopen(REAL, RTLD_LAZY | RTLD_NOLOAD), "MPI_Isend"))(data, bytes, type, peer, tag, comm, request);
}
