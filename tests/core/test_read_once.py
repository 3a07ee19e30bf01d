"""Every operation reads an array once, whichever path the call takes in the end. The ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arraycomm


class Counting:
    """An array of a library that knows DLPack alone. Counts how often it is exported."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.read = array, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.read += 1
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def _of(group: arraycomm.Group, *shape: int, dtype: str = "float32") -> Counting:
    return Counting(np.ones(shape or (4, 4), dtype))


def _strided(group: arraycomm.Group) -> Counting:
    return Counting(np.ones((4, 8), np.float32)[:, ::2])


_Call = Callable[[arraycomm.Group], list[Counting]]
CALLS: dict[str, _Call] = {}


def call(name: str) -> Callable[[_Call], _Call]:
    def keep(function: _Call) -> _Call:
        CALLS[name] = function
        return function
    return keep


def _simple(name: str, make: Callable[[arraycomm.Group], Counting], **options: Any) -> None:
    def run(group: arraycomm.Group) -> list[Counting]:
        x = make(group)
        result = getattr(group, name)(x, **options)
        if options.get("async_op"):
            result.wait(30)
        return [x]

    CALLS[f"{name} {make.__name__} {options}"] = run


for _name in ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan", "broadcast", "all_gather", "gather", "all_to_all"):
    for _make in (_of, _strided):
        _simple(_name, _make)
        _simple(_name, _make, async_op=True)
for _name in ("all_gather", "gather"):
    _simple(_name, _strided, uneven=True)
    _simple(_name, _of, counts=[4, 4])
    _simple(_name, _of, form="list")
_simple("reduce_scatter", _of, counts=[1, 3])
_simple("all_to_all", _strided, send_counts=[1, 3])
_simple("all_reduce", _strided, op="maxloc")
_simple("all_reduce", _strided, op=arraycomm.premul_sum(2.0))


@call("into another array")
def _into(group: arraycomm.Group) -> list[Counting]:
    arrays = [_of(group), _of(group), _strided(group), _of(group)]
    group.all_reduce(arrays[0], out=arrays[1])
    group.all_reduce(arrays[2], out=arrays[3])
    return arrays


@call("in place")
def _in_place(group: arraycomm.Group) -> list[Counting]:
    x = _of(group)
    group.all_reduce(x, out=x)
    return [x]


@call("an out that does not fit")
def _misfit(group: arraycomm.Group) -> list[Counting]:
    arrays = [_of(group), _strided(group), _of(group), _of(group, 3)]
    for x, out in (arrays[:2], arrays[2:]):
        with pytest.raises(ValueError, match=r"out|strided|contiguous"):
            group.all_reduce(x, out=out)
    return arrays


@call("scatter")
def _scatter(group: arraycomm.Group) -> list[Counting]:
    arrays = [_strided(group), _of(group, 2, 4), _of(group), _of(group, 3, 4)]
    group.scatter(arrays[0] if group.rank == 0 else None, like=arrays[1])
    group.scatter(arrays[2] if group.rank == 0 else None, like=arrays[3], counts=[1, 3])
    return arrays[::2] if group.rank == 0 else arrays[1::2]


@call("messages")
def _messages(group: arraycomm.Group) -> list[Counting]:
    arrays = [_of(group), _of(group), _strided(group), _of(group), _strided(group)]
    other = 1 - group.rank
    with group.batch():
        group.send(arrays[0], other)
        group.recv(other, out=arrays[1])
    with group.batch():
        group.isend(arrays[2], other)
        group.irecv(other, like=arrays[3])
    group.sendrecv(arrays[4], other, other)
    return arrays


@call("a function")
def _function(group: arraycomm.Group) -> list[Counting]:
    x = _of(group)
    group.all_reduce(x, lambda left, right: left)
    return [x]


def test_each_array_is_read_once() -> None:
    def work(group: arraycomm.Group) -> dict[str, list[int]]:
        return {name: [x.read for x in function(group)] for name, function in CALLS.items()}

    for found in arraycomm.run(work, 2, timeout=60.0):
        assert {name: counts for name, counts in found.items() if set(counts) != {1}} == {}


def test_what_was_handed_on_is_let_go() -> None:
    """A call that is refused before it reads keeps no array, and the next one reads anew."""
    def work(group: arraycomm.Group) -> None:
        x = _strided(group)
        for _ in range(3):
            with pytest.raises(ValueError, match="timeout"):
                group.all_reduce(x, timeout=-1.0)
            with pytest.raises(ValueError, match="root"):
                group.reduce(x, 7)
        x.array[:] = group.rank
        before = x.read
        assert np.asarray(group.all_reduce(x)).tolist() == [[1.0] * 4] * 4 and x.read == before + 1

    arraycomm.run(work, 2, timeout=60.0)
