"""What a contender's rank does for the driver: prepare a cell, check it, run batches of it, and sleep in between.

The driver listens on a Unix socket; every rank connects, says who it is, and then answers one command after another.
Between commands it blocks in recv(), so that it takes no processor from the contender whose turn it is.
"""

from __future__ import annotations

import abc
import socket
import sys
import traceback
from collections.abc import Callable
from itertools import repeat
from multiprocessing.connection import Connection
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv", "barrier")
DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")  # the size is the whole array's
ITEM = 4  # bytes of a float32
_WARMUP = 3
_PERIOD = 1021

Array = NDArray[Any]
Call = Callable[[], Any]


class Peer(abc.ABC):
    """One rank of a contender. Every array is float32, every call blocks until this rank's part is done."""

    rank: int
    size: int

    @classmethod
    def command(cls, python: str, program: list[str], size: int) -> list[list[str]]:
        """The processes to start: one per rank, which finds itself in RANK. A library with an mpirun overrides it."""
        return [[python, *program] for _ in range(size)]

    @abc.abstractmethod
    def call(self, operation: str, x: Array, out: Array) -> Call:
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

        def step() -> None:
            nonlocal sends
            (send if sends else receive)(other)
            sends = not sends

        return step


def _period(rank: int) -> Array:
    """A rank's input: whole numbers of which sums are exact, with a prime period that no piece size divides."""
    return ((np.arange(_PERIOD) * 3 + rank) % 13).astype(np.float32)


def _repeat(period: Array, count: int, start: int = 0) -> Array:
    return np.resize(np.roll(period, -(start % _PERIOD)), count)


class _Cell:
    """One operation and size on one rank."""

    def __init__(self, peer: Peer, operation: str, size_bytes: int) -> None:
        self.peer, self.operation = peer, operation
        share = max(1, size_bytes // ITEM // (peer.size if operation in DIVIDED else 1))
        whole = share * peer.size
        given, got = {"all_gather": (share, whole), "reduce_scatter": (whole, share),
                      "all_to_all": (whole, whole)}.get(operation, (share, share))  # fmt: skip
        self.share = share
        self.x = np.ones(given, np.float32)
        in_place = operation in ("all_reduce", "broadcast")
        self.out = self.x if in_place else np.ones(got, np.float32)
        self.call = peer.call(operation, self.x, self.out)

    def wrong(self) -> int:
        """Runs the call on known input: elements that came out wrong."""
        self.out[:] = -1
        self.x[:] = _repeat(_period(self.peer.rank), len(self.x))
        expected = self._expected()
        self.call()
        if self.operation == "sendrecv":
            self.call()  # the other direction: now every rank has received
        found = 0 if expected is None else int(np.count_nonzero(self.out != expected))
        self.x[:] = 0  # repeated sums stay what they are
        return found

    def _expected(self) -> Array | None:
        peer, share, everyone = self.peer, self.share, range(self.peer.size)
        start, partner = peer.rank * share, peer.rank ^ 1
        if self.operation == "barrier" or (self.operation == "sendrecv" and partner >= peer.size):
            return None
        if self.operation in ("all_reduce", "reduce_scatter"):
            begin = start if self.operation == "reduce_scatter" else 0
            return _repeat(np.sum([_period(rank) for rank in everyone], axis=0), share, begin)
        if self.operation in ("all_gather", "all_to_all"):
            begin = start if self.operation == "all_to_all" else 0
            return np.concatenate([_repeat(_period(rank), share, begin) for rank in everyone])
        return _repeat(_period(0 if self.operation == "broadcast" else partner), share)

    def run(self, calls: int) -> int:
        """Nanoseconds of `calls` back-to-back calls after a barrier."""
        call = self.call
        for _ in repeat(None, min(_WARMUP, calls)):
            call()
        self.peer.barrier()
        begin = perf_counter_ns()
        for _ in repeat(None, calls):
            call()
        return perf_counter_ns() - begin


def serve(make: Callable[[], Peer], path: str, name: str) -> None:
    """Connects to the driver and answers it until it says quit or is gone."""
    connection = _connect(path)
    try:
        peer = make()
        connection.send((name, peer.rank, None))
    except Exception:
        connection.send((name, -1, traceback.format_exc()))
        return
    try:
        _answer(peer, connection)
    except EOFError:
        print(f"{name}: the driver is gone", file=sys.stderr)
    peer.close()


def _connect(path: str) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return Connection(sock.detach())


def _answer(peer: Peer, connection: Connection) -> None:
    cell: _Cell | None = None
    while True:
        what, *arguments = connection.recv()
        if what == "quit":
            return
        try:
            result: int = 0
            if what == "prepare":
                cell = None  # frees the arrays of the cell before
                cell = _Cell(peer, *arguments)
                result = cell.wrong()
            elif what == "run" and cell is not None:
                result = cell.run(*arguments)
            elif what == "release":
                cell = None
            connection.send((result, None))
        except Exception:
            connection.send((-1, traceback.format_exc()))
