"""`arraycomm-bench store`: requests per second of TCPStore, beside torch's (libuv) where torch is installed."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from arraycomm.core.bootstrap.store import TCPStore

from .arguments import at_least, numbers

_VALUE = "v" * 32
_CALLS = 8  # between two looks at the clock
# A set of torch's may return before it has come to the server, so it is also timed with a look at what it set.
OPERATIONS: dict[str, Callable[[Any, str], object]] = {
    "set": lambda store, key: store.set(key, _VALUE),
    "set, get": lambda store, key: (store.set(key, _VALUE), store.get(key)),
    "get": lambda store, key: store.get(key),
    "add": lambda store, key: store.add(key + "/n", 1),
    "wait": lambda store, key: store.wait([key]),
    "check": lambda store, key: store.check([key]),
}
Make = Callable[[int, bool], Any]  # (port, serves) -> a store


def _ours(port: int, serves: bool) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=serves, secret=b"secret of the benchmark")


def _torch() -> Make | None:
    try:
        from torch.distributed import TCPStore as Theirs
    except ImportError:
        return None
    return lambda port, serves: Theirs("127.0.0.1", port, is_master=serves, wait_for_workers=False, use_libuv=True)


def _serve(make: Make, pipe: Connection) -> None:
    store = make(0, True)
    pipe.send(store.port)
    pipe.recv()


def _client(number: int, makes: list[Make], ports: list[int], pipe: Connection) -> None:
    """Answers (contender, operation, seconds) with (calls, first, last), times in s of the monotonic clock."""
    stores = [make(port, False) for make, port in zip(makes, ports, strict=True)]
    key = f"key {number}"
    for store in stores:
        store.set(key, _VALUE)
    pipe.send(None)
    while (command := pipe.recv()) is not None:
        contender, operation, seconds = command
        store, call, calls = stores[contender], OPERATIONS[operation], 0
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            for _ in range(_CALLS):
                call(store, key)
            calls += _CALLS
        store.check([key])  # which comes after all sets
        pipe.send((calls, begin, time.monotonic()))


class _Clients:
    """Forked, so that torch is loaded once: 256 times would take minutes."""

    def __init__(self, count: int, makes: list[Make]) -> None:
        fork = multiprocessing.get_context("fork")
        self._fork: Any = fork
        self._servers = [self._start(_serve, make) for make in makes]
        ports = [pipe.recv() for pipe in self._servers]
        self._clients = [self._start(_client, number, makes, ports) for number in range(count)]
        for pipe in self._clients:
            pipe.recv()

    def _start(self, function: Callable[..., None], *arguments: Any) -> Connection:
        mine, theirs = self._fork.Pipe()
        self._fork.Process(target=function, args=(*arguments, theirs), daemon=True).start()
        theirs.close()
        return mine

    def rate(self, contender: int, operation: str, seconds: float) -> float:
        """Calls per second of all clients together, from the first one's start to the last one's end."""
        for pipe in self._clients:
            pipe.send((contender, operation, seconds))
        answers = [pipe.recv() for pipe in self._clients]
        return sum(calls for calls, _, _ in answers) / (max(a[2] for a in answers) - min(a[1] for a in answers))

    def close(self) -> None:
        for pipe in [*self._clients, *self._servers]:
            pipe.send(None)


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="arraycomm-bench store", description=__doc__)
    parser.add_argument("--clients", type=numbers(1), default=(1, 16, 256), help="numbers of client processes (1,16,256)")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="rounds, of which the median counts (5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (0.5)")
    given = parser.parse_args(arguments)
    theirs = _torch()
    makes: list[Make] = [_ours, *([theirs] if theirs else [])]
    print(f"# calls per second{'; ratio: ours to torch, median (lowest to highest)' if theirs else '; torch is not installed'}")
    for count in given.clients:
        clients = _Clients(count, makes)
        rates: dict[str, list[list[float]]] = {operation: [] for operation in OPERATIONS}
        for turn in range(given.rounds):
            for operation, rounds in rates.items():
                order = range(len(makes)) if turn % 2 == 0 else reversed(range(len(makes)))
                found = {who: clients.rate(who, operation, given.seconds) for who in order}
                rounds.append([found[who] for who in range(len(makes))])
        clients.close()
        for operation, rounds in rates.items():
            print(_row(count, operation, rounds), flush=True)
    return 0


def _row(count: int, operation: str, rounds: list[list[float]]) -> str:
    medians = "".join(f"{median(column):12.0f}" for column in zip(*rounds, strict=True))
    ratios = sorted(row[0] / row[-1] for row in rounds)
    ratio = f"   {median(ratios):6.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if len(rounds[0]) > 1 else ""
    return f"{count:5} clients  {operation:10}{medians}{ratio}"
