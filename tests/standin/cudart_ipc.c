/* Memory of other processes' devices in the stand-in for CUDA's runtime: a handle names the process and the file behind the memory. */
#include "cudart.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct handle {
    unsigned long process, descriptor, unused[6];
};

/* Stricter than CUDA, which takes any address within an allocation and means all of it. */
PUBLIC int cudaIpcGetMemHandle(struct handle *handle, uintptr_t pointer)
{
    int code = begin("cudaIpcGetMemHandle");
    if (code)
        return code;
    struct block *b = blocks;
    while (b && (uintptr_t)b->seen != pointer)
        b = b->next;
    if (!b || b->device < 0 || b->opened)
        return end(INVALID);
    *handle = (struct handle){.process = (unsigned long)getpid(), .descriptor = (unsigned long)b->fd};
    return end(OK);
}

PUBLIC int cudaIpcOpenMemHandle(uintptr_t *pointer, struct handle handle, unsigned flags)
{
    int code = begin("cudaIpcOpenMemHandle");
    if (code)
        return code;
    if (flags != 1)
        return end(INVALID);
    if (handle.process == (unsigned long)getpid())
        return end(SAME_PROCESS);
    for (struct block *b = blocks; b; b = b->next)
        if (b->opened && b->source[0] == handle.process && b->source[1] == handle.descriptor) {
            b->opened++;
            *pointer = (uintptr_t)b->seen;
            return end(OK);
        }
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%lu/fd/%lu", handle.process, handle.descriptor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct block *b = fd >= 0 && !fstat(fd, &status) ? map_file(fd, (size_t)status.st_size, current) : NULL;
    if (!b)
        return end(INVALID);
    b->opened = 1;
    b->source[0] = handle.process;
    b->source[1] = handle.descriptor;
    *pointer = (uintptr_t)b->seen;
    return end(OK);
}

PUBLIC int cudaIpcCloseMemHandle(uintptr_t pointer)
{
    int code = begin("cudaIpcCloseMemHandle");
    if (code)
        return code;
    for (struct block **at = &blocks; *at; at = &(*at)->next)
        if ((*at)->opened && (uintptr_t)(*at)->seen == pointer) {
            if (!--(*at)->opened)
                drop_block(at);
            return end(OK);
        }
    return end(INVALID);
}

/* Blocks of device memory of this process, of other processes', and pinned ones. */
PUBLIC void standin_memory(long counts[3])
{
    pthread_mutex_lock(&lock);
    memset(counts, 0, 3 * sizeof *counts);
    for (struct block *b = blocks; b; b = b->next)
        counts[b->device < 0 ? 2 : b->opened ? 1 : 0]++;
    pthread_mutex_unlock(&lock);
}
