/* The devices of a communicator that XLA is about to make. */
#ifndef MPI_CLIQUE_H
#define MPI_CLIQUE_H
#include <stdint.h>

/* Called in MPI_Comm_split(), whose return address is `caller`: the global ids of the clique's devices into `devices`, which has
 * room for so many; how many they are. 0: not found. The first is `color`, and there are more than `key`. */
int mpi_clique_find(int color, int key, const void *caller, int32_t *devices, int room);
#endif
