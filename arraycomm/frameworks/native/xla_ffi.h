/* XLA's FFI as far as our handler uses it: the layout of its structs, which XLA keeps for 12 months at least and numbers by the
 * version that a handler answers with. Fields and functions that we do not use are left as space. */
#ifndef XLA_FFI_H
#define XLA_FFI_H
#include <stdbool.h>
#include <stddef.h>
#include "acomm_xla.h"

enum { XLA_VERSION_MAJOR = 0, XLA_VERSION_MINOR = 1 }; /* nothing newer is used */
enum { XLA_TYPE_S64 = 5, XLA_TYPE_TOKEN = 17 };        /* of elements */
enum { XLA_ATTRIBUTE_ARRAY = 1 };
enum { XLA_STAGE_EXECUTE = 3 };
enum { XLA_CODE_INVALID_ARGUMENT = 3, XLA_CODE_ABORTED = 10 };
enum { XLA_EXTENSION_METADATA = 1 };

struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
};

struct xla_version {
    size_t struct_size;
    struct xla_extension *extensions;
    int major, minor;
};

/* "Which version were you made for?" comes as a call with this extension. */
struct xla_metadata {
    size_t struct_size;
    struct xla_version version;
    uint32_t traits;
};
struct xla_metadata_extension {
    struct xla_extension base;
    struct xla_metadata *metadata;
};

struct xla_buffer {
    size_t struct_size;
    struct xla_extension *extensions;
    int type;
    void *data;
    int64_t rank;
    int64_t *dims;
};

/* Operands, and results too. */
struct xla_values {
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t size;
    int *kinds;
    void **values; /* struct xla_buffer: there is no other kind */
};

struct xla_array {
    int type;
    size_t size;
    void *data;
};

struct xla_attributes {
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t size;
    int *kinds;
    void **names;
    void **values;
};

typedef struct xla_error xla_error;
struct xla_error_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    const char *message; /* copied */
    int code;
};

struct xla_stream_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    void *context;
    void *stream; /* a cudaStream_t comes back */
};

struct xla_threads_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    void *context;
    int64_t *number;
};
struct xla_error_destroy_arguments {
    size_t struct_size;
    struct xla_extension *extensions;
    xla_error *error;
};

struct xla_api {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_version version;
    const void *internal;
    xla_error *(*new_error)(struct xla_error_arguments *arguments);
    void (*get_message)(void);
    void (*destroy_error)(struct xla_error_destroy_arguments *arguments);
    void (*register_handler)(void);
    xla_error *(*get_stream)(struct xla_stream_arguments *arguments);
    void (*unused[7])(void);
    xla_error *(*get_threads)(struct xla_threads_arguments *arguments);
};

struct xla_frame {
    size_t struct_size;
    struct xla_extension *extensions;
    const struct xla_api *api;
    void *context;
    int stage;
    struct xla_values operands, results;
    struct xla_attributes attributes;
};

/* ---- xla_frame.c: a call's data for handlers ---- */
/* The handler's operation. NULL: none, and *answer is its return value: XLA asks for the version, is at another stage, or the
 * program is none of this process's, which is an error. */
const int64_t *xla_frame_fields(const struct xla_frame *frame, xla_error **answer);
/* The first that is no token, or NULL. */
const struct xla_buffer *xla_frame_array(const struct xla_values *values);
/* A result that is about to be written. XLA maps a long one anew in every program, and touching it by small pages takes longer than
 * the collective: these become huge ones where the system grants them. */
void xla_prepare(void *result, uint64_t bytes);
/* The error of an operation; takes ownership of the text, NULL: there is none. */
xla_error *xla_frame_failed(const struct xla_frame *frame, char *text);
/* In xla_call.c: the text for the last call of this thread that failed, of a group by its handle; to be freed, NULL: none can be made.
 * derived: of a derivative. */
char *xla_explain(int64_t group, int64_t derived);
#endif
