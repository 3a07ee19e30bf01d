/* Opening an MPI library, and the one table of the families' differences. MPI itself leaves to the implementation what a handle
 * is; MPICH's numbers have been the same since its ABI was agreed on with Intel and others (2014), Open MPI's are addresses of
 * its own variables, and MPI 5 has fixed its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "mpi_fabric.h"

enum family { OPEN_MPI, MPICH, MPI_ABI };

/* Open MPI: the variable of that name. The others: the number. */
struct constant { const char *symbol; uintptr_t mpich, abi; };
static const struct constant
    world = {"ompi_mpi_comm_world", 0x44000000, 0x101}, byte = {"ompi_mpi_byte", 0x4c00010d, 0x247},
    errors_return = {"ompi_mpi_errors_return", 0x54000001, 0x143},
    self = {"ompi_mpi_comm_self", 0x44000001, 0x102};
static const struct constant types[ACOMM_DTYPES] = {
    [ACOMM_INT32] = {"ompi_mpi_int32_t", 0x4c000439, 0x250}, [ACOMM_UINT32] = {"ompi_mpi_uint32_t", 0x4c00043d, 0x251},
    [ACOMM_INT64] = {"ompi_mpi_int64_t", 0x4c00083a, 0x258}, [ACOMM_UINT64] = {"ompi_mpi_uint64_t", 0x4c00083e, 0x259},
    [ACOMM_FLOAT32] = {"ompi_mpi_float", 0x4c00040a, 0x210}, [ACOMM_FLOAT64] = {"ompi_mpi_double", 0x4c00080b, 0x214},
};
static const struct constant ops[ACOMM_REDOPS] = {
    [ACOMM_SUM] = {"ompi_mpi_op_sum", 0x58000003, 0x21}, [ACOMM_PRODUCT] = {"ompi_mpi_op_prod", 0x58000004, 0x24},
    [ACOMM_MIN] = {"ompi_mpi_op_min", 0x58000002, 0x22}, [ACOMM_MAX] = {"ompi_mpi_op_max", 0x58000001, 0x23},
    [ACOMM_BAND] = {"ompi_mpi_op_band", 0x58000006, 0x28}, [ACOMM_BOR] = {"ompi_mpi_op_bor", 0x58000008, 0x29},
    [ACOMM_BXOR] = {"ompi_mpi_op_bxor", 0x5800000a, 0x2a},
};
static const struct mpi_family families[] = {
    [OPEN_MPI] = {"Open MPI", sizeof(void *), 3, 75, NULL, (void *)1},
    [MPICH] = {"MPICH", sizeof(int), 3, 101, (void *)1, (void *)UINTPTR_MAX},
    [MPI_ABI] = {"MPI ABI", sizeof(void *), 4096, 101, NULL, (void *)1},
};

mpi_handle mpi_read(const acomm_mpi *mpi, const void *place)
{
    if (mpi->family.handle_bytes == sizeof(int)) {
        int number;
        memcpy(&number, place, sizeof number);
        return (mpi_handle)(intptr_t)number;
    }
    mpi_handle handle;
    memcpy(&handle, place, sizeof handle);
    return handle;
}

static bool library_take(void *library, enum family family, const struct constant *c, mpi_handle *out)
{
    *out = family == MPICH ? (mpi_handle)(intptr_t)(int)c->mpich : c->abi;
    if (family == OPEN_MPI)
        *out = (mpi_handle)dlsym(library, c->symbol);
    return *out != 0;
}

static bool take_constants(void *library, enum family family, acomm_mpi *mpi)
{
    bool good = library_take(library, family, &world, &mpi->world) && library_take(library, family, &byte, &mpi->byte)
             && library_take(library, family, &self, &mpi->self)
             && library_take(library, family, &errors_return, &mpi->errors_return);
    for (int i = 0; i < ACOMM_DTYPES; i++)
        good &= !types[i].symbol || library_take(library, family, &types[i], &mpi->types[i]);
    for (int i = 0; i < ACOMM_REDOPS; i++)
        good &= !ops[i].symbol || library_take(library, family, &ops[i], &mpi->ops[i]);
    mpi->family = families[family];
    return good;
}

/* The first required name that is not there, or NULL. */
static const char *take_functions(void *library, acomm_mpi *mpi)
{
    const char *missing = NULL;
#define TAKE(prefix, required, name)                                                                                  \
    *(void **)&mpi->name = dlsym(library, prefix #name);                                                              \
    if (required && !mpi->name && !missing)                                                                           \
        missing = prefix #name;
#define TAKE_MPI(required, name, parameters) TAKE("MPI_", required, name)
#define TAKE_MPIX(required, name, parameters) TAKE("MPIX_", required, name)
    MPI_FUNCTIONS(TAKE_MPI)
    MPIX_FUNCTIONS(TAKE_MPIX)
#define TAKE_BOTH(kind, name, other, parameters, arguments) TAKE("MPI_", true, name) TAKE("MPI_", true, other)
    MPI_COLLECTIVES(TAKE_BOTH)
    return missing;
}

/* Open MPI by a variable of its own. The MPI ABI by its file's name, as MPICH's own library has MPI_Abi_get_version too. */
static enum family recognise(void *library, void *function)
{
    Dl_info info;
    if (dlsym(library, world.symbol))
        return OPEN_MPI;
    return dladdr(function, &info) && strstr(info.dli_fname, "libmpi_abi") ? MPI_ABI : MPICH;
}

static acomm_mpi loaded; /* a process has one MPI: two would both use the launcher's connection */

acomm_mpi *mpi_loaded(void)
{
    return &loaded;
}

int acomm_mpi_load(const char *path, acomm_mpi **out, char *text)
{
    static bool done;
    *out = &loaded;
    if (done)
        return ACOMM_OK;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* its own plug-ins resolve their symbols in the process */
    if (!library) {
        snprintf(text, 256, "%s", dlerror());
        return ACOMM_LIBRARY;
    }
    const char *missing = take_functions(library, &loaded);
    if (missing) {
        snprintf(text, 256, "it has no %s: it is no MPI library, or one older than MPI 3", missing);
        return ACOMM_LIBRARY;
    }
    if (!take_constants(library, recognise(library, *(void **)&loaded.Init_thread), &loaded)) {
        snprintf(text, 256, "it lacks constants of its family (%s)", loaded.family.name);
        return ACOMM_LIBRARY;
    }
    done = true;
    return ACOMM_OK;
}

void acomm_mpi_ask(acomm_mpi *mpi, acomm_mpi_facts *out)
{
    char version[8192]; /* MPI_MAX_LIBRARY_VERSION_STRING of any of them */
    int length = 0, level = -1;
    *out = (acomm_mpi_facts){.family = mpi->family.name, .threads = -1, .gpus = -1, .fault_tolerant = mpi->Comm_get_failed && mpi->Comm_shrink};
    mpi->Get_library_version(version, &length);
    snprintf(out->version, sizeof out->version, "%.*s", (int)strcspn(version, "\n"), version);
    mpi->Get_version(&out->standard[0], &out->standard[1]);
    mpi->Initialized(&out->initialized);
    mpi->Finalized(&out->finalized);
    if (!out->initialized || out->finalized || mpi->Query_thread(&level))
        return;
    out->threads = level >= mpi->family.multiple ? 3 : mpi->family.multiple == 3 ? level : level / 1024 - 1;
    out->gpus = mpi->Query_cuda_support && mpi->Query_cuda_support();
    if (mpi->GPU_query_support)
        mpi->GPU_query_support(0, &out->gpus); /* MPIX_GPU_SUPPORT_CUDA */
}

void mpi_words(const acomm_mpi *mpi, int code, char *text)
{
    char words[1024] = ""; /* MPI_MAX_ERROR_STRING is 512 at most */
    int length = 0;
    if (mpi->Error_string(code, words, &length))
        snprintf(words, sizeof words, "MPI error %d", code);
    words[strcspn(words, "\n")] = 0;
    snprintf(text, 192, "%.191s", words);
}

bool mpi_tells_of_death(const acomm_mpi *mpi, int code)
{
    int class = 0;
    return mpi->Comm_get_failed && !mpi->Error_class(code, &class)
        && class >= mpi->family.failed && class <= mpi->family.failed + 2;
}

int mpi_code_of(const acomm_mpi *mpi, int code, char *text)
{
    mpi_words(mpi, code, text);
    return mpi_tells_of_death(mpi, code) ? ACOMM_LOST : ACOMM_LIBRARY;
}

int acomm_mpi_begin(acomm_mpi *mpi, int initialized, char *text)
{
    int got = 0, rc = initialized ? 0 : mpi->Init_thread(NULL, NULL, mpi->family.multiple, &got);
    if (!rc)
        rc = fabric_watch_end(mpi);
    if (rc)
        mpi_words(mpi, rc, text);
    return rc ? ACOMM_LIBRARY : ACOMM_OK;
}

uintptr_t acomm_mpi_world(acomm_mpi *mpi)
{
    return mpi->world;
}

int acomm_mpi_handle_bytes(acomm_mpi *mpi)
{
    return (int)mpi->family.handle_bytes;
}

int acomm_mpi_place(acomm_mpi *mpi, uintptr_t comm, int32_t *rank, int32_t *size)
{
    return mpi->Comm_rank(comm, rank) || mpi->Comm_size(comm, size) ? ACOMM_LIBRARY : ACOMM_OK;
}
