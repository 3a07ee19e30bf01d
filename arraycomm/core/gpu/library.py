"""libcudart: search paths, and the functions used. Bound by cffi at run time, nothing is compiled.

Pointers, streams and events are declared as integers, as in a Buffer: the ABIs of x86-64 and AArch64 pass both alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..base.shared_library import bind, loaded, packaged

# CUDA Runtime API; unchanged from CUDA 11 to 13, the attributes' tail aside.
DECLARATIONS = """
    struct cudaPointerAttributes { int type; int device; uintptr_t devicePointer; uintptr_t hostPointer; long reserved[8]; };
    int cudaRuntimeGetVersion(int *version);
    int cudaDriverGetVersion(int *version);
    int cudaGetDeviceCount(int *count);
    int cudaGetDevice(int *device);
    int cudaSetDevice(int device);
    int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status);
    int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                         int *status);
    int cudaDeviceSynchronize(void);
    int cudaDeviceGetPCIBusId(char *id, int length, int device);
    const char *cudaGetErrorName(int code);
    const char *cudaGetErrorString(int code);
    int cudaGetLastError(void);
    int cudaMalloc(uintptr_t *pointer, size_t bytes);
    int cudaFree(uintptr_t pointer);
    int cudaHostAlloc(uintptr_t *pointer, size_t bytes, unsigned flags);
    int cudaFreeHost(uintptr_t pointer);
    int cudaMemcpyAsync(uintptr_t to, uintptr_t from, size_t bytes, int kind, uintptr_t stream);
    int cudaMemcpy2DAsync(uintptr_t to, size_t to_pitch, uintptr_t from, size_t from_pitch, size_t width, size_t height,
                          int kind, uintptr_t stream);
    int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, uintptr_t pointer);
    int cudaStreamCreateWithPriority(uintptr_t *stream, unsigned flags, int priority);
    int cudaStreamDestroy(uintptr_t stream);
    int cudaStreamSynchronize(uintptr_t stream);
    int cudaStreamIsCapturing(uintptr_t stream, int *status);
    int cudaThreadExchangeStreamCaptureMode(int *mode);
    int cudaStreamWaitEvent(uintptr_t stream, uintptr_t event, unsigned flags);
    int cudaEventCreateWithFlags(uintptr_t *event, unsigned flags);
    int cudaEventRecord(uintptr_t event, uintptr_t stream);
    int cudaEventQuery(uintptr_t event);
    int cudaEventDestroy(uintptr_t event);
"""

VARIABLE = "ARRAYCOMM_CUDART_LIBRARY"
_MAJORS = (13, 12)  # of CUDA, the newest first
_INSTALL = ("install the package nvidia-cuda-runtime-cu12 (or nvidia-cuda-runtime, for CUDA 13), or set "
            f"{VARIABLE} to the path of libcudart.so")


def load() -> tuple[Any, Any, str]:
    """cffi's FFI, the library and its path. Raises DistBackendError that names the missing part."""
    return bind(DECLARATIONS, VARIABLE, _guesses(), "arrays on a GPU need CUDA's runtime library, libcudart", _INSTALL)


def _guesses() -> Iterator[str]:
    yield from loaded("libcudart")
    yield from packaged(*(f"{folder}/lib/libcudart.so.{major}"
                          for major, folder in zip(_MAJORS, ("cu13", "cuda_runtime"), strict=True)))
    yield from (f"libcudart.so.{major}" for major in _MAJORS)
    yield "libcudart.so"
