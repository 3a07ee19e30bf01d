/* CUDA's runtime and NCCL, whose calls do nothing at all: what is left is what we do around them. Test material. */
#include <stddef.h>
#include <stdint.h>

#define NOTHING(name) __attribute__((visibility("default"))) int name() { return 0; }

NOTHING(cudaSetDevice)
NOTHING(cudaGetLastError)
NOTHING(cudaFree)
NOTHING(cudaFreeHost)
NOTHING(cudaHostRegister)
NOTHING(cudaHostUnregister)
NOTHING(cudaMemcpyAsync)
NOTHING(cudaMemcpy2DAsync)
NOTHING(cudaStreamDestroy)
NOTHING(cudaStreamSynchronize)
NOTHING(cudaThreadExchangeStreamCaptureMode)
NOTHING(cudaStreamWaitEvent)
NOTHING(cudaEventRecord)
NOTHING(cudaEventQuery)
NOTHING(cudaEventDestroy)
NOTHING(cudaEventSynchronize)
NOTHING(ncclCommFinalize)
NOTHING(ncclCommDestroy)
NOTHING(ncclCommAbort)
NOTHING(ncclAllReduce)
NOTHING(ncclGroupStart)
NOTHING(ncclGroupEnd)
NOTHING(ncclGetUniqueId)

static uintptr_t next;

#define GIVES(name, value) __attribute__((visibility("default"))) int name(int *out) { *out = value; return 0; }
#define MAKES(name) __attribute__((visibility("default"))) int name(uintptr_t *out) { *out = next += 4096; return 0; }

GIVES(cudaRuntimeGetVersion, 13000)
GIVES(cudaDriverGetVersion, 13000)
GIVES(cudaGetDeviceCount, 1)
GIVES(cudaGetDevice, 0)
GIVES(ncclGetVersion, 23203)
MAKES(cudaMalloc)
MAKES(cudaHostAlloc)
MAKES(cudaStreamCreateWithPriority)
MAKES(cudaEventCreateWithFlags)
MAKES(ncclCommInitRankConfig)

__attribute__((visibility("default"))) int cudaStreamIsCapturing(uintptr_t stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

__attribute__((visibility("default"))) int ncclCommGetAsyncError(uintptr_t comm, int *error)
{
    (void)comm;
    *error = 0;
    return 0;
}

__attribute__((visibility("default"))) const char *ncclGetErrorString(int code)
{
    (void)code;
    return "none";
}
