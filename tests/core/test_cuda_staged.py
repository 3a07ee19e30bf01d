"""Staging, over a communicator of one rank that the test looks into: what is under way at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arraycomm.core.arrays.buffer import Buffer
from arraycomm.core.arrays.dlpack import resolve, resolve_out
from arraycomm.core.arrays.types import reduce_op
from arraycomm.core.gpu import pieces, pinned
from arraycomm.core.gpu.staged import Staged
from arraycomm.core.interface.kinds import KINDS
from tests.standin import arrays

_PIECES, _DOWN, _UP = 7, 2, 1


class _Host:
    """Calls `during(piece)` while it has a piece."""

    rank, size, name = 0, 1, "test"

    def __init__(self, during: Callable[[int], None]) -> None:
        self._during, self.calls = during, 0

    def collective(self, kind: object, src: Buffer, dst: Buffer, *_given: object, **_how: object) -> None:
        self._during(self.calls)
        self.calls += 1
        np.frombuffer(memoryview(dst), np.float32)[:] = np.frombuffer(memoryview(src), np.float32) * 2

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


def _until(reached: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end, what
        time.sleep(1e-4)


class _Pinning:
    """Takes note of what is pinned and freed."""

    def __init__(self) -> None:
        self.pinned, self.freed = list[int](), list[int]()

    def host_alloc(self, size: int) -> int:
        self.pinned.append(size)
        return len(self.pinned)

    def free_host(self, address: int) -> None:
        self.freed.append(address)


def test_pinned_memory_is_used_again_and_given_back_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    smallest = pinned._SMALLEST
    monkeypatch.setattr(pinned, "_KEPT_BYTES", 3 * smallest)
    cuda: Any = _Pinning()
    pool = pinned.Pool(cuda)
    for nbytes in (1, smallest, 0) * 5:
        pool.take(nbytes)  # and drops it
        pool.trim()
    assert (cuda.pinned, cuda.freed) == ([smallest], [])
    blocks = [pool.take(2 * smallest), pool.take(smallest), pool.take(smallest)]
    blocks.clear()
    pool.trim()
    assert (cuda.pinned, cuda.freed) == ([smallest, 2 * smallest, smallest], [2])  # the longest
    pool.take(smallest)
    pool.trim()
    assert len(cuda.pinned) == 3 and cuda.freed == [2]


def test_the_device_copies_while_the_host_works(cuda: arrays.Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the host has piece k the next one comes down and the one before goes up: it waits for both here."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2048)  # of which all_reduce takes half
    before = [cuda.tell("standin_copies", kind) for kind in range(3)]

    def during(piece: int) -> None:
        def ended(kind: int) -> int:
            return int(cuda.tell("standin_copies", kind) - before[kind])

        _until(lambda: ended(_DOWN) >= min(piece + 2, _PIECES), f"piece {piece + 1} does not come down meanwhile")
        _until(lambda: ended(_UP) >= piece, f"piece {piece - 1} does not go up meanwhile")

    values = np.arange(_PIECES * 256, dtype=np.float32)
    host: Any = _Host(during)
    x = arrays.asarray(values)
    staged = Staged(host, 60)
    staged.collective(KINDS["all_reduce"], resolve(x), resolve_out(x), reduce_op("sum"))
    assert host.calls == _PIECES and np.array_equal(x.numpy(), values * 2)
    staged.close()
