/* The node's insides, shared by the files node*.c.
 *
 * One lock guards everything below. It is never held while a group is called, because a group calls the node with
 * its own lock held. Only the node's thread reads from links, judges peers and frees links; other threads append to
 * links, queue requests and wake the thread. */
#ifndef ACOMM_NODE_STATE_H
#define ACOMM_NODE_STATE_H
#include "base/loop.h"
#include "base/process.h"
#include "membership/node.h"
#include "membership/wire_control.h"

#define NODE_PRESENT UINT64_MAX       /* in members[].left: has not closed the group */
#define NODE_SILENT UINT64_MAX        /* in members[].begun: has not answered */
#define NODE_WORD_NS 100000000        /* for a notice about a rank that refused a data connection; see node_patience() */
#define NODE_HOP_NS 4000000           /* from rank to rank, where many share a processor */
#define NODE_NOTES 1024               /* frames remembered, to drop duplicates and to inform late ranks */
#define NODE_LINK_ROOM (1 << 20)      /* bytes of control frames that may wait for one peer */
#define NODE_CLOSE_NS 500000000       /* the longest time for shutdown notices */
#define NODE_CALM_NS 200000000        /* from a shutdown notice to a new connection in its place */
#define NODE_VERDICT_NS 300000000     /* for a shutdown notice to arrive after a connection was refused; see node_patience() */

struct node_link {
    struct node_link *next;
    int fd, peer;                     /* world rank */
    int64_t heard;                    /* when bytes last came */
    bool writing;                     /* the loop waits until it can be written */
    bool mute;                        /* writing failed; its remaining frames are read */
    bool known;                       /* a frame has come: the peer's node has it */
    bool given_up;                    /* ended without one: by a process that died, or one that was closing when it came */
    const char *broken;               /* why it is to be closed, or NULL */
    char *out;                        /* NODE_LINK_ROOM bytes */
    size_t out_bytes;
    size_t in_bytes;
    char in[WIRE_CONTROL_FRAME];
};

struct node_peer {
    enum { PEER_THERE, PEER_GONE, PEER_LOST } state; /* GONE: sent its shutdown notice */
    bool asked;                       /* a control connection was asked for */
    unsigned ended;                   /* 0: it closed the world; 1 + exit status of its process, which has not */
    int64_t verdict;                  /* when it counts as lost without a shutdown notice; 0 none */
    char *text;                       /* why lost or suspected, or the shutdown notice; NULL where empty */
};

struct node_watch {                   /* a registered group */
    struct node_watch *next;
    struct acomm_group *group;
    node_fail_group *fail;
    int calls;                        /* under way into the group; node_remove waits for 0 */
    int64_t asked;                    /* when a member last asked all how far they are */
    uint8_t told;                     /* questions and answers of this rank, ever */
    bool waits;                       /* not reported yet: */
    acomm_late late;                  /* an operation that has waited for long */
    struct node_member {
        uint64_t left;                /* collectives begun before it closed the group, or NODE_PRESENT */
        uint64_t begun;               /* its answer when it was asked, or NODE_SILENT */
    } members[];                      /* by rank */
};

struct node_note {
    struct wire_control head;
    char payload[];
};

struct node_request {
    struct node_request *next;
    acomm_request request;
};

struct acomm_node {
    int rank, size;
    int64_t heartbeat, silence;
    pthread_mutex_t lock;
    pthread_cond_t returned;          /* a call into a group has returned, a member has answered, or a rank has gone */
    pthread_t thread;
    struct loop loop;
    int asking;                       /* eventfd, readable while there are requests */
    _Atomic int forked;
    _Atomic int departures;           /* node_left() has something to report; 0 saves it the lock */
    bool exiting;                     /* closed when the process exits, with what it ended; see acomm_node_exit() */
    unsigned ended;                   /* as a peer's */
    bool closing, closed;             /* closed: no thread and no descriptors any more */
    char *condemned;                  /* the others declared this rank lost: why */
    int64_t next_beat, last_turn, close_by;
    int64_t mend_at;                  /* when to look after the ring; 0: it is in order */
    int verdicts;                     /* peers with a verdict pending */
    struct node_link *links;
    struct node_watch *watches;
    struct node_request *requests, **requests_end;
    struct node_note *notes[NODE_NOTES]; /* a ring, oldest first */
    unsigned notes_next;
    struct acomm_node *next_open;     /* list for fork */
    int *gone, gone_count;            /* world ranks that have left or are lost, in the order of their notices */
    struct node_peer peers[];
};

/* node_link.c */
/* NULL when memory is out; the caller keeps fd then. */
struct node_link *node_link_new(int peer, int fd, int64_t now);
void node_link_free(struct node_link *link);
void node_link_put(struct node_link *link, const struct wire_control *head, const void *payload);
/* Sends what the socket takes. */
void node_link_flush(struct node_link *link);
/* The next frame: 1 and *payload (valid until the next call), 0 when there is none yet, or sets link->broken. */
int node_link_take(struct node_link *link, int size, struct wire_control *head, const void **payload);

/* node_gossip.c: the state of ranks and groups, and notices of it. All with node->lock held; those with `unlocks` in their
 * comment release it while they call groups. */
/* Puts a frame on all links but `from`, and wakes the thread. */
void node_spread(struct acomm_node *node, const struct node_link *from, struct wire_control head, const void *payload);
struct wire_control node_frame(const struct acomm_node *node, int kind, int rank, size_t bytes);
/* The first notice of a group's end or failure from this rank. */
void node_spread_left(struct acomm_node *node, const struct acomm_group *group);
void node_spread_fail(struct acomm_node *node, const struct acomm_group *group, const acomm_failure *failure);
/* Asks all members how many of the group's collectives they have begun, unless one of them has just done so. */
void node_ask_begun(struct acomm_node *node, struct node_watch *watch);
/* Wakes the reader of the requests (acomm_node_eventfd). */
void node_call(struct acomm_node *node);
/* Without a shutdown notice before `verdict` it counts as lost, because of `text`; 0: withdraws that. */
void node_suspect(struct acomm_node *node, int rank, int64_t verdict, const char *text);
/* Sends all state that a new neighbour may not have. */
void node_brief(struct acomm_node *node, struct node_link *link);
void node_hear(struct acomm_node *node, struct node_link *link, const struct wire_control *head, const void *payload); /* unlocks */
void node_declare_lost(struct acomm_node *node, const struct node_link *from, int rank, const char *text);  /* unlocks */
/* group_fail on a watched group. */
void node_fail(struct acomm_node *node, struct node_watch *watch, const acomm_failure *failure, bool tell); /* unlocks */
/* The reason known to the node why this group cannot work any more. */
bool node_doomed(struct acomm_node *node, const struct acomm_group *group, acomm_failure *out);
int node_group_rank(const struct acomm_group *group, int world_rank);
/* The world rank that failed first, of a group's members or (NULL) of all: one that died, or else one that left with an error, as
 * others may have left as a consequence. -1: none has. */
int node_first_failed(const struct acomm_node *node, const struct acomm_group *group);
struct node_watch *node_find(struct acomm_node *node, uint64_t group);
/* Ensures a link to the next living rank in ring order. */
void node_mend_ring(struct acomm_node *node);
/* Asks for a control connection unless there is one. */
void node_connect(struct acomm_node *node, int rank);
/* The rank is suspected dead. The proof is a new connection to it: a dead process refuses it, and a living one that only closed a
 * group or lost a connection accepts it and is watched from then on. */
void node_doubt(struct acomm_node *node, int rank, const char *text);
/* False: out of memory. */
bool node_ask_locked(struct acomm_node *node, const acomm_request *request);

/* node.c */
/* Frees a node that is closed. */
void node_release(struct acomm_node *node);

/* node_thread.c */
void *node_run(void *node);
#endif
