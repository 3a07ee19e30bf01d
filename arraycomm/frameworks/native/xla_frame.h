/* What handlers find in a call of XLA's FFI. */
#ifndef XLA_FRAME_H
#define XLA_FRAME_H
#include <stdbool.h>

#include "acomm_xla.h"
#include "xla_ffi.h"

/* What the handler is to carry out. NULL: nothing, and *answer is what it returns: XLA asks for the version, is at another stage, or the
 * program is none of this process's, which is an error. */
const int64_t *xla_frame_fields(const struct xla_frame *frame, xla_error **answer);
/* The first that is no token, or NULL. */
const struct xla_buffer *xla_frame_array(const struct xla_values *values);
/* The error of an operation; takes the text over, NULL: nobody could say it. */
xla_error *xla_frame_failed(const struct xla_frame *frame, char *text);
/* In xla_call.c: the text for the last call of this thread that failed, of a group by its handle; to be freed, NULL: none can be made.
 * derived: of a derivative. */
char *xla_explain(int64_t group, int64_t derived);
#endif
