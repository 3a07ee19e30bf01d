/* XLA makes a communicator by MPI_Comm_split(world, first device, own rank), and calls it on the members only. So the call has
 * neither the other members nor their number: {0, 1} and {0, 2} are equal calls on rank 0. They are in an object of the caller, a
 * xla::cpu::CpuCliqueKey, which is found as a conservative garbage collector finds objects: the nearest word, in a register or on
 * the stack, that points to an object of this type. The type is known by its run-time type information, the content by color and
 * key. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "mpi_names.h"

static const char clique_type[] = "N3xla3cpu12CpuCliqueKeyE";

/* As the compiler lays it out: the pointer to the virtual functions, then a std::vector of the devices, which are 32-bit ints. */
struct clique_key {
    uintptr_t type;
    uintptr_t first, last, limit;
};

struct clique_search {
    int color, key, room;
    int32_t *devices;
    const void *library; /* that calls */
    uintptr_t type;      /* once it has been found */
    int pipe[2];         /* see clique_read() */
};

/* Where the library begins that has this address; NULL: none has. */
static const void *clique_library(uintptr_t address)
{
    Dl_info about;
    return dladdr((const void *)address, &about) ? about.dli_fbase : NULL;
}

/* A value may only look like a pointer: the kernel reads through it, and returns an error for unmapped memory. */
static bool clique_read(const struct clique_search *search, uintptr_t address, void *to, size_t bytes)
{
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < 4096 ? bytes - done : 4096;
        ssize_t came = write(search->pipe[1], (const void *)(address + done), part);
        if (came > 0 && read(search->pipe[0], (char *)to + done, (size_t)came) != came)
            return false;
        if (came != (ssize_t)part)
            return false;
    }
    return true;
}

static bool clique_has_type(struct clique_search *search, uintptr_t type)
{
    uintptr_t information, name;
    char letters[sizeof clique_type];
    if (search->type || type % sizeof type || clique_library(type) != search->library)
        return type && type == search->type;
    if (!clique_read(search, type - sizeof type, &information, sizeof information)
        || !clique_read(search, information + sizeof name, &name, sizeof name)
        || !clique_read(search, name, letters, sizeof letters) || memcmp(letters, clique_type, sizeof letters))
        return false;
    search->type = type;
    return true;
}

static int clique_devices(struct clique_search *search, const struct clique_key *object)
{
    uintptr_t bytes = object->last - object->first, count = bytes / sizeof *search->devices;
    if (!clique_has_type(search, object->type) || object->first > object->last || object->last > object->limit
        || bytes % sizeof *search->devices || count > (uintptr_t)search->room || search->key < 0 || (uintptr_t)search->key >= count
        || !clique_read(search, object->first, search->devices, bytes) || search->devices[0] != search->color)
        return 0;
    return (int)count;
}

static uintptr_t clique_stack_end(void)
{
    pthread_attr_t about;
    void *start = NULL;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &about))
        return 0;
    pthread_attr_getstack(&about, &start, &bytes);
    pthread_attr_destroy(&about);
    return (uintptr_t)start + bytes;
}

__attribute__((noinline)) static int clique_scan(struct clique_search *search)
{
    uintptr_t end = clique_stack_end();
    for (uintptr_t at = (uintptr_t)__builtin_frame_address(0); at + sizeof at <= end; at += sizeof at) {
        uintptr_t word = *(const uintptr_t *)at;
        struct clique_key object;
        if (!word || word % sizeof word || !clique_read(search, word, &object, sizeof object))
            continue;
        int count = clique_devices(search, &object);
        if (count)
            return count;
    }
    return 0;
}

int mpi_clique_find(int color, int key, const void *caller, int32_t *devices, int room)
{
    struct clique_search search = {.color = color, .key = key, .room = room, .devices = devices,
                                   .library = clique_library((uintptr_t)caller)};
    __builtin_unwind_init(); /* the callers' registers are on the stack from here on */
    if (!search.library || pipe2(search.pipe, O_CLOEXEC))
        return 0;
    int count = clique_scan(&search);
    close(search.pipe[0]);
    close(search.pipe[1]);
    return count;
}
