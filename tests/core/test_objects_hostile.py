"""Objects of a rank that sends no objects: whoever reads them hears which rank it was, and the group goes on."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm.core.arrays import codec
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.group import exchange, objects

from ..threads import at_once

NONE = b"\xc1 is never used in msgpack"
LENGTHS = [-1, -(2**63), codec.LONGEST + 1, 2**63 - 1]


@pytest.fixture(autouse=True)
def bytes_go_as_they_are(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    honest = objects._encode
    monkeypatch.setattr(objects, "_encode", lambda obj, pickle: obj if obj == NONE else honest(obj, pickle))
    yield


def _on_ranks(work: Callable[[Any], None]) -> None:
    store = HashStore()

    def run(rank: int) -> None:
        with arraycomm.init(rank=rank, world_size=2, store=store, timeout=20.0) as group:
            work(group)
            assert group.all_reduce(np.ones(1))[0] == 2

    at_once(2, run)


def _refused(text: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def _message(group: Any, length: int, number: int = 0) -> None:
    """What send_object() begins with."""
    group.send(array.array("q", [objects._SAFE, length, number]), 1 - group.rank, objects._HEADS)


def test_bytes_that_are_no_object() -> None:
    def work(group: Any) -> None:
        mine, lies = (NONE, True) if group.rank else ({"good": 1}, False)
        _refused("rank 1 sent no object: these bytes", lambda: group.all_gather_object(mine))
        calls: list[Callable[[], object]] = [
            lambda: group.gather_object(mine, 0), lambda: group.broadcast_object(mine if lies else None, 1),
            lambda: group.scatter_objects([NONE, None] if lies else None, 1)]
        for call in calls:
            if lies:
                call()
            else:
                _refused("rank 1 sent no object: these bytes", call)
        if lies:
            group.send_object(NONE, 0)
        else:
            _refused("rank 1 sent no object: these bytes", lambda: group.recv_object())

    _on_ranks(work)


def test_lengths_that_no_object_has(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = exchange.gather_integers

    def work(group: Any) -> None:
        for length in LENGTHS:
            if group.rank:
                _message(group, length)
            else:
                _refused("rank 1 announces an object of", lambda: group.recv_object())
        for number in (-1, 2**61 - 1, 2**62):
            if group.rank:
                _message(group, 1, number)
            else:
                _refused("rank 1 announces an object of number", lambda: group.recv_object())
        for length in LENGTHS:
            def told(communicator: Any, mine: list[int], timeout: float | None, length: int = length) -> list[tuple[int, ...]]:
                return honest(communicator, [mine[0], length] if communicator.rank else mine, timeout)

            group.barrier()
            monkeypatch.setattr(objects, "gather_integers", told)
            group.barrier()
            _refused("rank 1 announces an object of", lambda: group.all_gather_object(1))

    _on_ranks(work)
