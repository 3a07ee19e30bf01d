/* arraycomm's C API: the operations of a group, for native code in a process that has opened the group in Python.
 *
 * Python gives two things: the group's handle, `group.handle()`, and the file of the library, `arraycomm.get_library()`, which
 * the process has loaded already. This header lies in `arraycomm.get_include()`; it needs no other library, nor is anything linked:
 *
 *     void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
 *     const acomm_api *api = ((acomm_api_function)dlsym(library, "arraycomm_api"))(ACOMM_API_VERSION);
 *     acomm_call call = {.kind = ACOMM_ALL_REDUCE, .in = x, .out = y, .count = n, .dtype = ACOMM_FLOAT64, .redop = ACOMM_SUM};
 *     if (api->run(group, &call))
 *         api->error(text, sizeof text, NULL);
 *
 * What holds for every function of the table:
 * - Threads: any thread may call it, without the interpreter's lock (GIL). A thread that holds the lock must let go of it around a
 *   call that blocks (ctypes.CDLL and cffi do). Collectives of one group, from any number of threads, run one after the other; which
 *   one is first is the program's to say, in the same order on all ranks.
 * - It returns 0 or a negative code of enum acomm_code. What went wrong in words: error().
 * - Memory is the caller's, of the host, and stays as it is until the operation has ended.
 * - Ranks are ranks of the group. Counts are in elements, times in nanoseconds.
 * - A handle is never used again: with that of a group that has been closed, or in a child made by fork, a call fails.
 *   A group whose handle was asked for lives until it is closed.
 * - The table lives as long as the process. While the interpreter ends, groups are closed.
 *
 * Plain C declarations only: cffi's parser reads this file too, without the lines that begin with '#' (cffi_build adds the kinds).
 */
#ifndef ACOMM_API_H
#define ACOMM_API_H
#include <stddef.h>
#include <stdint.h>

#define ACOMM_API_VERSION 1

enum acomm_code {
    ACOMM_OK = 0,
    ACOMM_LOST = -1,         /* a peer died, was stopped or left */
    ACOMM_TIMEOUT = -2,      /* the deadline passed */
    ACOMM_MISMATCH = -3,     /* the ranks called different operations */
    ACOMM_ABORTED = -4,      /* abort() here or on a peer, or this rank was declared lost by the others */
    ACOMM_CLOSED = -5,       /* the group was closed here */
    ACOMM_ARGUMENT = -6,     /* an argument is wrong; nothing was sent */
    ACOMM_UNSUPPORTED = -7,  /* no such reduction of this dtype; nothing was sent */
    ACOMM_RESOURCE = -8,     /* memory or descriptors ran out */
    ACOMM_SYSTEM = -9,       /* a system call failed */
    ACOMM_PROTOCOL = -10,    /* a peer sent what no peer of this version sends */
    ACOMM_INTERRUPTED = -11, /* Ctrl-C, or another signal whose handler in Python raised: return to Python, which raises it */
    ACOMM_FORKED = -12,      /* used in a child made by fork after init */
    ACOMM_TRUNCATED = -13,   /* a received message has another size or dtype than the posted receive */
    ACOMM_LIBRARY = -14,     /* the library underneath (MPI) failed */
    ACOMM_PYTHON = -15       /* an exception of Python's, of the functions that call it */
};
/* After ACOMM_ARGUMENT, ACOMM_UNSUPPORTED and ACOMM_TRUNCATED the group can be used as before. */

/* Fixed on the wire; new ones are appended. Names in arraycomm/core/arrays/types.py follow this order. */
enum acomm_dtype {
    ACOMM_BOOL, ACOMM_INT8, ACOMM_INT16, ACOMM_INT32, ACOMM_INT64,
    ACOMM_UINT8, ACOMM_UINT16, ACOMM_UINT32, ACOMM_UINT64,
    ACOMM_FLOAT16, ACOMM_BFLOAT16, ACOMM_FLOAT32, ACOMM_FLOAT64, ACOMM_COMPLEX64, ACOMM_COMPLEX128,
    ACOMM_FLOAT8_E3M4, ACOMM_FLOAT8_E4M3, ACOMM_FLOAT8_E4M3B11FNUZ, ACOMM_FLOAT8_E4M3FN,
    ACOMM_FLOAT8_E4M3FNUZ, ACOMM_FLOAT8_E5M2, ACOMM_FLOAT8_E5M2FNUZ, ACOMM_FLOAT8_E8M0FNU,
    ACOMM_DTYPES
};

enum acomm_redop {
    ACOMM_SUM, ACOMM_PRODUCT, ACOMM_MIN, ACOMM_MAX, ACOMM_BAND, ACOMM_BOR, ACOMM_BXOR,
    ACOMM_AVG,         /* sum, divided by the group size once at the end (integers truncate toward zero) */
    ACOMM_PREMUL_SUM,  /* every contribution times `factor`, then summed */
    ACOMM_REDOPS
};

enum acomm_kind { /* ACOMM_ALL_REDUCE and so on: operations.def, which lies beside this header, says what each does */
#define OPERATION(kind, name, gives, gets, array, reduces) ACOMM_##kind,
#include "operations.def"
#undef OPERATION
    ACOMM_KINDS
};

struct acomm_failure;

/* One call of an operation; fields that an operation does not need stay 0.
 *
 * in: of the ranks that give. out: of those that get. count: elements of the array; of one rank's block where the array is cut or
 * joined. counts: for blocks of different lengths, that of each rank's, equal on all ranks; then `count` is ignored. Of all_gather
 * and reduce_scatter; of all_to_all what this rank gives to each, with receives: what it gets from each.
 *
 * in == out (in place) where both are as long, but for all_to_all; of all_gather and reduce_scatter a rank's part may lie at its
 * place in the whole. Other overlaps are not allowed, and not looked for.
 * Messages are independent of the collectives' order; those between two ranks with one tag do not overtake each other. */
typedef struct acomm_call {
    const void *in;
    void *out;           /* NULL where this rank gives or gets nothing */
    uint64_t count;
    const uint64_t *counts, *receives; /* NULL, or one for each rank */
    double factor;       /* of ACOMM_PREMUL_SUM */
    int64_t timeout;     /* 0 or less: the group's own */
    int64_t tag;         /* of a message, from 0, below 2^62; of a receive -1: any */
    uint32_t layout;     /* 0, or a number that ranks compare beside count and dtype: of the shape, say */
    int32_t kind, dtype, redop;
    int32_t root;        /* of a message the peer; of a receive -1: any, and when it has been run its source */
    struct acomm_failure *failure; /* the engine's own, as the next two: NULL */
    void (*release_lock)(void *lock);
    void *lock;
} acomm_call;

typedef struct acomm_work acomm_work; /* an operation under way */

typedef struct acomm_api {
    uint32_t version;  /* of the library, which may be later than the caller's: what follows is appended to, never changed */
    uint32_t bytes;    /* of its table */

    /* ---- no lock of the interpreter's is taken here ---- */
    /* This rank, and how many there are. Of a group that has been closed, too. Does not block. */
    int (*place)(int64_t group, int32_t *rank, int32_t *size);
    /* Blocks until the operation has ended. */
    int (*run)(int64_t group, acomm_call *call);
    /* A message to one rank and one from another, at once (MPI_Sendrecv); either may be NULL. Blocks until both have ended. */
    int (*exchange)(int64_t group, const acomm_call *send, acomm_call *receive);
    /* Begins it and returns at once, with an operation that is to be freed. What `call` points to is not needed afterwards, but for
     * the arrays, counts and receives. */
    int (*start)(int64_t group, const acomm_call *call, acomm_work **out);
    /* Blocks until it has ended or `timeout` is over (0: just a look; below 0: no limit): 1 where it has not ended, as with
     * ACOMM_INTERRUPTED; otherwise how it ended, each time again. One thread at a time for each operation. */
    int (*wait)(acomm_work *work, int64_t timeout);
    /* Where a receive that has ended came from, its tag and its bytes. ACOMM_ARGUMENT before the end. */
    int (*received)(acomm_work *work, int32_t *source, int64_t *tag, uint64_t *bytes);
    /* Waits until it has ended, whatever signals come, and frees the handle: for arrays that go when the caller returns. How it ended,
     * or ACOMM_INTERRUPTED where it went well and a signal's handler has raised meanwhile. */
    int (*finish)(acomm_work *work);
    /* Frees the handle, not the operation: before the end its arrays are still used, until the group is closed. */
    void (*free)(acomm_work *work);

    /* ---- the rest calls Python, and takes its lock: not with a lock of your own held that a thread with Python's may want ---- */
    /* The text of the last call that failed in this thread, always terminated; returns its length, which may be more than fits.
     * rank: NULL, or which rank is to blame, -1 where it is none. Does not block. */
    size_t (*error)(char *text, size_t bytes, int32_t *rank);
    /* A new group, as Group.split(): all ranks call it, those of a color together, by key; color below 0: none, *out is 0.
     * Blocks. Closed with this group at the latest. */
    int (*split)(int64_t group, int32_t color, int32_t key, int64_t *out);
    /* A new group of these ranks in this order, as Group.subgroup(): only they call it. name: of no other one of this group.
     * Blocks. */
    int (*subgroup)(int64_t group, const int32_t *members, int32_t count, const char *name, int64_t *out);
    /* Ends every operation under way, here and on the peers. Does not block. */
    int (*abort)(int64_t group, const char *reason);
    /* As Group.close(); reason: NULL, or why it is no orderly end. Waits until no thread is in a call of the group. */
    int (*close)(int64_t group, const char *reason);
} acomm_api;

/* The exported function: NULL where the library is older than `version`. */
typedef const acomm_api *(*acomm_api_function)(uint32_t version);

#endif
