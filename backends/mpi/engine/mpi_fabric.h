/* The fabric: a communicator of a world's own, the links over it, and the progress of data without a waiter. */
#ifndef MPI_FABRIC_H
#define MPI_FABRIC_H
#include <pthread.h>
#include "link/link.h"
#include "mpi_library.h"

#define LINK_TAGS 16383       /* of links, from 1 on; as many more of messages: MPI_TAG_UB is 32767 at least */

struct link_mpi;
struct mpi_message;
struct mpi_fabric {
    struct acomm_fabric base;
    acomm_mpi *mpi;
    mpi_handle comm;
    int size;
    uint16_t *tags;              /* the last one of each target rank */
    struct link_mpi *links;      /* open ones, and closed ones whose last chunks are under way */
    struct mpi_message *receives; /* under way, also those of failed groups, */
    uint16_t received;           /* and the last one's tag */
    bool closed;
    struct mpi_fabric *next;
};

/* Around every call of MPI: its end waits for threads inside. False: it has ended, and no thread is inside. */
bool fabric_enter(void);
void fabric_leave(void);
/* Inside: from now on a transfer is under way that needs calls of MPI: the progress thread must poll. */
void fabric_wake(void);
/* Inside: from now on this context of CUDA's is current in all threads, because MPI may work on arrays on GPUs in any call. */
void fabric_use(uintptr_t context);
/* Calls acomm_mpi_end()'s first half when the program itself finalises MPI. A code of the library. */
int fabric_watch_end(acomm_mpi *mpi);

/* Adds it to the fabrics of the progress thread. 0 or a code. */
int fabric_begin(struct mpi_fabric *fabric);
/* Threads in blocking collectives. Some never return after a failure, and MPI_Finalize would free what they use. */
extern _Atomic int fabric_inside;

/* mpi_types.c */
struct mpi_type { mpi_handle type, op; int each; }; /* elements of MPI's for one of ours */
/* Inside: for partial results of a reduction. A code of MPI's. */
int mpi_type_of(acomm_mpi *mpi, int dtype, int redop, struct mpi_type *out);

/* mpi_collective.c: as acomm_fabric has them */
int mpi_collective(struct acomm_op *op);
void mpi_collective_leave(struct acomm_group *group);

/* mpi_message.c */
/* For elements of `width` bytes that are only moved. */
struct mpi_type mpi_type_moved(const acomm_mpi *mpi, size_t width);
/* As acomm_fabric has them. */
struct fabric_message *mpi_message_begin(struct acomm_op *op, int64_t *tag);
bool mpi_message_end(struct fabric_message *message);
/* Inside: cancels receives, before MPI ends. */
void mpi_message_cancel(const struct mpi_fabric *fabric);

/* link_mpi.c */
struct link *link_mpi_new(struct acomm_fabric *fabric, uint64_t group, int peer, int rank, bool outgoing);
struct link_mpi *link_mpi_next(const struct link_mpi *link);
enum link_state { LINK_IDLE, LINK_DRAINS, LINK_SENDS }; /* DRAINS: a closed one receives the rest, and drops it */
/* Inside: progresses transfers without a waiter. A closed link that is idle is freed. */
enum link_state link_mpi_look(struct link_mpi *link);
/* Inside: cancels receives, before MPI ends. */
void link_mpi_cancel(struct link_mpi *link);
#endif
