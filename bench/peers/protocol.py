"""The rank's side of the driver's protocol: a contender's rank prepares a cell, checks it, runs batches, and sleeps in between.

The driver listens on a Unix socket; every rank connects, sends its number, and then answers one command after another.
Between commands it blocks in recv(), outside its library, so that it uses no CPU time during another contender's turn.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import json
import mmap
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import repeat
from multiprocessing.connection import Connection
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collectives import COLLECTIVES, Case
from ..data import Source, count_wrong, values

_COMMON = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv", "barrier")
OPERATIONS = (*_COMMON, "scan", "exscan")
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
IN_PLACE = ("all_reduce", "broadcast")
LIFELINE, _CONTROL = "lifeline", "control"  # in the contender's directory: a named pipe and a Unix socket
_WARMUP = 3
_MAPPED_FROM, _HUGE_FROM, _HUGE_PAGE = 128 << 10, 4 << 20, 2 << 20  # bytes: malloc's, NumPy's
_BEHIND = 16

Call = Callable[[], Any]


class Missing(Exception):
    """The contender cannot run under this interpreter; the text says what to install."""


class Peer(abc.ABC):
    """One rank of a contender. Every call blocks until this rank's part is done."""

    operations: tuple[str, ...] = _COMMON  # what the library offers
    dtypes: tuple[str, ...] = ("float32",)
    functional = False  # arrays are immutable: a call returns its result, and `out` is None

    rank: int
    size: int

    def __init__(self, name: str) -> None:
        """Joins the other ranks. name: of the contender."""
        self.name = name

    @classmethod
    @abc.abstractmethod
    def version(cls, name: str) -> str:
        """The installed version, without joining a world. Raises ImportError or Missing."""

    @classmethod
    def remedy(cls, name: str) -> str:
        """How to install it, in a few words."""
        return f"pip install {name}"

    @classmethod
    def network(cls, name: str) -> bool:
        """Whether it moves data through sockets, so that arraycomm over TCP is compared with it."""
        return False

    @classmethod
    def command(cls, name: str, python: str, program: list[str], size: int) -> list[list[str]]:
        """The processes to start: one per rank, which finds itself in RANK. A library with an mpirun overrides it."""
        return [[python, *program] for _ in range(size)]

    @classmethod
    def environ(cls, name: str, python: str, size: int, directory: str) -> dict[str, str]:
        """Variables of the processes of `command`. directory: private, for files that the library wants."""
        return {}

    @classmethod
    def spread(cls, name: str, addresses: list[str], interface: str, directory: str) -> dict[str, str]:
        """The variables for ranks on several hosts: addresses of the ranks, and the interface that has them."""
        raise Missing("it is not started over several hosts here")

    @classmethod
    def clear(cls, name: str, since: float) -> None:
        """Removes what killed ranks have left outside their directory. since: when they began, in seconds since 1970."""
        return None

    def place(self, values: NDArray[np.float32], dtype: str) -> Any:
        """An array of the library with these values, which are exact in dtype; it may share their memory."""
        return values

    def values(self, array: Any) -> NDArray[np.float32]:
        """What an array of `place`, or a result, holds."""
        return np.asarray(array, np.float32)

    @abc.abstractmethod
    def call(self, operation: str, x: Any, out: Any) -> Call:
        """What is timed: from x into out, which is x itself where the operation is in place (all_reduce, broadcast).

        broadcast's root is 0. sendrecv: the call sends or receives, see `one_way`.
        """

    @abc.abstractmethod
    def barrier(self) -> None: ...
    @abc.abstractmethod
    def close(self) -> None: ...

    def one_way(self, send: Callable[[int], Any], receive: Callable[[int], Any]) -> Call:
        """Messages between ranks 2k and 2k + 1 that change direction from call to call; a last odd rank looks on."""
        other = self.rank ^ 1
        if other >= self.size:
            return lambda: None
        sends = self.rank % 2 == 0

        def step() -> Any:
            nonlocal sends
            result = (send if sends else receive)(other)
            sends = not sends
            return result

        return step

    @staticmethod
    def in_place(program: Callable[[Any], Any], x: Any) -> Call:
        """Calls of a program whose result reuses its argument's memory: the argument is the previous call's result."""
        def step() -> Any:
            nonlocal x
            x = program(x)
            return x

        return step


def sources(operation: str, case: Case) -> list[Source]:
    """The origin of a rank's result; empty if it has no result. sendrecv is `one_way` here."""
    other = case.rank ^ 1
    if operation == "sendrecv":
        return [Source((other,), 0, case.count)] if other < case.size else []
    return COLLECTIVES[operation].sources(case) or []


class Cell:
    """One operation, size and dtype on one rank."""

    def __init__(self, peer: Peer, operation: str, size_bytes: int, dtype: str, writes: bool = False) -> None:
        self.peer, self.operation, self.dtype = peer, operation, dtype
        self.writes = writes and operation != "barrier"
        if self.writes and peer.functional:
            raise RuntimeError("--write: arrays of this library cannot be written")
        collective = COLLECTIVES[operation]
        count = max(1, size_bytes // ITEM_BYTES[dtype] // (peer.size if collective.divided else 1))
        # All of float32's inputs and their sums are exact in bfloat16.
        self.case = Case(peer.rank, peer.size, count, "float32", "sum" if collective.reduces else "", 0)
        self.given = collective.given(self.case) or count
        self.sources = sources(operation, self.case)
        self.got = sum(source.length for source in self.sources) or count
        self._call: Call | None = None

    def wrong(self) -> int:
        """Runs the operation on known input: how many elements came out wrong."""
        case = self.case
        out, call = self._make(values(case.dtype, case.op, case.rank, case.size, 0, self.given), -1)
        result = call()
        if self.operation == "sendrecv":
            # The other direction: now every rank has received.
            later = call()
            result = later if self.peer.rank % 2 == 0 else result
        if not self.sources:
            return 0
        got = self.peer.values(result if self.peer.functional else out)
        return count_wrong(got, self.sources, case.dtype, case.op, case.size)

    def arm(self) -> None:
        """Makes the arrays that are timed: of zeros, so that repeated sums stay what they are."""
        call = self._call = self._make(_full(self.given, 0), 0)[1]
        if self.writes:
            self._call = lambda: (self._input.fill(0), call())

    def _make(self, values: NDArray[np.float32], fill: float) -> tuple[Any, Call]:
        x = self._input = self.peer.place(values, self.dtype)
        if self.peer.functional:
            return None, self.peer.call(self.operation, x, None)
        in_place = self.operation in IN_PLACE
        out = x if in_place else self.peer.place(_full(self.got, fill), self.dtype)
        return out, self.peer.call(self.operation, x, out)

    def run(self, calls: int) -> int:
        """Nanoseconds of `calls` back-to-back calls after a barrier."""
        call = self._ready(calls)
        begin = perf_counter_ns()
        for _ in repeat(None, calls):
            call()
        return perf_counter_ns() - begin

    def singles(self, calls: int) -> list[int]:
        """The same, by the call: a clock costs some 0.1 us each time."""
        call = self._ready(calls)
        marks = [perf_counter_ns()]
        for _ in repeat(None, calls):
            call()
            marks.append(perf_counter_ns())
        return [end - begin for begin, end in zip(marks, marks[1:], strict=False)]

    def _ready(self, calls: int) -> Call:
        if self._call is None:
            raise RuntimeError("run before arm")
        for _ in repeat(None, min(_WARMUP, calls)):
            self._call()
        self.peer.barrier()
        return self._call


def _full(count: int, fill: float) -> NDArray[np.float32]:
    """Memory that every contender gets alike: on huge pages from 4 MiB on, where NumPy asks for them too, and shorter ones on
    small pages, 16 bytes behind the beginning of one, as malloc hands out what it maps.

    NumPy's own lies on huge pages or on small ones by what the process has freed before, and a copy takes twice the time
    on small ones: contenders would differ by that.
    """
    size = count * 4
    if size < _MAPPED_FROM:
        return np.full(count, fill, np.float32)  # np.zeros would hand out one page of zeros over and over
    huge = size >= _HUGE_FROM
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    offset = -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE_PAGE if huge else _BEHIND
    array = np.frombuffer(memory, np.float32, count, offset)
    array.fill(fill)
    return array


def probe(kind: type[Peer], name: str) -> None:
    """Prints {"version": ...} or {"missing": ...} as the last line."""
    try:
        found = {"version": kind.version(name)}
    except ImportError as error:
        found = {"missing": f"{str(error).splitlines()[0]}: {kind.remedy(name)}"}
    except Missing as error:
        found = {"missing": str(error)}
    print("\n" + json.dumps(found), flush=True)


def serve(kind: Callable[[str], Peer], directory: str, name: str) -> None:
    """Connects to the driver and answers its commands until it sends quit or has gone."""
    _tie(os.path.join(directory, LIFELINE))
    connection = _connect(directory)
    try:
        peer = kind(name)
        connection.send((peer.rank, None))
    except BaseException:
        connection.send((-1, traceback.format_exc()))
        raise
    _answer(peer, connection)
    peer.close()


def _tie(path: str) -> None:
    """Has the kernel kill this process as soon as the driver, the pipe's only writer, has closed the pipe or died.

    A rank may hang in its library, below a library's mpirun: only this method needs neither a thread nor the GIL.
    """
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):  # raised if there is a writer; from here on only its end raises the signal
        os.read(reader, 1)
        sys.exit("the driver has ended")


@contextlib.contextmanager
def control(directory: str) -> Iterator[str]:
    """A path of the contender's Unix socket that has few bytes wherever its directory is: a socket's must have less than 108."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{_CONTROL}"
    finally:
        os.close(folder)


def free_ports(count: int) -> list[int]:
    """Of TCP, on this host."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in socks]


def _connect(directory: str) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with control(directory) as path:
        sock.connect(path)
    return Connection(sock.detach())


def _answer(peer: Peer, connection: Connection) -> None:
    cell: Cell | None = None
    while True:
        try:
            what, *arguments = connection.recv()
        except EOFError:
            return
        if what == "quit":
            return
        try:
            result: Any = 0
            if what in ("prepare", "arm"):
                cell = None  # frees the arrays of the cell before
                cell = Cell(peer, *arguments)
                result = cell.wrong() if what == "prepare" else 0
                cell.arm()
            elif what == "release":
                cell = None
            elif cell is None:
                raise RuntimeError(f"{what} before prepare")
            else:
                result = getattr(cell, what)(*arguments)
            connection.send((result, None))
        except Exception:
            connection.send((-1, traceback.format_exc()))
