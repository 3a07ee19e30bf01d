/* Codes of acomm.h with their texts, and the record of a group's first failure. */
#ifndef ACOMM_ERROR_H
#define ACOMM_ERROR_H
#include "acomm.h"

#define ERROR_CODES(X)                                                                                   \
    X(ACOMM_OK, "ok")                                                                                    \
    X(ACOMM_LOST, "a peer was lost")                                                                     \
    X(ACOMM_TIMEOUT, "the operation did not end in time")                                                \
    X(ACOMM_MISMATCH, "the ranks called different operations")                                           \
    X(ACOMM_ABORTED, "the group was aborted")                                                            \
    X(ACOMM_CLOSED, "the group is closed")                                                               \
    X(ACOMM_ARGUMENT, "an argument is out of range")                                                     \
    X(ACOMM_UNSUPPORTED, "the operation is not defined for this dtype")                                  \
    X(ACOMM_RESOURCE, "memory or descriptors ran out")                                                   \
    X(ACOMM_SYSTEM, "a system call failed")                                                              \
    X(ACOMM_PROTOCOL, "a peer broke the wire protocol")                                                  \
    X(ACOMM_INTERRUPTED, "interrupted by a signal")                                                      \
    X(ACOMM_FORKED, "a group cannot be used in a forked child")                                          \
    X(ACOMM_TRUNCATED, "the message does not fit the posted receive")                                    \
    X(ACOMM_LIBRARY, "the library underneath failed")                                                    \
    X(ACOMM_PYTHON, "an exception of Python's")

#endif
