/* Requests of messages under way. A flight is a set of them that ends as one, of one operation or of nobody's. All of it with the
 * lock of the group's messages (mpi_messages.c). */
#ifndef MPI_FLIGHTS_H
#define MPI_FLIGHTS_H
#include "mpi_group.h"

struct mpi_flight {
    struct mpi_flight *next;
    struct mpi_op *op;   /* ends with it; NULL: nobody's */
    char *memory;        /* goes with it */
    size_t room;         /* for requests and memory */
    int number, ended;
    char requests[];
};
struct mpi_flights {
    struct mpi_flight *first;
    struct mpi_flight *spare; /* the one that ended last: a short message allocates nothing */
};

/* With room for so many requests and bytes. NULL: no memory. */
struct mpi_flight *flight_new(struct acomm_group *g, struct mpi_op *op, int requests, size_t bytes);
/* Requests that a message's contents take. */
int flight_pieces(const acomm_mpi *mpi, uint64_t bytes);
/* Begins to move bytes to or from a rank. 0 or an error of the library. */
int flight_move(struct acomm_group *g, struct mpi_flight *f, char *data, uint64_t bytes, int peer, int tag, bool takes);
/* Ends it, and its operation, if its requests have ended; it is gone then. 0 or an error of the library. */
int flight_test(struct acomm_group *g, struct mpi_flight *f);
/* All of them. */
int flights_test(struct acomm_group *g);
/* The operation goes before its flight, if it has one: MPI may still use its memory. */
void flights_leave(struct acomm_group *g, const struct mpi_op *op);
/* Ends all operations that have one. */
void flights_end(struct acomm_group *g, int code);
void flights_free(struct acomm_group *g);
#endif
