/* Messages between ranks, and the ranks' news of each other.
 *
 * Every message begins with a head on tag 0, for which there is one receive from any source: we match them ourselves,
 * by tags of 63 bits, and see dtype and length before anything is written. Short contents come with the head, long ones
 * follow by a tag of their own. News come the same way: a goodbye, a failure. */
#ifndef MPI_MESSAGES_H
#define MPI_MESSAGES_H
#include "mpi_group.h"

int messages_open(struct acomm_group *g);
/* Posts a send or a receive, and looks at what it waits for so many times. 0, or the code that it is refused with. */
int messages_post(struct mpi_op *op, unsigned times);
/* Ends an operation that its caller gives up. */
void messages_forget(struct mpi_op *op, int code);
/* A turn of progress, for whoever waits. 0 or the group's code. */
int messages_progress(struct acomm_group *g);
/* 0 and a message that has come and that this receive would take; 1: none; or the group's code. */
int messages_find(struct acomm_group *g, const struct mpi_op *op, acomm_message *out);
/* One by the thread that looks where nobody waits: whether there is more to do at once. */
bool messages_keep(struct acomm_group *g);
/* Looks at what a message waits for so many times, and then, where it has not ended, at `all` else. */
int messages_await(struct mpi_op *op, unsigned times, bool all);
/* The same from within a collective, which fails when a rank that it needs has left. */
int messages_news(struct mpi_op *op);
struct mpi_flights *messages_flights(struct acomm_group *g);
/* Whether requests are under way; or any message is. */
bool messages_flying(struct acomm_group *g);
bool messages_under_way(struct acomm_group *g);
/* A message has come, with so many bytes of contents that have to be copied where nobody receives it yet. With the lock, as the next one. */
struct arrival;
int messages_deliver(struct acomm_group *g, const struct arrival *came, size_t bytes);
/* Contents that lie here go to the device that they are for. */
int messages_land(struct acomm_group *g, struct mpi_op *op, const void *contents);
/* The next tag of contents to or from a rank. */
int messages_ticket(struct acomm_group *g, int peer);
/* Tells all peers: of a failure, or goodbye; `cut`: what this rank sent for an operation may never be received. */
void messages_spread(struct acomm_group *g, const acomm_failure *failure);
void messages_goodbye(struct acomm_group *g, bool cut);
/* Tells all peers what this rank calls (mpi_ahead.c); `asks`: they are to tell when they have finished that collective. */
void messages_call(struct acomm_group *g, const struct mpi_record *mine, bool asks);
/* A rank that is not known to have finished that collective, or -1; best one that has left: then *gone. */
int messages_behind(struct acomm_group *g, uint64_t sequence, bool *gone);
/* A rank that has said goodbye or is known to be dead, or -1. */
int messages_missing(struct acomm_group *g);
/* 1 for each of those, 0 for the others. */
void messages_left(struct acomm_group *g, uint8_t *left);
/* Ends every operation with the group's failure. */
void messages_end(struct acomm_group *g);
/* Whether all peers have said goodbye, so that no message can come any more. Where one may lie here that nobody has received, the group
 * counts as failed then. */
bool messages_over(struct acomm_group *g);
/* MPI ends: it is not called any more, and the group stays to be asked and closed. */
void messages_silence(struct acomm_group *g);
void messages_free(struct acomm_group *g);
#endif
