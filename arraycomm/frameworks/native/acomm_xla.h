/* Public header of the functions that compiled XLA programs call, beside acomm.h. */
#ifndef ACOMM_XLA_H
#define ACOMM_XLA_H
#include "acomm.h"

/* What the attribute "call" of a call in a program holds: int64s in this order. Ranks are the group's, -1 none. */
enum acomm_xla_field {
    ACOMM_XLA_GROUP,   /* its handle, see arraycomm.h */
    ACOMM_XLA_KIND,    /* enum acomm_kind or enum acomm_xla_kind */
    ACOMM_XLA_COUNT,   /* as acomm_call's, and so are the next ones */
    ACOMM_XLA_DTYPE,
    ACOMM_XLA_REDOP,
    ACOMM_XLA_FACTOR,  /* the bits of a double */
    ACOMM_XLA_ROOT,    /* point to point: the peer; of a permutation: the target rank */
    ACOMM_XLA_SOURCE,  /* of a permutation: the source rank */
    ACOMM_XLA_TAG,
    ACOMM_XLA_LAYOUT,
    ACOMM_XLA_GIVES,   /* 1: this rank's operand takes part */
    ACOMM_XLA_DERIVED, /* 1: of a derivative, which errors name */
    ACOMM_XLA_FIELDS
};
enum acomm_xla_kind {
    ACOMM_XLA_PERMUTE = 100, /* sends to one rank and receives from another, at once */
    ACOMM_XLA_REDUCE_PARTS   /* no communication: reduces as many arrays as there are ranks, which lie one after the other */
};

/* The handlers, of XLA's FFI (an XLA_FFI_Handler): on the host, and on CUDA devices. */
void *acomm_xla_call(void *frame);
void *acomm_xla_enqueue(void *frame);
/* Addresses of Python functions (id()) that live as long as the process, before the handlers are registered. */
void acomm_xla_report(uintptr_t function);
void acomm_xla_enqueuer(uintptr_t function);

/* XLA executes programs in few threads, and a waiting call occupies its thread. */
int64_t acomm_xla_threads(void); /* how many they are; 0: not known yet */
int64_t acomm_xla_waiting(void); /* calls that occupy one now */
int acomm_xla_inside(int64_t group); /* of these and others, those of a group */

/* 1: jaxlib takes the functions of MPI from this library, see mpi_calls.c. */
int acomm_mpi_used(void);
/* From the first on jaxlib's abort() waits for the second, up to 1 s. */
void acomm_mpi_will_say(void);
void acomm_mpi_said(void);

#endif
