/* DLPack 1.3, as far as it is used here. Layouts and values are those of the specification, whose ABI is fixed
 * within major version 1 (https://dmlc.github.io/dlpack/latest/c_api.html). */
#ifndef DLPACK_H
#define DLPACK_H
#include <stdint.h>

enum dl_code {
    DL_INT, DL_UINT, DL_FLOAT, DL_OPAQUE, DL_BFLOAT, DL_COMPLEX, DL_BOOL,
    DL_FLOAT8_E3M4, DL_FLOAT8_E4M3, DL_FLOAT8_E4M3B11FNUZ, DL_FLOAT8_E4M3FN,
    DL_FLOAT8_E4M3FNUZ, DL_FLOAT8_E5M2, DL_FLOAT8_E5M2FNUZ, DL_FLOAT8_E8M0FNU
};
enum dl_flags { DL_READ_ONLY = 1, DL_IS_COPIED = 2, DL_SUBBYTE_PADDED = 4 };
enum dl_device_type { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11, DL_CUDA_MANAGED = 13 };
/* Streams as __dlpack__ takes them. 0 would be ambiguous; every other number is a cudaStream_t. */
enum dl_stream { DL_STREAM_UNORDERED = -1, DL_STREAM_LEGACY = 1, DL_STREAM_PER_THREAD = 2 };

#define DL_MAJOR 1
#define DL_MINOR 3

struct dl_version { uint32_t major, minor; };
struct dl_device { int32_t type, index; };
struct dl_dtype { uint8_t code, bits; uint16_t lanes; };

struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t ndim;
    struct dl_dtype dtype;
    int64_t *shape;
    int64_t *strides;     /* in elements; NULL (before 1.2) means packed */
    uint64_t byte_offset;
};

/* Before 1.0, in capsules named "dltensor"; says nothing about read-only memory. */
struct dl_legacy {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_legacy *self);
};

/* Since 1.0, in capsules named "dltensor_versioned". */
struct dl_managed {
    struct dl_version version;
    void *context;
    void (*deleter)(struct dl_managed *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* Since 1.3: C entry points of a library, in a capsule "dlpack_exchange_api" at type(x).__dlpack_c_exchange_api__.
 * They do not synchronise with any stream. */
struct dl_exchange {
    struct dl_version version;
    struct dl_exchange *previous;
    int (*allocate)(struct dl_tensor *prototype, struct dl_managed **out, void *context,
                    void (*set_error)(void *context, const char *kind, const char *message));
    int (*export_managed)(void *object, struct dl_managed **out);
    int (*import_managed)(struct dl_managed *tensor, void **object); /* takes the tensor */
    int (*borrow)(void *object, struct dl_tensor *out);              /* may be NULL; valid while the object is */
    int (*current_stream)(int32_t device_type, int32_t device_index, void **out);
};
#endif
