"""A device as the calling thread's current one, for as long as it is needed.

By the driver's stack of contexts: cudaSetDevice cannot be taken back. To set the device that was current before makes a context
there, some 500 MB of its memory, also where the thread had none; such threads are the rule with JAX.
"""

from __future__ import annotations

from ..base.typed import TYPE_CHECKING

if TYPE_CHECKING:
    import types

    from .runtime import Runtime

_RELAXED = 2  # cudaStreamCaptureModeRelaxed


class Contexts:
    """The devices' primary contexts, which the runtime and all libraries use. They stay until the process ends."""

    def __init__(self, cuda: Runtime) -> None:
        self._cuda = cuda
        self._of: dict[int, int] = {}
        self._retain, self._push, self._pop = (
            cuda.driver("cuDevicePrimaryCtxRetain", "int (*)(uintptr_t *, int)"),
            cuda.driver("cuCtxPushCurrent", "int (*)(uintptr_t)"), cuda.driver("cuCtxPopCurrent", "int (*)(uintptr_t *)"))

    def push(self, device: int) -> None:
        if device not in self._of:
            context = self._cuda.ffi.new("uintptr_t *")
            self._cuda.check(self._retain(context, device), f"use device {device}")  # a CUdevice is the runtime's number
            self._of[device] = int(context[0])
        self._cuda.check(self._push(self._of[device]), f"use device {device}")

    def pop(self) -> int:
        """CUDA's code."""
        return int(self._pop(self._cuda.ffi.new("uintptr_t *")))


class On:
    """A class: a generator's context costs more than the calls. Who gives a stream of another device gets an error from CUDA.

    A capture into a CUDA graph that this or another thread has begun goes on: CUDA would end it for calls that could disturb it,
    to take memory or to look at an event, unless the thread says that it has nothing to do with it.
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
        self._cuda.lib.cudaThreadExchangeStreamCaptureMode(self._mode)  # as it was
        if self._pushed:
            code = self._cuda.contexts().pop()
            if error is None:
                self._cuda.check(code, "leave a device")
