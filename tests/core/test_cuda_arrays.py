"""Arrays on CUDA devices as Buffers and back: devices, streams, results. Over the stand-in for CUDA's runtime."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import arraycomm
from arraycomm.core.arrays import arrays as core_arrays
from arraycomm.core.arrays.arrays import landing
from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.dlpack import adopt, allocate, give_back, resolve, resolve_out, wrap
from arraycomm.core.arrays.joined import duplicate
from arraycomm.core.arrays.types import DType
from arraycomm.core.base.errors import DeviceError, DistBackendError, ImmutableOutput, ResourceError
from arraycomm.core.gpu import runtime as runtime_module
from arraycomm.core.gpu.lane import Lane
from arraycomm.core.gpu.memory import allocate_on
from arraycomm.core.gpu.runtime import runtime
from arraycomm.core.group import arguments
from arraycomm.distributed.operations.arguments import written
from tests.standin import arrays

from .arrays import DTYPES, numpy_dtype

FLOAT32 = int(DType.FLOAT32)


pytestmark = pytest.mark.usefixtures("cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.label)
def test_an_array_is_read(dtype: DType) -> None:
    x = arrays.asarray(np.ones((2, 3)), numpy_dtype(dtype), device=1)
    buffer = resolve(x)
    assert (buffer.device_type, buffer.device_index, buffer.address) == (2, 1, x.address)
    assert (buffer.shape, buffer.dtype, buffer.count) == ((2, 3), dtype, 6)
    assert not buffer.readonly
    assert x.asked == [1] and buffer.stream == 1  # the legacy default stream: nobody knows this library's own


def test_the_library_s_current_stream_is_found() -> None:
    with arrays.as_cupy() as kind:
        x = arrays.asarray([1.0, 2.0], "float32", kind=kind)
        other = arrays.cuda().make("cudaStreamCreateWithFlags", 1)
        assert resolve(x).stream == arrays.current_stream() and x.asked == [arrays.current_stream()]
        with arrays.use_stream(other):
            assert resolve(x).stream == other


def test_host_memory_has_no_stream() -> None:
    assert resolve(np.zeros(3)).stream == 0


def _late(device: int) -> tuple[arrays.Array, threading.Event]:
    """An array that is written after some time, and when it is."""
    x, written = arrays.empty((4,), "float32", device), threading.Event()
    arrays.compute(lambda: time.sleep(0.1), arrays.current_stream(device))
    x.fill([1, 2, 3, 4])
    arrays.compute(written.set, arrays.current_stream(device))
    return x, written


def test_the_default_stream_is_that_of_the_array_s_device() -> None:
    x, _ = _late(1)  # and device 0 is the current one
    assert wrap(duplicate(resolve(x)), x).numpy().tolist() == [1, 2, 3, 4]
    x, written = _late(1)
    wait = landing(x, resolve(x))
    assert wait is not None
    wait()
    assert written.is_set()


def test_rows_that_are_too_far_apart_for_cuda() -> None:
    """cudaMemcpy2DAsync takes a pitch of less than 2 GiB: blocks of as much go one by one."""
    class Copies:
        def __init__(self) -> None:
            self.made: list[tuple[int, ...]] = []

        def stream(self, device: int) -> int:
            return 7

        def copy(self, *what: int) -> None:
            self.made.append(what)

    copies: Any = Copies()
    pool: Any = None
    buffer = Buffer(1 << 40, 1 << 31, FLOAT32, 2, 0, False, (1 << 31,), None)
    Lane(copies, pool, 0).unpack(buffer, [(0, 8), (1 << 30, 8)], 4096)
    assert copies.made == [(1 << 40, 4096, 32, 1, 7), ((1 << 40) + (4 << 30), 4128, 32, 1, 7)]


def test_a_part_keeps_device_and_stream() -> None:
    buffer = resolve(arrays.asarray(np.arange(6), device=1)).part(2, (3,))
    assert (buffer.device_type, buffer.device_index, buffer.stream) == (2, 1, 1)
    assert "device 2:1" in repr(buffer)


def test_the_host_may_not_read_it() -> None:
    with pytest.raises(BufferError, match="device type 2 cannot be read by the host"):
        memoryview(resolve(arrays.asarray([1.0])))


def test_strided_arrays_are_packed_by_their_library() -> None:
    x = arrays.asarray(np.arange(12).reshape(3, 4), "int32")
    buffer = resolve(x[:, 1:3])
    assert buffer.readonly and buffer.shape == (3, 2) and buffer.device_type == 2
    arrays.cuda().call("cudaStreamSynchronize", arrays.current_stream())
    assert arrays.Array(buffer.address, (3, 2), "int32", 0).numpy().tolist() == [[1, 2], [5, 6], [9, 10]]


def test_outputs_are_checked() -> None:
    x = arrays.asarray(np.zeros((3, 4)))
    assert resolve_out(x).address == x.address
    with pytest.raises(ValueError, match="not C-contiguous"):
        resolve_out(x[:, 1:3])
    with pytest.raises(ImmutableOutput, match="read-only"):
        resolve_out(arrays.asarray([1.0], kind=arrays.Frozen))


def test_an_array_without_elements() -> None:
    buffer = resolve(arrays.asarray(np.zeros((0, 3))))
    assert (buffer.count, buffer.device_type) == (0, 2)


# ---- results ----


def destination(x: arrays.Array, shape: tuple[int, ...]) -> arguments.Destination:
    return arguments.destination(x, resolve(x), shape, None)


def test_a_result_comes_from_the_library_s_own_allocator() -> None:
    with arrays.as_cupy() as kind:
        x = arrays.asarray([1.0, 2.0], "float32", device=1, kind=kind)
        to = destination(x, (3, 2))
        made = to.array()
        assert type(made) is kind and made.shape == (3, 2) and made.dtype == np.float32
        assert (made.ordinal, made.address) == (1, to.buffer.address) and made is to.array()


def test_a_result_of_arrays_that_cannot_be_written_is_taken_over() -> None:
    x = arrays.asarray([1.0, 2.0], "float32", device=1, kind=arrays.Frozen)
    to = destination(x, (5,))
    assert (to.buffer.device_type, to.buffer.device_index) == (2, 1)
    written = np.arange(5, dtype=np.float32)
    arrays.Array(to.buffer.address, (5,), "float32", 1).fill(written).numpy()
    made = to.array()
    assert type(made) is arrays.Frozen and made.address == to.buffer.address
    assert np.array_equal(made.numpy(), written)


def test_the_memory_of_a_result_goes_with_its_array(cuda: arrays.Cuda) -> None:
    to = destination(arrays.asarray([1.0], kind=arrays.Frozen), (1000,))
    address, made = to.buffer.address, to.array()
    del to
    assert cuda.tell("standin_reach", address, 1)
    del made
    give_back()
    assert not cuda.tell("standin_reach", address, 1)


def test_an_array_goes_without_waiting_for_the_device(cuda: arrays.Cuda) -> None:
    """It may go while locks are held, in a garbage collection; what hangs on the device is ended by others."""
    go_on = threading.Event()
    made = destination(arrays.asarray([1.0], kind=arrays.Frozen), (1000,)).array()
    address = made.address
    arrays.compute(go_on.wait, runtime().stream(0))
    del made
    assert cuda.tell("standin_reach", address, 1)
    go_on.set()
    give_back()
    assert not cuda.tell("standin_reach", address, 1)


def test_memory_comes_and_goes_while_another_thread_captures(cuda: arrays.Cuda) -> None:
    """CUDA ends captures for the calls that do it, unless the thread says that it has nothing to do with them."""
    x = arrays.asarray([1.0], kind=arrays.Frozen)
    x.numpy()
    cuda.tell("standin_capture", cuda.make("cudaStreamCreateWithFlags", 1))
    made = destination(x, (1000,)).array()
    address = made.address
    assert cuda.tell("standin_reach", address, 1)
    del made
    give_back()
    assert not cuda.tell("standin_reach", address, 1)
    runtime().idle(0)


def test_a_captured_stream_is_refused_before_memory_is_asked_for(cuda: arrays.Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with arrays.as_cupy() as kind:
        for x in (arrays.asarray([1.0], kind=kind), arrays.asarray([1.0], kind=arrays.Frozen)):
            buffer = resolve(x)
            for name in ("core.arrays.arrays.empty_like", "core.gpu.memory.allocate_on"):
                monkeypatch.setattr(f"arraycomm.{name}", None)
            cuda.tell("standin_capture", buffer.stream)
            with pytest.raises(DeviceError, match="CUDA graph"):
                arguments.destination(x, buffer, (3,), None)


def test_memory_goes_without_a_context_on_another_device(cuda: arrays.Cuda) -> None:
    for device in (0, 1):  # the thread that gives it back has been on 0
        x = arrays.asarray([1.0], device=device, kind=arrays.Frozen)
        x.numpy()
        cuda.tell("standin_reset", 2)
        made = destination(x, (1000,)).array()
        del made
        give_back()
        assert cuda.tell("standin_contexts") == 1 << device


def test_other_errors_are_the_operation_s(cuda: arrays.Cuda) -> None:
    """Which tells its peers: they would wait for a rank that raised before."""
    with arrays.as_cupy() as kind:
        x = arrays.asarray([1.0], kind=kind)
        buffer = resolve(x)
        for function in (b"cudaGetDevice", b"cudaStreamIsCapturing"):
            cuda.tell("standin_fail", function, 1, 719)
            assert arguments.destination(x, buffer, (3,), None).buffer.count == 3


def test_a_strided_result_is_stored_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever thread sees the end: CuPy computes on the thread's current device."""
    devices: list[int] = []
    monkeypatch.setattr(arrays.Array, "__setitem__", lambda *_: devices.append(runtime().device()))
    _, settle = written("x", arrays.asarray(np.zeros((2, 3)), device=1).t())
    assert settle is not None
    thread = threading.Thread(target=settle)
    thread.start()
    thread.join(20)
    assert devices == [1]


def test_memory_that_is_about_to_be_free_is_waited_for(cuda: arrays.Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    x, go_on = arrays.asarray([1.0], kind=arrays.Frozen), threading.Event()
    made = destination(x, (100,)).array()
    arrays.compute(go_on.wait, runtime().stream(0))
    del made

    def ended_and_given_back() -> None:
        go_on.set()
        give_back()

    monkeypatch.setattr("arraycomm.core.gpu.memory.give_back", ended_and_given_back)
    cuda.tell("standin_fail", b"cudaMalloc", 1, 2)
    assert destination(x, (100,)).buffer.count == 100


def test_a_result_on_another_device_than_the_current_one() -> None:
    before = runtime().device()
    assert destination(arrays.asarray([1.0], device=1 - before, kind=arrays.Frozen), (2,)).buffer.device_index == 1 - before
    assert runtime().device() == before


def test_no_memory_for_a_result(cuda: arrays.Cuda) -> None:
    x = arrays.asarray([1.0], kind=arrays.Frozen)
    with pytest.raises(ResourceError, match=r"CUDA failed to allocate 9007199254740992 bytes on device 0: out of memory"):
        destination(x, (1 << 50,))
    assert destination(x, (100,)).buffer.count == 100


def test_who_takes_a_result_over_waits_for_its_stream() -> None:
    """The memory is written later, on a stream; the consumer's stream comes after that."""
    stream = runtime().stream(0)
    x = arrays.empty((4,), "float32")
    block = adopt((4,), FLOAT32, x.address, _nothing(), 0, 2, 0, stream)
    with arrays.use_stream(stream):
        x.fill([1, 2, 3, 4])
    taken = wrap(block, arrays.asarray([1.0], "float32"))
    assert taken.numpy().tolist() == [1, 2, 3, 4]


def _nothing() -> int:
    """The address of a function that gives nothing back: cudaGetLastError."""
    cuda = runtime()
    return int(cuda.ffi.cast("uintptr_t", cuda.ffi.addressof(cuda.lib, "cudaGetLastError")))


def test_an_empty_array_lies_where_its_model_does() -> None:
    """Also where nothing of the group is on GPUs: their arrays are staged."""
    with arraycomm.init() as group:
        made = group.empty((2, 3), "int16", like=arrays.asarray([1.0], device=1))
        assert (type(made), made.shape, made.dtype, made.ordinal) == (arrays.Array, (2, 3), np.dtype("int16"), 1)
        assert group.empty(0, like=made).shape == (0,)


# ---- the runtime ----


def test_an_error_names_what_failed(cuda: arrays.Cuda) -> None:
    cuda.tell("standin_fail", b"cudaEventRecord", 1, 400)
    with pytest.raises(DistBackendError, match=r"CUDA failed to record an event: .* \(cudaErrorInvalidResourceHandle, 400\)"):
        runtime().record(runtime().event(0), runtime().stream(0))


def test_an_event_comes_after_what_is_before_it() -> None:
    stream, event, go = runtime().stream(0), runtime().event(0), threading.Event()
    arrays.compute(lambda: go.wait(10), stream)
    runtime().record(event, stream)
    assert not runtime().came(event)
    go.set()
    runtime().synchronize(stream, 0)
    assert runtime().came(event)


def test_a_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", "/nowhere/libcudart.so")
    with pytest.raises(DistBackendError, match=r"need CUDA's runtime library, libcudart: .*/nowhere/libcudart.so.*install"):
        runtime()
    assert "libcudart" in (runtime_module.unavailable() or "")


def test_devices() -> None:
    assert runtime().device_count() == 2 and runtime_module.unavailable() is None
    assert runtime().bus_id(0) != runtime().bus_id(1)
    assert runtime().pointer_type(arrays.asarray([1.0], device=1).address) == (2, 1)


def test_no_framework_is_loaded_for_it() -> None:
    assert "cupy" not in sys.modules


def test_jax_imports_on_a_gpu_what_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fast path, over a stand-in for jaxlib's function. What lies elsewhere would be taken for the device's memory."""
    pytest.importorskip("jax")
    device = Mock(platform="gpu", local_hardware_id=1, get_stream_for_external_ready_events=lambda: 1)
    monkeypatch.setattr("jax._src.lib._jax.dlpack_managed_tensor_to_buffer", lambda *given: given[1:])
    monkeypatch.setattr(core_arrays, "_jax_entries", {})
    monkeypatch.setattr(core_arrays, "_works", lambda entry, probe: entry(probe) is not None)
    entry: Any = core_arrays.jax_entry(Mock(platform="tpu"))
    assert entry is None
    entry = core_arrays.jax_entry(device)
    there, beside = (allocate_on(Buffer(0, 0, FLOAT32, 2, index, False, (0,), None), (2, 3)) for index in (1, 0))
    assert entry(there) == (device, 1, None, 2)
    assert entry(beside) is None and entry(allocate((2, 3), FLOAT32)) is None
