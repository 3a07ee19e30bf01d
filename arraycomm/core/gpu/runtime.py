"""CUDA's runtime as Python calls; translates its error codes into exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.errors import DeviceError, DistBackendError, ResourceError
from .contexts import Contexts, On
from .library import load

if TYPE_CHECKING:
    from collections.abc import Iterable

TO_HOST, TO_DEVICE, ON_DEVICE = 2, 1, 3  # cudaMemcpyKind
_MEMORY, _NOT_READY = 2, 600  # cudaErrorMemoryAllocation, cudaErrorNotReady
_IMPLICIT = 906  # cudaErrorStreamCaptureImplicit: the legacy default stream, while one that waits for it is captured
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal: captures by other threads do not forbid this one anything
_NON_BLOCKING = 1  # cudaStreamNonBlocking: no order with the legacy default stream but by events
_HIGHEST = -100  # of a stream's priorities: CUDA takes the nearest that the device has
_UNTIMED = 2  # cudaEventDisableTiming
NO_DRIVER = "CUDA finds no driver for NVIDIA's GPUs (libcuda.so.1) here"
_VERSION = 12000  # CUDA version of the requested driver functions
_PORTABLE = 1  # cudaHostAllocPortable: pinned for all devices


class Runtime:
    """The loaded library. Streams and events are integers. Thread-safe.

    Raises ResourceError where memory is out, DistBackendError for every other error, an earlier asynchronous one included.
    """

    def __init__(self) -> None:
        self.ffi, self.lib, self.path = load()
        self._made = self.ffi.new  # cached: used often
        self._contexts: Contexts | None = None

    def check(self, code: int, doing: str) -> None:
        """Raises for an error code. doing: "copy 8 bytes to the host"."""
        if code == 0:
            return
        self.lib.cudaGetLastError()  # clears the error, so that another library's next call does not get it
        name, text = (self.ffi.string(function(code)).decode() for function in
                      (self.lib.cudaGetErrorName, self.lib.cudaGetErrorString))
        kind = ResourceError if code == _MEMORY else DistBackendError
        raise kind(f"CUDA failed to {doing}: {text} ({name}, {code})")

    def _integer(self, function: Any, doing: str) -> int:
        out = self._made("int *")
        self.check(function(out), doing)
        return int(out[0])

    def _handle(self, function: Any, doing: str, *arguments: Any) -> int:
        out = self._made("uintptr_t *")
        self.check(function(out, *arguments), doing)
        return int(out[0])

    # ---- devices ----

    def versions(self) -> tuple[int, int]:
        """Of the runtime and of CUDA that the driver supports (0: no driver), as 12080 for 12.8."""
        return (self._integer(self.lib.cudaRuntimeGetVersion, "report its version"),
                self._integer(self.lib.cudaDriverGetVersion, "report the driver's version"))

    def device_count(self) -> int:
        """Raises where there is no driver, or one that is too old."""
        return self._integer(self.lib.cudaGetDeviceCount, "count the devices")

    def device(self) -> int:
        """The calling thread's current device."""
        return self._integer(self.lib.cudaGetDevice, "report the current device")

    def bus_id(self, device: int) -> str:
        """The device's place on the PCI bus: equal for two processes that use the same GPU."""
        out = self._made("char[32]")
        self.check(self.lib.cudaDeviceGetPCIBusId(out, 32, device), f"report the bus of device {device}")
        return str(self.ffi.string(out).decode())

    def on(self, device: int) -> On:
        """A context in which this device is the calling thread's current one.

        All CUDA calls belong inside: a call that needs a device creates a context on the current one, even a query of another
        device's event.
        """
        return On(self, device)

    def contexts(self) -> Contexts:
        if self._contexts is None:  # a machine without a driver has none
            self._contexts = Contexts(self)
        return self._contexts

    def driver(self, name: str, kind: str) -> Any:
        """A function of the driver that the runtime has loaded, cast to this C type."""
        found, status = self._made("void **"), self._made("int *")
        newer = getattr(self.lib, "cudaGetDriverEntryPointByVersion", None)  # from 12.5 on, in 13 the only one
        code = (newer(name.encode(), found, _VERSION, 0, status) if newer else
                self.lib.cudaGetDriverEntryPoint(name.encode(), found, 0, status))
        self.check(code, f"find the driver's {name}")
        if not found[0]:
            raise DistBackendError(f"the driver of NVIDIA's GPUs has no {name}: CUDA 11.3 or later is needed")
        return self.ffi.cast(kind, found[0])

    def address(self, name: str) -> int:
        """The address of a function, for native code."""
        return int(self.ffi.cast("uintptr_t", self.ffi.addressof(self.lib, name)))

    def set_device(self, device: int) -> None:
        self.check(self.lib.cudaSetDevice(device), f"use device {device}")

    # ---- memory ----

    def malloc(self, nbytes: int, device: int) -> int:
        with self.on(device):
            return self._handle(self.lib.cudaMalloc, f"allocate {nbytes} bytes on device {device}", nbytes)

    def free(self, pointer: int) -> None:
        self.check(self.lib.cudaFree(pointer), "free memory of a device")

    def idle(self, device: int) -> None:
        """Blocks until all work on the device has completed. It uses cudaFree, which waits for that: cudaDeviceSynchronize
        would end a stream capture in progress."""
        with self.on(device):
            try:
                pointer = self.malloc(1, device)
            except ResourceError:  # out of memory, which may be the reason for freeing some
                self.check(self.lib.cudaDeviceSynchronize(), "run the enqueued work")
            else:
                self.free(pointer)

    def host_alloc(self, nbytes: int) -> int:
        """Pinned host memory."""
        return self._handle(self.lib.cudaHostAlloc, f"allocate {nbytes} bytes of pinned host memory", nbytes, _PORTABLE)

    def free_host(self, pointer: int) -> None:
        self.check(self.lib.cudaFreeHost(pointer), "free pinned host memory")

    def copy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self.check(self.lib.cudaMemcpyAsync(to, source, nbytes, kind, stream), f"copy {nbytes} bytes")

    def copy_rows(self, to: int, to_pitch: int, source: int, source_pitch: int, width: int, rows: int, kind: int,
                  stream: int) -> None:
        """`rows` runs of `width` bytes, which begin `pitch` bytes after each other."""
        self.check(self.lib.cudaMemcpy2DAsync(to, to_pitch, source, source_pitch, width, rows, kind, stream),
                   f"copy {rows} times {width} bytes")

    def pointer_type(self, pointer: int) -> tuple[int, int]:
        """(0 unregistered host, 1 host, 2 device, 3 managed memory; its device)."""
        out = self._made("struct cudaPointerAttributes *")
        self.check(self.lib.cudaPointerGetAttributes(out, pointer), "look up a pointer")
        return int(out.type), int(out.device)

    # ---- streams and events ----

    def stream(self, device: int, *, high_priority: bool = False) -> int:
        """A new stream, ordered with others by events only."""
        with self.on(device):
            return self._handle(self.lib.cudaStreamCreateWithPriority, f"make a stream on device {device}", _NON_BLOCKING,
                                _HIGHEST if high_priority else 0)

    def destroy_stream(self, stream: int) -> None:
        self.check(self.lib.cudaStreamDestroy(stream), "destroy a stream")

    def synchronize(self, stream: int, device: int) -> None:
        """Blocks without a timeout until all work on the stream has completed."""
        with self.on(device):  # a default stream is the current device's
            self.check(self.lib.cudaStreamSynchronize(stream), "run the enqueued work")

    def refuse_capture(self, streams: Iterable[int]) -> None:
        """DeviceError if a stream of the current device is being captured into a CUDA graph: a replay on one rank would not be
        matched by the peers."""
        for stream in streams:
            status = self._made("int *")
            code = self.lib.cudaStreamIsCapturing(stream, status)
            if code == _IMPLICIT or (code == 0 and status[0]):
                if code:
                    self.lib.cudaGetLastError()
                raise DeviceError("the array's stream is being captured into a CUDA graph, and a group's operations cannot be: "
                                  "call them outside of the capture")
            self.check(code, "report whether a stream is captured")

    def serve(self, device: int) -> None:
        """Prepares an internal thread: it creates no context on another device, and its queries do not disturb a capture."""
        if self.device() != device:
            self.set_device(device)
        self.check(self.lib.cudaThreadExchangeStreamCaptureMode(self._made("int *", _THREAD_LOCAL)), "set the capture mode")

    def event(self, device: int) -> int:
        with self.on(device):
            return self._handle(self.lib.cudaEventCreateWithFlags, f"make an event on device {device}", _UNTIMED)

    def destroy_event(self, event: int) -> None:
        """May be called before completion: CUDA then frees the event at completion."""
        self.check(self.lib.cudaEventDestroy(event), "destroy an event")

    def record(self, event: int, stream: int) -> None:
        """Records the event after all work enqueued on the stream so far."""
        self.check(self.lib.cudaEventRecord(event, stream), "record an event")

    def wait_event(self, stream: int, event: int) -> None:
        """Makes the stream's later work wait for the event. Does not block."""
        self.check(self.lib.cudaStreamWaitEvent(stream, event, 0), "make a stream wait for an event")

    def came(self, event: int) -> bool:
        """Whether the event has completed. Does not block. Raises the error of the work before it."""
        code = self.lib.cudaEventQuery(event)
        if code == _NOT_READY:
            self.lib.cudaGetLastError()  # cudaErrorNotReady is stored as the last error: clear it
            return False
        self.check(code, "run the enqueued work")
        return True

    def order(self, *, after: int, stream: int, device: int) -> None:
        """Makes later work on `stream` wait for all work enqueued on `after`."""
        with self.on(device):
            event = self._handle(self.lib.cudaEventCreateWithFlags, "make an event", _UNTIMED)
            try:
                self.record(event, after)
                self.wait_event(stream, event)
            finally:
                self.destroy_event(event)


_runtime: list[Runtime] = []


def runtime() -> Runtime:
    """The process's Runtime. Raises DistBackendError that names the missing part."""
    if not _runtime:
        _runtime.append(Runtime())
    return _runtime[0]


def unavailable() -> str | None:
    """None where there are devices to work with, otherwise one sentence."""
    try:
        cuda = runtime()
        if not cuda.versions()[1]:
            return NO_DRIVER
        return None if cuda.device_count() else "CUDA finds no device here"
    except DistBackendError as error:
        return str(error)
