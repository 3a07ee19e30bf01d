/* Devices of the stand-in for CUDA's runtime, and their contexts: a call that needs one makes one on the current device, as in CUDA. */
#include "cudart.h"
#include <stdio.h>
#include <string.h>

int devices = 1;
unsigned long contexts;
__thread int current;
static __thread int stack[16], depth; /* devices that were current before contexts were pushed */

static int give(const char *function, int *out, int value)
{
    int code = begin_without_context(function);
    if (code)
        return code;
    *out = value;
    return end(OK);
}

PUBLIC int cudaRuntimeGetVersion(int *version)
{
    return give("cudaRuntimeGetVersion", version, 12090);
}

PUBLIC int cudaDriverGetVersion(int *version)
{
    return give("cudaDriverGetVersion", version, devices ? 13000 : 0);
}

PUBLIC int cudaGetDeviceCount(int *count)
{
    return give("cudaGetDeviceCount", count, devices);
}

PUBLIC int cudaGetDevice(int *device)
{
    return give("cudaGetDevice", device, current);
}

PUBLIC int cudaSetDevice(int device)
{
    int code = begin_without_context("cudaSetDevice");
    if (code)
        return code;
    if (device < 0 || device >= devices)
        return end(BAD_DEVICE);
    current = device;
    contexts |= 1ul << device; /* since CUDA 12 */
    return end(OK);
}

PUBLIC int cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    int code = begin_without_context("cudaDeviceGetPCIBusId");
    if (code)
        return code;
    snprintf(id, (size_t)length, "0000:%02X:00.0", device + 1);
    return end(device < devices ? OK : BAD_DEVICE);
}

/* ---- the driver's functions ---- */

static int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < devices ? OK : BAD_DEVICE;
}

static int cuDevicePrimaryCtxRetain(uintptr_t *context, int device)
{
    int code = begin_without_context("cuDevicePrimaryCtxRetain");
    if (code)
        return code;
    contexts |= 1ul << device;
    *context = 0xC0 + (uintptr_t)device;
    return end(OK);
}

static int cuCtxPushCurrent(uintptr_t context)
{
    int code = begin_without_context("cuCtxPushCurrent");
    if (code)
        return code;
    if (depth == sizeof stack / sizeof *stack)
        return end(INVALID);
    stack[depth++] = current;
    current = (int)(context - 0xC0);
    return end(OK);
}

static int cuCtxPopCurrent(uintptr_t *context)
{
    int code = begin_without_context("cuCtxPopCurrent");
    if (code)
        return code;
    if (!depth)
        return end(INVALID);
    *context = 0xC0 + (uintptr_t)current;
    current = stack[--depth];
    return end(OK);
}

PUBLIC int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status)
{
    static const struct { const char *name; void *function; } known[] = {
        {"cuDeviceGet", cuDeviceGet}, {"cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain},
        {"cuCtxPushCurrent", cuCtxPushCurrent}, {"cuCtxPopCurrent", cuCtxPopCurrent}};
    (void)flags;
    *function = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, symbol))
            *function = known[i].function;
    *status = !*function; /* cudaDriverEntryPointSymbolNotFound */
    return OK;
}

PUBLIC int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                            int *status)
{
    (void)version;
    return cudaGetDriverEntryPoint(symbol, function, flags, status);
}

/* Bit d: device d has a context since the last standin_reset. */
PUBLIC unsigned long standin_contexts(void)
{
    return contexts;
}

/* What arrays.on() does, as a library that works with the driver's contexts. */
PUBLIC int standin_push(uintptr_t *context, size_t device)
{
    int code = cuDevicePrimaryCtxRetain(context, (int)device);
    return code ? code : cuCtxPushCurrent(*context);
}

PUBLIC int standin_pop(uintptr_t context)
{
    return cuCtxPopCurrent(&context);
}
