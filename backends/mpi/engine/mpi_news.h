/* What ranks tell each other beside messages: a failure, goodbye, what they call and how far they have come. Heads as those of
 * messages, on the same tag. All of it with the lock of the group's messages (mpi_messages.c). */
#ifndef MPI_NEWS_H
#define MPI_NEWS_H
#include "mpi_flights.h"

/* GOODBYE_CUT: with operations that not all have taken part in. The last three in lanes only (mpi_lanes.h): what the receiver is to
 * read or to ask for; it asks; it has read, or wants nothing. */
enum { MESSAGE, GOODBYE, FAILURE, CALLED, ASKED, PASSED, GOODBYE_CUT, OFFERED, CLEAR, DONE };
#define HEAD_DTYPES 0xfffff
_Static_assert(ACOMM_OPAQUE_END <= HEAD_DTYPES + 1, "a head holds every dtype");
struct head {            /* no longer than it has to be: it goes with every short message */
    uint64_t group;      /* id */
    uint64_t count;      /* elements; otherwise collectives that the rank has finished */
    int64_t tag;
    int64_t source : 24;
    uint64_t ticket : 16; /* tag of the contents, or 0: they follow the head */
    uint64_t dtype : 20, what : 4;
};
struct arrival {
    struct arrival *next;
    struct head head;
    const char *contents;    /* NULL: not all of them are here yet */
    bool stays;              /* they lie in the longer ring of a lane, or will (mpi_lanes.h), */
    unsigned cell;           /* or in one of its cells */
    uint64_t at, id;         /* there; or of an offer */
};

struct mpi_messages {
    pthread_mutex_t lock;
    char *arriving;                  /* the receive from any source writes here */
    uint64_t request;                /* its handle, in as many bytes as those have */
    bool listens;                    /* it is posted: again only when something more is awaited */
    struct mpi_op *posted, **posted_end;
    struct arrival *unexpected, **unexpected_end;
    struct mpi_flights flights;
    int *tickets;                    /* next tag of contents for each rank */
    uint64_t *left;                  /* of each rank: 0 it is there, else 1 + collectives before its goodbye */
    int gone;                        /* ranks that have left */
    bool littered;                   /* by one of them, with something that this rank may not have received */
    uint64_t *passed;                /* the last collective that each rank is known to have finished */
    uint64_t asked, said;            /* the one that peers ask for, or 0; the last that they have been told */
    struct mpi_lanes *lanes;         /* by which messages go, or NULL: by MPI */
    _Atomic bool silent;             /* MPI has ended: nothing here may call it */
};

/* What came, other than a message. */
void news_hear(struct acomm_group *g, const struct head *head, const void *contents);
/* Tells all peers of a failure. */
void news_spread(struct acomm_group *g, const acomm_failure *failure);
/* Tells those who ask once this rank has come so far. */
void news_answer(struct acomm_group *g);
#endif
