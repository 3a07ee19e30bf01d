/* What an engine in C needs to be a backend of arraycomm: docs/internals/design.md, "A backend". Its half in Python gives the addresses
 * of an acomm_entries and of its group to arraycomm._engine.Shortcut(), and so has the fast path of Group's methods, Work, handles for
 * compiled programs and the flight recorder. Codes, kinds, types and acomm_call are arraycomm.h's; a row of operations.def says what
 * a kind means. Plain C declarations only. */
#ifndef ACOMM_BACKEND_H
#define ACOMM_BACKEND_H
#include "arraycomm.h"

typedef struct acomm_group acomm_group;
typedef struct acomm_op acomm_op;

/* What is known of a kind of operation: its row in operations.def. */
enum { ACOMM_NOBODY, ACOMM_ROOT, ACOMM_ALL };
enum { ACOMM_WHOLE, ACOMM_JOINS, ACOMM_CUTS, ACOMM_EXCHANGES = ACOMM_JOINS | ACOMM_CUTS, ACOMM_MESSAGE };
enum { ACOMM_OF_ALL = 1, ACOMM_INCLUSIVE, ACOMM_EXCLUSIVE };
typedef struct acomm_operation {
    const char *name;
    uint8_t gives, gets, array, reduces;
} acomm_operation;

enum { /* Numbers of types that only the caller knows, of elements of one byte each: they are compared and moved, not reduced. A
        * header has ACOMM_OPAQUE_HEADER in their place, and the number as its factor. */
    ACOMM_OPAQUE = 256, ACOMM_OPAQUE_END = 1 << 20, ACOMM_OPAQUE_HEADER = 255
};

/* What every rank says about its call; compared before anything is written. 32 bytes on the wire. */
typedef struct acomm_header {
    uint64_t sequence;  /* number of the collective in its group, from 1 */
    uint64_t count;     /* elements as the kind counts them, see acomm_call */
    uint32_t layout;    /* hash of the shape, or of the counts where they are uneven; 0 unknown */
    uint32_t factor;    /* hash of premul_sum's factor; number of an opaque dtype; else 0 */
    uint8_t kind;       /* enum acomm_kind */
    uint8_t dtype;      /* enum acomm_dtype, to ACOMM_OPAQUE_HEADER */
    uint8_t redop;      /* enum acomm_redop, 0 where none */
    uint8_t flags;      /* 0; reserved */
    int32_t root;       /* -1 where none */
} acomm_header;

/* The first failure of a group. */
enum { ACOMM_OTHERS = -2 }; /* all ranks but `origin` */

typedef struct acomm_failure {
    int32_t code;         /* enum acomm_code */
    int32_t errnum;       /* errno, or 0 */
    int32_t culprit;      /* rank, -1, or ACOMM_OTHERS where a message alone has failed */
    int32_t origin;       /* rank that noticed */
    uint64_t sequence;    /* the collective under way on this rank, 0 if none */
    uint64_t peer_sequence; /* the last collective the culprit was seen in, 0 unknown */
    int64_t elapsed;      /* ns from the start of the operation to the failure */
    acomm_header mine, theirs; /* what this rank did; the culprit, or `origin` where that is another rank and it is no mismatch */
    char text[192];       /* the cause in words, without names of ranks; may be empty */
    int64_t writer;       /* 0, or 1 + the rank that may still write to this one's arrays */
} acomm_failure;

/* The functions that native callers are lent. They return 0, or a negative code; ACOMM_UNSUPPORTED before anything is sent: then
 * Communicator.collective() is called. Without the GIL, but for run() of contents up to `held`. */
typedef struct acomm_entries {
    int (*run)(acomm_group *group, acomm_call *call);
    int (*start)(acomm_group *group, const acomm_call *call, acomm_op **out);
    int (*wait)(acomm_op *op, int64_t timeout);
    /* Where a receive came from: rank, tag and bytes. */
    int (*source)(acomm_op *op, int32_t *rank, int64_t *tag, uint64_t *bytes);
    /* 1 and *out: the failure of this one operation (a truncated receive leaves the group alive). */
    int (*failure)(acomm_op *op, acomm_failure *out);
    void (*free)(acomm_op *op);
    uint64_t held;       /* run() takes contents of up to so many bytes a rank with the caller's lock; 0: none */
    int (*group_failure)(acomm_group *group, acomm_failure *out); /* as acomm_group_failure() */
} acomm_entries;
#endif
