"""A library of arrays on CUDA devices, over the stand-in for CUDA's runtime: what CuPy, torch and JAX are to arraycomm.

Its arrays cannot be read by the host (see cudart.c). They speak DLPack with streams, as its specification has it: the
consumer's stream is made to wait for ours. What is computed is computed later, on the current stream, so that who takes an
array without that order finds the old bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np

CUDA, HOST_TO_DEVICE = 2, 1
LEGACY, UNORDERED = 1, -1
_UNSIGNED = {1: np.uint8, 2: np.uint16}
# DLPack's codes of the types that NumPy does not export itself.
_CODES = {np.dtype(ml_dtypes.bfloat16): 4, np.dtype(ml_dtypes.float8_e3m4): 7, np.dtype(ml_dtypes.float8_e4m3): 8,
          np.dtype(ml_dtypes.float8_e4m3b11fnuz): 9, np.dtype(ml_dtypes.float8_e4m3fn): 10,
          np.dtype(ml_dtypes.float8_e4m3fnuz): 11, np.dtype(ml_dtypes.float8_e5m2): 12,
          np.dtype(ml_dtypes.float8_e5m2fnuz): 13, np.dtype(ml_dtypes.float8_e8m0fnu): 14}
_DTYPES: dict[int, np.dtype[Any]] = {code: dtype for dtype, code in _CODES.items()}
_LETTERS = {0: "i", 1: "u", 2: "f", 5: "c"}


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
                ("flags", ctypes.c_uint64), ("tensor", _Tensor)]


def _python(name: str, result: Any, *arguments: Any) -> Any:
    function = ctypes.pythonapi[name]  # an object of its own: other modules declare other types
    function.restype, function.argtypes = result, arguments
    return function


_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_VERSIONED, _USED = b"dltensor_versioned", b"used_dltensor_versioned"


class Cuda:
    """The stand-in, called directly. Codes are checked."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.standin_reach.restype = ctypes.c_void_p
        self._library.cudaGetErrorName.restype = ctypes.c_char_p

    def tell(self, name: str, *arguments: Any) -> Any:
        """A function that returns no code: standin_fail, standin_slow, standin_reset, standin_reach."""
        return getattr(self._library, name)(*[ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments])

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*[ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments])
        if code:
            raise RuntimeError(f"{name}: {self._library.cudaGetErrorName(code).decode()} ({code})")

    def make(self, name: str, *arguments: Any) -> int:
        out = ctypes.c_size_t()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    def order(self, after: int, stream: int) -> None:
        event = self.make("cudaEventCreateWithFlags", 2)
        self.call("cudaEventRecord", event, after)
        self.call("cudaStreamWaitEvent", stream, event, 0)
        self.call("cudaEventDestroy", event)


_cuda: list[Cuda] = []


def cuda() -> Cuda:
    if not _cuda:
        _cuda.append(Cuda(os.environ["ARRAYCOMM_CUDART_LIBRARY"]))
    return _cuda[0]


# ---- streams ----

_streams: dict[int, int] = {}  # current, by device


def current_stream(device: int = 0) -> int:
    """A stream of the library's own, unless use_stream() says otherwise: not the legacy default stream."""
    if device not in _streams:
        with on(device):
            _streams[device] = cuda().make("cudaStreamCreateWithFlags", 1)
    return _streams[device]


@contextmanager
def use_stream(stream: int, device: int = 0) -> Iterator[None]:
    before = current_stream(device)
    _streams[device] = stream
    try:
        yield
    finally:
        _streams[device] = before


@contextmanager
def on(device: int) -> Iterator[None]:
    """As JAX does: no context is made on the device that is current before."""
    context = cuda().make("standin_push", device)
    try:
        yield
    finally:
        cuda().call("standin_pop", context)


_enqueued: dict[int, Callable[[], object]] = {}
_ended: list[int] = []  # dropped by who enqueues: a stream that frees the last array of its own waits for itself
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _kernel(number: int) -> None:
    try:
        _enqueued[number]()
    finally:
        _ended.append(number)


def compute(function: Callable[[], object], stream: int) -> None:
    """Has the function called by the stream, in its order."""
    with contextlib.suppress(IndexError):  # another rank's thread may take the last one
        while True:
            del _enqueued[_ended.pop()]
    number = next(_numbers)
    _enqueued[number] = function
    cuda().call("standin_enqueue", stream, _kernel, number)


# ---- arrays ----


class Array:
    """On a device. `asked`: the streams that consumers gave to __dlpack__, in order."""

    immutable = False

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Any, device: int, strides: tuple[int, ...] | None = None,
                 owner: object = None) -> None:
        self.address, self.shape, self.dtype, self.ordinal, self.owner = address, shape, np.dtype(dtype), device, owner
        self.strides = strides
        self.asked: list[object] = []

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * int(self.dtype.itemsize)

    def _seen(self) -> np.ndarray[Any, Any]:
        """The bytes as the device has them now, in the array's shape."""
        size = max(1, self.nbytes) if self.strides is None else 1 + sum(
            (n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if n)
        reached = cuda().tell("standin_reach", self.address, size) if self.nbytes else None
        raw: Any = bytearray(16)
        if reached:
            raw = (ctypes.c_char * (size if self.strides is None else size + self.dtype.itemsize - 1)).from_address(reached)
            raw.keeps = self  # a capsule of it keeps the memory
        seen: np.ndarray[Any, Any] = np.ndarray(self.shape, self.dtype, raw, strides=self.strides)
        return seen

    def fill(self, values: Any) -> Array:
        """Writes the values, later, on the current stream."""
        given = np.array(values, self.dtype)

        def write() -> None:
            self._seen()[...] = given

        compute(write, current_stream(self.ordinal))
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values, when what is enqueued on the current stream has ended; other streams are not waited for."""
        cuda().call("cudaStreamSynchronize", current_stream(self.ordinal))
        return np.array(self._seen(), copy=True)

    def __getitem__(self, key: Any) -> Array:
        keys = key if isinstance(key, tuple) else (key,)
        if not any(one is ... for one in keys):
            keys = (*keys, ...)  # an array, of one element too
        return self._viewed(self._seen()[keys])

    def __setitem__(self, key: Any, values: Any) -> None:
        """Later, on the current stream."""
        given = values if isinstance(values, Array) else np.array(values, self.dtype)

        def write() -> None:
            self._seen()[key] = given._seen() if isinstance(given, Array) else given

        compute(write, current_stream(self.ordinal))

    def __float__(self) -> float:
        return float(self.numpy())

    def is_contiguous(self) -> bool:
        return self.strides is None

    def __len__(self) -> int:
        return self.shape[0]

    def sum(self) -> Any:
        return self.numpy().sum()

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        return self.t()

    def _viewed(self, part: np.ndarray[Any, Any]) -> Array:
        start = self._seen().__array_interface__["data"][0]
        offset = part.__array_interface__["data"][0] - start if part.size else 0
        packed = part.flags.c_contiguous
        return type(self)(self.address + offset, part.shape, self.dtype, self.ordinal, None if packed else part.strides, self)

    def t(self) -> Array:
        return self._viewed(self._seen().T)

    def expand(self, *shape: int) -> Array:
        return self._viewed(np.broadcast_to(self._seen(), shape))

    def copy(self, order: str = "C") -> Array:
        return self._computed(lambda values: values, Array)

    def __add__(self, number: float) -> Array:
        return self._computed(lambda values: values + number, type(self))

    def __mul__(self, number: float) -> Array:
        return self._computed(lambda values: values * number, type(self))

    def _computed(self, function: Callable[[np.ndarray[Any, Any]], Any], kind: type[Array]) -> Array:
        """Later, on the current stream."""
        made = empty(self.shape, self.dtype, self.ordinal, kind)

        def write() -> None:
            made._seen()[...] = function(self._seen())

        compute(write, current_stream(self.ordinal))
        return made

    def __array_namespace__(self) -> Any:
        return types.SimpleNamespace(from_dlpack=functools.partial(from_dlpack, kind=type(self)))

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.ordinal

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_more: object) -> object:
        self.asked.append(stream)
        ours, theirs = current_stream(self.ordinal), LEGACY if stream is None else stream
        if theirs not in (UNORDERED, ours):
            with on(self.ordinal):
                cuda().order(ours, theirs)
        view = self._seen()
        if self.dtype in _CODES:
            view = view.view(_UNSIGNED[self.dtype.itemsize])
        capsule = view.__dlpack__(max_version=(1, 0))
        managed = _Managed.from_address(_pointer(capsule, _VERSIONED))
        managed.tensor.data, managed.tensor.offset = self.address or None, 0
        managed.tensor.device[:] = CUDA, self.ordinal
        managed.tensor.code = _CODES.get(self.dtype, managed.tensor.code)
        managed.flags |= 1 if self.immutable else 0
        return capsule


class Frozen(Array):
    """An array that cannot be written into, as JAX's."""

    immutable = True


@contextmanager
def _relaxed() -> Iterator[None]:
    mode = ctypes.c_int(2)  # cudaStreamCaptureModeRelaxed; what was before comes back
    cuda().call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        cuda().call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))


def empty(shape: tuple[int, ...], dtype: Any, device: int = 0, kind: type[Array] = Array, *, relaxed: bool = True) -> Array:
    """relaxed: memory comes also while a stream is captured, as torch's does, and CuPy's does not."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    with on(device), _relaxed() if relaxed else nullcontext():
        address = cuda().make("cudaMalloc", nbytes) if nbytes else 0
    made = kind(address, tuple(shape), dtype, device)
    if address:
        weakref.finalize(made, _freeing().put, address).atexit = False
    return made


@functools.cache
def _freeing() -> queue.SimpleQueue[int]:
    """Of addresses, which a thread frees. CuPy, torch and JAX keep memory: none waits for the device when an array goes."""
    dropped: queue.SimpleQueue[int] = queue.SimpleQueue()

    def free() -> None:
        while True:
            cuda().call("standin_free", dropped.get())

    threading.Thread(target=free, daemon=True).start()
    return dropped


def asarray(values: Any, dtype: Any = None, device: int = 0, kind: type[Array] = Array) -> Array:
    """On the device, some time later."""
    given = np.asarray(values, dtype)
    return empty(given.shape, given.dtype, device, kind).fill(given)


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    if tensor.code in _DTYPES:
        return _DTYPES[tensor.code]
    return np.dtype(bool) if tensor.code == 6 else np.dtype(f"{_LETTERS[tensor.code]}{tensor.bits // 8}")


def from_dlpack(x: Any, kind: type[Array] = Frozen) -> Array:
    """Takes memory over; ours must not be read before the producer has written it."""
    device, ordinal = x.__dlpack_device__()
    assert device == CUDA
    capsule = x.__dlpack__(stream=current_stream(ordinal), max_version=(1, 0))
    managed = _Managed.from_address(_pointer(capsule, _VERSIONED))
    _rename(capsule, _USED)
    tensor = managed.tensor
    made = kind(tensor.data or 0, tuple(tensor.shape[: tensor.ndim]), _dtype(tensor), ordinal)
    weakref.finalize(made, managed.deleter, ctypes.addressof(managed)).atexit = False
    return made


@contextmanager
def as_cupy() -> Iterator[type[Array]]:
    """The library under CuPy's name, with what arraycomm asks of CuPy; gives its type of arrays."""
    module: Any = types.ModuleType("cupy")
    cupy_array = type("ndarray", (Array,), {"__module__": "cupy", "get": Array.numpy,
                                              "device": property(lambda self: on(self.ordinal))})

    def made(shape: tuple[int, ...], dtype: Any) -> Array:
        device = ctypes.c_int()
        cuda().call("cudaGetDevice", ctypes.byref(device))
        return empty(shape, dtype, device.value, cupy_array, relaxed=False)

    def stream(device: int = -1) -> Any:
        return types.SimpleNamespace(ptr=current_stream(max(device, 0)))

    module.ndarray, module.empty = cupy_array, made
    module.cuda = types.SimpleNamespace(get_current_stream=stream, is_available=lambda: False)  # no threads have streams here
    sys.modules["cupy"] = module
    try:
        yield cupy_array
    finally:
        sys.modules.pop("cupy", None)  # the process may be ending
