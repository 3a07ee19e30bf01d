/* Opening an MPI library, and the one table of what its family has otherwise. MPI itself leaves to the implementation what a
 * handle is; MPICH's numbers have been the same since its ABI was agreed on with Intel and others (2014), Open MPI's are
 * addresses of its own variables, and MPI 5 has fixed its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "mpi_group.h"

enum family { OPEN_MPI, MPICH, MPI_ABI };

/* Open MPI: the variable of that name. The others: the number. */
struct constant { const char *symbol; uintptr_t mpich, abi; };
static const struct constant
    world = {"ompi_mpi_comm_world", 0x44000000, 0x101}, byte = {"ompi_mpi_byte", 0x4c00010d, 0x247},
    no_request = {"ompi_request_null", 0x2c000000, 0x180}, errors_return = {"ompi_mpi_errors_return", 0x54000001, 0x143},
    self = {"ompi_mpi_comm_self", 0x44000001, 0x102};
/* short_bytes: from where on MPICH hands messages over by a handshake, one with everything loses to several small ones; the
 * others were measured to gain. short_moved: Open MPI begins with handshakes above 4 KiB, and what is only moved can go without copies then.
 * short_message: below where that library's handshakes begin; longer ones lost, or gained nothing (Intel MPI). cut, piece: several messages
 * that Open MPI takes at once instead of one with a handshake, which is a system call of the receiver; from 32 KiB on they lose between far cores.
 * first: what leaves a record that short. slice: longer ones wait less often for each other, and leave the caches: 2 MiB instead of 512 KiB made
 * Open MPI's 16 MiB 2.17 instead of 2.42 ms between far cores, and Intel MPI's slower. */
static const struct family_facts {
    const char *name;
    size_t handle_bytes;
    int any_source, multiple, failed; /* `failed` is followed by failed_pending and revoked */
    uintptr_t ignore;
    uint64_t short_bytes, short_moved, short_message, cut, piece, first, slice;
    bool yields;
} families[] = {
    [OPEN_MPI] = {"Open MPI", sizeof(void *), -1, 3, 75, 0, 16384, 3072, 3584, 16384, 3968, 3840, 2 << 20, true},
    [MPICH] = {"MPICH", sizeof(int), -2, 3, 101, 1, 4096, 4096, 4096, 0, 0, 4096, 1 << 20, false},
    [MPI_ABI] = {"MPI ABI", sizeof(void *), -1, 4096, 101, 0, 4096, 4096, 4096, 0, 0, 4096, 512 << 10, false},
};
#define INTEL_SHORT_BYTES 16384
#define INTEL_SLICE (512 << 10)

mpi_handle mpi_read(const acomm_mpi *mpi, const void *place)
{
    if (mpi->handle_bytes == sizeof(int)) {
        int number;
        memcpy(&number, place, sizeof number);
        return (mpi_handle)(intptr_t)number;
    }
    mpi_handle handle;
    memcpy(&handle, place, sizeof handle);
    return handle;
}

static bool take(void *library, enum family family, const struct constant *c, mpi_handle *out)
{
    *out = family == MPICH ? (mpi_handle)(intptr_t)(int)c->mpich : c->abi;
    if (family == OPEN_MPI)
        *out = (mpi_handle)dlsym(library, c->symbol);
    return *out != 0;
}

static bool take_constants(void *library, enum family family, acomm_mpi *mpi)
{
    bool good = take(library, family, &world, &mpi->world) && take(library, family, &byte, &mpi->byte)
             && take(library, family, &no_request, &mpi->no_request)
             && take(library, family, &self, &mpi->self)
             && take(library, family, &errors_return, &mpi->errors_return);
    const struct family_facts *facts = &families[family];
    mpi->family = facts->name;
    mpi->handle_bytes = facts->handle_bytes;
    mpi->any_source = facts->any_source;
    mpi->multiple = facts->multiple;
    mpi->failed = facts->failed;
    mpi->failed_pending = facts->failed + 1;
    mpi->revoked = facts->failed + 2;
    mpi->ignore = (void *)facts->ignore;
    mpi->short_bytes = facts->short_bytes;
    mpi->short_moved = facts->short_moved;
    mpi->short_message = facts->short_message;
    mpi->cut = facts->cut;
    mpi->piece = facts->piece;
    mpi->first = facts->first;
    mpi->slice = facts->slice;
    mpi->yields = facts->yields;
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

int acomm_mpi_load(const char *path, acomm_mpi **out, char *text)
{
    static acomm_mpi loaded; /* a process has one MPI: two would both believe they own the launcher's connection */
    static bool done;
    *out = &loaded;
    if (done)
        return ACOMM_OK;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* its own plug-ins look their symbols up in the process */
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
        snprintf(text, 256, "it lacks constants of its family (%s)", loaded.family);
        return ACOMM_LIBRARY;
    }
    acomm_mpi_facts facts;
    acomm_mpi_ask(&loaded, &facts);
    if (strstr(facts.version, "Intel"))
        loaded.short_bytes = loaded.short_moved = loaded.first = INTEL_SHORT_BYTES, loaded.slice = INTEL_SLICE;
    done = true;
    return ACOMM_OK;
}

/* MPI 4.1: what memory may be given to it, "system,mpi,cuda:device" or the like. */
static bool lists_cuda(const acomm_mpi *mpi)
{
    uint64_t info = 0;
    char kinds[1024] = "";
    int room = sizeof kinds, found = 0;
    if (!mpi->Comm_get_info || !mpi->Info_get_string || !mpi->Info_free || mpi->Comm_get_info(mpi->world, &info))
        return false;
    bool lists = !mpi->Info_get_string(mpi_read(mpi, &info), "mpi_memory_alloc_kinds", &room, kinds, &found) && found
              && strstr(kinds, "cuda");
    mpi->Info_free(&info);
    return lists;
}

int acomm_mpi_says_cuda(acomm_mpi *mpi)
{
    int flag = 0;
    return (mpi->Query_cuda_support && mpi->Query_cuda_support() == 1)
        || (mpi->GPU_query_support && !mpi->GPU_query_support(0, &flag) && flag) || lists_cuda(mpi);
}

void acomm_mpi_ask(acomm_mpi *mpi, acomm_mpi_facts *out)
{
    char version[8192]; /* MPI_MAX_LIBRARY_VERSION_STRING of any of them */
    int length = 0, level = -1;
    *out = (acomm_mpi_facts){.family = mpi->family, .threads = -1, .fault_tolerant = mpi->Comm_get_failed && mpi->Comm_shrink,
                             .died = mpi->died};
    mpi->Get_library_version(version, &length);
    snprintf(out->version, sizeof out->version, "%.*s", (int)strcspn(version, "\n"), version);
    mpi->Get_version(&out->standard[0], &out->standard[1]);
    mpi->Initialized(&out->initialized);
    mpi->Finalized(&out->finalized);
    if (!out->initialized || out->finalized || mpi->Query_thread(&level))
        return;
    out->threads = level >= mpi->multiple ? 3 : mpi->multiple == 3 ? level : level / 1024 - 1;
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
        && (class == mpi->failed || class == mpi->failed_pending || class == mpi->revoked);
}

int acomm_mpi_begin(acomm_mpi *mpi, int initialized, char *text)
{
    int got = 0, rc = initialized ? 0 : mpi->Init_thread(NULL, NULL, mpi->multiple, &got);
    if (!rc)
        rc = pace_watch_end(mpi);
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
    return (int)mpi->handle_bytes;
}

int acomm_mpi_place(acomm_mpi *mpi, uintptr_t comm, int32_t *rank, int32_t *size)
{
    return mpi->Comm_rank(comm, rank) || mpi->Comm_size(comm, size) ? ACOMM_LIBRARY : ACOMM_OK;
}
