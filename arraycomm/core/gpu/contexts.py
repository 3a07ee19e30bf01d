"""A context manager that makes a device the calling thread's current one.

It uses the driver's stack of contexts, because cudaSetDevice cannot be undone: restoring the previous device creates a context
there (about 500 MB of device memory), also if the thread had none. With JAX most threads have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types

    from .runtime import Runtime

_RELAXED = 2  # cudaStreamCaptureModeRelaxed


class Contexts:
    """The devices' primary contexts, which the runtime and all libraries use. They are retained until the process ends."""

    def __init__(self, cuda: Runtime) -> None:
        self._cuda = cuda
        self._of: dict[int, int] = {}
        self._retain, self._push, self._pop = (
            cuda.driver("cuDevicePrimaryCtxRetain", "int (*)(uintptr_t *, int)"),
            cuda.driver("cuCtxPushCurrent", "int (*)(uintptr_t)"), cuda.driver("cuCtxPopCurrent", "int (*)(uintptr_t *)"))

    def entries(self) -> tuple[int, int]:
        """The addresses of cuCtxPushCurrent and cuCtxPopCurrent, for native code."""
        push, pop = (int(self._cuda.ffi.cast("uintptr_t", function)) for function in (self._push, self._pop))
        return push, pop

    def of(self, device: int) -> int:
        """The device's primary context."""
        if device not in self._of:
            context = self._cuda.ffi.new("uintptr_t *")
            self._cuda.check(self._retain(context, device), f"use device {device}")  # a CUdevice equals the runtime's ordinal
            self._of[device] = int(context[0])
        return self._of[device]

    def push(self, device: int) -> None:
        self._cuda.check(self._push(self.of(device)), f"use device {device}")

    def pop(self) -> int:
        """Restores the previous context; returns CUDA's code."""
        return int(self._pop(self._cuda.ffi.new("uintptr_t *")))


class On:
    """A class, because a generator's context manager is slower than the calls. CUDA raises for a stream of another device.

    A stream capture by this or another thread continues: without the relaxed capture mode, CUDA would invalidate it on unsafe
    calls, such as an allocation or an event query.
    """

    __slots__ = ("_cuda", "_device", "_mode", "_pushed")

    def __init__(self, cuda: Runtime, device: int) -> None:
        self._cuda, self._device = cuda, device

    def __enter__(self) -> None:
        self._pushed = self._cuda.device() != self._device
        if self._pushed:
            self._cuda.contexts().push(self._device)
        self._mode = self._cuda.ffi.new("int *", _RELAXED)
        self._cuda.lib.cudaThreadExchangeStreamCaptureMode(self._mode)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self._cuda.lib.cudaThreadExchangeStreamCaptureMode(self._mode)  # restores the mode
        if self._pushed:
            code = self._cuda.contexts().pop()
            if error is None:
                self._cuda.check(code, "leave a device")
