"""What this machine can do: copies, sums, round trips. Bandwidths in GB/s (10^9), times in microseconds.

NumPy's copy and sum are memcpy and a vectorised loop; sockets and process_vm_readv are the kernel's, called directly.
Only the round trip through shared memory needs a compiler, and is left out where there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("ping.c")
_MOMENT_S = 0.02
_TIMES = 7
_TRIPS, _TRIPS_S = 1000, 0.3
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LARGE = 256 << 20
_PIECE = 1 << 20
_ANSWER_S = 60.0

_libc = ctypes.CDLL(None, use_errno=True)


def cache_bytes(level: int) -> int:
    """Of the data cache of that level; a common size where the kernel does not say."""
    for index in _CACHES.glob("index*"):
        if int((index / "level").read_text()) == level and (index / "type").read_text().strip() != "Instruction":
            text = (index / "size").read_text().strip()
            return int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)
    return {2: 1 << 20, 3: 32 << 20}[level]


def rate(step: Callable[[], Any]) -> float:
    """Seconds a step in the best of some moments: what disturbs a machine is no limit of it."""
    step()
    begin = perf_counter()
    step()
    count = max(1, int(_MOMENT_S / max(perf_counter() - begin, 1e-7)))
    found = []
    for _ in range(_TIMES):
        begin = perf_counter()
        for _ in range(count):
            step()
        found.append((perf_counter() - begin) / count)
    return min(found)


def _trip(trips: Callable[[int], None]) -> float:
    """Microseconds a round trip at best, where trips(n) makes n: so many that the start is lost in them, and so few that
    now and then both processes run through them on a machine that has other things to do."""
    times: list[float] = []
    begin = perf_counter()
    while len(times) < _TIMES or perf_counter() - begin < _TRIPS_S:
        start = perf_counter()
        trips(_TRIPS)
        times.append((perf_counter() - start) / _TRIPS)
    return min(times) * 1e6


def memory(size: int, huge: bool | None = None) -> NDArray[np.float32]:
    """Touched memory, on huge pages or on 4 KiB ones where asked; None leaves it to NumPy and the kernel."""
    if huge is None:
        return np.full(size // 4, 0, np.float32)
    held = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages has small ones
        held.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(held, np.float32)
    array[:] = 0
    return array


def copies() -> dict[str, float]:
    """Of one process: bytes copied per second in each cache and in memory, and summed."""
    found = {}
    for place, size, huge in (("l2", cache_bytes(2) // 4, None), ("l3", cache_bytes(3) // 8, None),
                              ("memory", _LARGE, True), ("memory_4k", _LARGE, False)):
        a, b = memory(size, huge), memory(size, huge)
        found[f"copy_{place}"] = size / rate(lambda a=a, b=b: np.copyto(a, b)) / 1e9  # type: ignore[misc]
        found[f"sum_{place}"] = size / rate(lambda a=a, b=b: np.add(a, b, out=a)) / 1e9  # type: ignore[misc]
    return found


def _copies_of_one(connection: Connection) -> None:
    connection.send(None)
    connection.recv()
    connection.send(copies())


def copies_together(processes: int) -> dict[str, float]:
    """The mean of as many processes as there are processors, all at it: what a collective's ranks get."""
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(_process(_copies_of_one)) for _ in range(processes)]
        for other in others:
            _receive(other)
        for other in others:
            other.send(None)
        found = [_receive(other) for other in others]
    return {f"{name}_together": statistics.fmean(one[name] for one in found) for name in found[0]}


@contextlib.contextmanager
def _process(function: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """function(connection, *arguments) in another process, which ends with the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=function, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.kill()
        process.join()
        here.close()


def _receive(connection: Connection) -> Any:
    if not connection.poll(_ANSWER_S):
        raise TimeoutError(f"a measuring process did not answer within {_ANSWER_S:g} s")
    return connection.recv()


def call() -> float:
    """A call of a C function by the engine's module: the least that a collective costs from Python."""
    from arraycomm._engine import lib

    def hundred() -> None:
        for _ in range(100):
            lib.acomm_can_reduce(0, 0)

    return rate(hundred) * 1e4


def shared_memory_ping() -> float | None:
    """Round trip of a word between two polling processes; None where there is no C compiler or one processor."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or len(os.sched_getaffinity(0)) < 2:
        return None
    with tempfile.TemporaryDirectory(prefix="arraycomm-bench-") as scratch:
        library, shared = os.path.join(scratch, "ping.so"), os.path.join(scratch, "words")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, str(SOURCE)], check=True)
        with open(shared, "wb") as file:
            file.truncate(mmap.PAGESIZE)
        with _process(_answer_ping, library, shared) as other:
            _receive(other)

            done = 0

            def trips(count: int) -> None:
                nonlocal done
                turns, done = (done, done + count), done + count
                other.send(turns)
                _ping(library, shared, turns, first=True)

            return _trip(trips)


def _ping(library: str, shared: str, turns: tuple[int, int], first: bool) -> None:
    with open(shared, "r+b") as file, mmap.mmap(file.fileno(), 0) as words:
        view = (ctypes.c_char * len(words)).from_buffer(words)
        ends = [ctypes.c_void_p(ctypes.addressof(view) + offset) for offset in (0, 256)]
        failed = ctypes.CDLL(library).ping(*(ends if first else ends[::-1]), *map(ctypes.c_uint64, turns), int(first))
        del view, ends
    if failed:
        raise TimeoutError("the other process did not answer a ping")


def _answer_ping(connection: Connection, library: str, shared: str) -> None:
    connection.send(None)
    while True:
        _ping(library, shared, connection.recv(), first=False)


def _pair(family: socket.AddressFamily) -> tuple[socket.socket, socket.socket]:
    if family == socket.AF_UNIX:
        return socket.socketpair()
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    for sock in (here, there):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return here, there


def _exchange(sock: socket.socket, polled: bool, first: bool, count: int) -> None:
    """Eight bytes back and forth. Polled by recv() itself: an exception a try would cost more than the call."""
    word, number = ctypes.create_string_buffer(8), sock.fileno()
    flags = socket.MSG_DONTWAIT if polled else 0
    for _ in range(count):
        if first:
            _libc.send(number, word, 8, 0)
        while _libc.recv(number, word, 8, flags) != 8:
            if not polled:
                raise ConnectionError("the other measuring process is gone")
        if not first:
            _libc.send(number, word, 8, 0)


def _answer_socket(connection: Connection, sock: socket.socket) -> None:
    while True:
        what, amount = connection.recv()
        if what == "drain":
            room = memoryview(bytearray(_PIECE))
            while amount:
                amount -= sock.recv_into(room[: min(amount, _PIECE)])
            connection.send(None)
        else:
            _exchange(sock, what == "polled", False, amount)


def sockets(family: socket.AddressFamily, name: str) -> dict[str, float]:
    """Round trips of eight bytes, blocking and polled, and one-way bandwidth."""
    here, there = _pair(family)
    with here, _process(_answer_socket, there) as other:
        there.close()
        found = {}
        for what in ("blocking", "polled"):

            def trips(count: int, what: str = what) -> None:
                other.send((what, count))
                _exchange(here, what == "polled", True, count)

            found[f"{name}_ping_{what}"] = _trip(trips)
        piece = bytes(_PIECE)
        other.send(("drain", _LARGE))
        begin = perf_counter()
        for _ in range(_LARGE // _PIECE):
            here.sendall(piece)
        _receive(other)
        found[name] = _LARGE / (perf_counter() - begin) / 1e9
    return found


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _offer(connection: Connection, size: int) -> None:
    held = [memory(size, huge) for huge in (True, False)]
    connection.send((os.getpid(), [array.ctypes.data for array in held]))
    connection.recv()


def single_copy() -> dict[str, float | None]:
    """process_vm_readv of another process's memory; None where it is not permitted."""
    size = 16 << 20
    with _process(_offer, size) as other:
        pid, addresses = _receive(other)
        into = memory(size, True)

        def read(address: int, length: int) -> int:
            local, remote = _Span(into.ctypes.data, length), _Span(address, length)
            return int(_libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))

        _libc.process_vm_readv.restype = ctypes.c_ssize_t
        if read(addresses[0], 8) != 8:
            return {"single_copy": None, "single_copy_4k": None, "single_copy_call": None}
        return {"single_copy": size / rate(lambda: read(addresses[0], size)) / 1e9,
                "single_copy_4k": size / rate(lambda: read(addresses[1], size)) / 1e9,
                "single_copy_call": rate(lambda: read(addresses[0], 8)) * 1e6}


def _yield_for(connection: Connection, processor: int, seconds: float) -> None:
    os.sched_setaffinity(0, {processor})
    connection.send(None)
    connection.recv()
    connection.send(_yielded(seconds))


def _yielded(seconds: float) -> tuple[int, float]:
    """(times this process was switched away from, seconds)."""
    def switches() -> int:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_nvcsw + used.ru_nivcsw

    before, begin = switches(), perf_counter()
    while perf_counter() - begin < seconds:
        for _ in range(50):
            os.sched_yield()
    return switches() - before, perf_counter() - begin


def switch() -> float | None:
    """From one process to another that waits on the same processor, by sched_yield; None where it does not switch."""
    return min(filter(None, (_switch() for _ in range(3))), default=None)


def _switch() -> float | None:
    processor = min(os.sched_getaffinity(0))
    with _process(_yield_for, processor, 0.1) as one, _process(_yield_for, processor, 0.1) as two:
        for other in (one, two):
            _receive(other)
        for other in (one, two):
            other.send(None)
        found = [_receive(other) for other in (one, two)]
    count = sum(switched for switched, _ in found)
    return max(seconds for _, seconds in found) / count * 1e6 if count else None


def measure() -> dict[str, float | None]:
    """Everything, by name."""
    return {"call": call(), "shared_memory_ping": shared_memory_ping(), "switch": switch(), **copies(),
            **copies_together(len(os.sched_getaffinity(0))), **sockets(socket.AF_UNIX, "unix"),
            **sockets(socket.AF_INET, "tcp"), **single_copy()}
