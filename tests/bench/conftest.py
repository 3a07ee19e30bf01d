"""A world of threads over NumPy: what the benchmark needs of a Group, with a switch to make it wrong."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

_REDUCTIONS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
               "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
_TIMEOUT = 20


class World:
    """The state shared by the ranks. `spoil` is applied to every result of a reduction."""

    def __init__(self, size: int, spoil: Callable[[np.ndarray[Any, Any]], None] | None) -> None:
        self.size, self.spoil = size, spoil
        self.barrier = threading.Barrier(size, timeout=_TIMEOUT)
        self.slots: list[Any] = [None] * size
        self.mail: dict[tuple[int, int], queue.Queue[Any]] = {
            (a, b): queue.Queue() for a in range(size) for b in range(size)
        }


class FakeGroup:
    """One rank. In a collective every rank stores a copy of its input, and then reads the copies that it needs."""

    backend = "fake"

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.size

    def barrier(self) -> None:
        self.world.barrier.wait()

    def _exchange(self, x: Any) -> list[Any]:
        self.world.slots[self.rank] = None if x is None else np.array(x)
        self.barrier()
        everything = list(self.world.slots)
        self.barrier()
        return everything

    def _reduced(self, x: Any, op: Any, ranks: int | None = None) -> Any:
        wide = [self._wide(entry) for entry in self._exchange(x)][:ranks] or [x]
        if op.name == "avg":
            total = np.add.reduce(wide)
            double = total.astype(complex) if total.dtype.kind == "c" else total  # NumPy multiplies complex numbers by 1/n
            result = double / len(wide) if total.dtype.kind in "fc" else total // len(wide)
        elif op.name == "premul_sum":
            result = np.add.reduce(wide) * op.factor
        else:
            result = _REDUCTIONS[op.name].reduce(wide)
        result = np.asarray(result).astype(x.dtype)
        if self.world.spoil is not None:
            self.world.spoil(result)
        return result

    @staticmethod
    def _wide(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x if x.dtype.isbuiltin == 1 and x.dtype.itemsize > 2 else x.astype(
            np.float32 if x.dtype.isbuiltin != 1 or x.dtype.kind == "f" else x.dtype
        )

    @staticmethod
    def _give(result: Any, out: Any) -> Any:
        if out is None:
            return result
        assert out.shape == result.shape and out.dtype == result.dtype
        out[...] = result
        return out

    def all_reduce(self, x: Any, op: Any, *, out: Any = None) -> Any:
        return self._give(self._reduced(x, op), out)

    def scan(self, x: Any, op: Any, *, out: Any = None) -> Any:
        return self._give(self._reduced(x, op, self.rank + 1), out)

    def exscan(self, x: Any, op: Any, *, out: Any = None) -> Any:
        return self._give(self._reduced(x, op, self.rank), out)

    def reduce(self, x: Any, root: int, op: Any, *, out: Any = None) -> Any:
        result = self._reduced(x, op)
        return self._give(result, out) if self.rank == root else None

    def broadcast(self, x: Any, root: int, *, out: Any = None) -> Any:
        return self._give(self._exchange(x)[root], out)

    def all_gather(self, x: Any, *, form: str = "concat", out: Any = None) -> Any:
        return self._give((np.stack if form == "stack" else np.concatenate)(self._exchange(x)), out)

    def gather(self, x: Any, root: int, *, out: Any = None) -> Any:
        result = np.concatenate(self._exchange(x))
        return self._give(result, out) if self.rank == root else None

    def scatter(self, x: Any, root: int, *, like: Any = None, out: Any = None) -> Any:
        return self._give(np.split(self._exchange(x)[root], self.size)[self.rank], out)

    def reduce_scatter(self, x: Any, op: Any, *, out: Any = None) -> Any:
        return self._give(np.split(self._reduced(x, op), self.size)[self.rank], out)

    def all_to_all(self, x: Any, *, out: Any = None) -> Any:
        parts = [np.split(entry, self.size)[self.rank] for entry in self._exchange(x)]
        return self._give(np.concatenate(parts), out)

    def isend(self, x: Any, dest: int) -> Any:
        self.world.mail[self.rank, dest].put(np.array(x))
        return SimpleNamespace(wait=lambda: None)

    def recv(self, source: int, *, like: Any = None, out: Any = None) -> Any:
        return SimpleNamespace(array=self._give(self.world.mail[source, self.rank].get(timeout=_TIMEOUT), out))


@pytest.fixture
def run_world() -> Callable[..., list[Any]]:
    """run_world(size, fn, spoil=None): fn(group) on every rank, their results in rank order."""

    def run(size: int, fn: Callable[[FakeGroup], Any], spoil: Any = None) -> list[Any]:
        world = World(size, spoil)

        def rank(number: int) -> Any:
            try:
                return fn(FakeGroup(world, number))
            except BaseException:
                world.barrier.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))

    return run
