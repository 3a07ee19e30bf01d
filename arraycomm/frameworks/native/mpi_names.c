/* Symbols that MPItrampoline requires in the library besides jaxlib's calls: the version of its ABI, MPI's constants, and
 * functions that return an error because they are not supported. */
#include <stdio.h>

#include "acomm_xla.h"
#include "mpi_names.h"

MPI_EXPORTED int mpiabi_version_major = 2, mpiabi_version_minor = 9, mpiabi_version_patch = 0;
MPI_EXPORTED int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;
MPI_EXPORTED int mpiabi_loaded_version_major, mpiabi_loaded_version_minor, mpiabi_loaded_version_patch;
static int used;

int acomm_mpi_used(void) { return used; }

/* It calls this when it has found the rest. */
MPI_EXPORTED void mpiwrapper_export_fortran_constants_(void) { used = 1; }

/* It reads each as an int or as a pointer. */
#define MPI_CONSTANT(name) MPI_EXPORTED const intptr_t MPIABI_##name = MPI_VALUE_##name;
MPI_CONSTANTS(MPI_CONSTANT)
MPI_EXPORTED const intptr_t MPIABI_SUCCESS = 0;

__attribute__((noinline)) static int absent(const char *name)
{
    char text[300];
    snprintf(text, sizeof text, "arraycomm has no MPI_%s: it carries the collectives of jaxlib's that are known (docs/guide/jax.md), "
             "and this jaxlib calls another function; say so to arraycomm, and use jax_cpu_collectives_implementation=gloo until then", name);
    fprintf(stderr, "%s\n", text); /* not every caller looks at the code */
    return mpi_failed(text);
}

#define MPI_FUNCTION(name) MPI_EXPORTED int MPIABI_##name(void) { return absent(#name); }
MPI_ABSENT(MPI_FUNCTION)
MPI_EXPORTED int MPIXABI_Query_cuda_support(void) { return 0; }
MPI_EXPORTED int MPIXABI_Query_hip_support(void) { return 0; }
MPI_EXPORTED int MPIXABI_Query_ze_support(void) { return 0; }
