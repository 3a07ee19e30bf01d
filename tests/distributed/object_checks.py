"""Checks of the collectives and messages of Python objects."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import arraycomm.distributed as dist

from .checks import Library, check, same

PLAIN = [None, True, 12, 2**70, 1.5, 1 + 2j, "foo", b"\0\1", [1, (2, "x")], {1: 2, (3, 4): {5}}, frozenset("a"), (), {}]


def refused(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")


@check
def plain_objects(lib: Library) -> None:
    everything: list[Any] = [None] * lib.size
    dist.all_gather_object(everything, [lib.rank, PLAIN])
    assert everything == [[rank, PLAIN] for rank in range(lib.size)] and type(everything[0][1][8][1]) is tuple
    for root in range(lib.size):
        gathered: list[Any] | None = [None] * lib.size if lib.rank == root else None
        dist.gather_object("x" * lib.rank * 1000, gathered, dst=root)
        assert gathered is None or gathered == ["x" * rank * 1000 for rank in range(lib.size)]
        told = [root, *PLAIN] if lib.rank == root else [None] * (1 + len(PLAIN))
        dist.broadcast_object_list(told, group_src=root)
        assert told == [root, *PLAIN]
        out: list[Any] = [None, "kept"]
        dist.scatter_object_list(out, [{"to": rank} for rank in range(lib.size)] if lib.rank == root else None, src=root)
        assert out == [{"to": lib.rank}, "kept"]


@check
def sent_objects(lib: Library) -> None:
    """The sender is told by its rank in the world, in a group too."""
    group = dist.new_group([1, 2])
    if lib.rank:
        dist.send_object_list(["foo", lib.rank, {1: 2}], dst=0)
    for _ in range(1, lib.size if lib.rank == 0 else 1):
        found: list[Any] = [None] * 3
        source = dist.recv_object_list(found)
        assert found == ["foo", source, {1: 2}]
    if lib.rank == 2:
        dist.send_object_list(["bar"], 1, group)
    if lib.rank == 1:
        assert dist.recv_object_list(one := [None], group=group) == 2 and one == ["bar"]


@check
def arrays_in_objects(lib: Library) -> None:
    if lib.name == "cuda":
        refused(TypeError, "without pickle", lambda: dist.all_gather_object([None] * lib.size, lib.zeros(2)))
        return
    found: list[Any] = [None] * lib.size
    x = lib.array(np.arange(6.0).reshape(2, 3) + lib.rank, "float32")
    dist.all_gather_object(found, {"x": x, "empty": lib.zeros(0), "scalar": np.float32(lib.rank)})
    for rank, one in enumerate(found):
        assert type(one["x"]) is type(x) and one["x"].dtype == x.dtype and type(one["scalar"]) is np.float32
        same(one["x"], np.arange(6.0).reshape(2, 3) + rank)
        one["x"][...] = 0  # it may be changed


class Custom:
    def __init__(self, value: int) -> None:
        self.value = value


@check
def other_objects_need_pickle(lib: Library) -> None:
    """One rank's object that cannot be sent is an error on all, and the group goes on."""
    found: list[Any] = [None] * lib.size
    kind, text = (TypeError, "ARRAYCOMM_ALLOW_PICKLE=1") if lib.rank == 1 else (RuntimeError, "rank 1 has an object")
    refused(kind, text, lambda: dist.all_gather_object(found, Custom(1) if lib.rank == 1 else 1))
    refused(kind, text, lambda: dist.broadcast_object_list([Custom(1)] if lib.rank == 1 else [0], src=1))
    os.environ["ARRAYCOMM_ALLOW_PICKLE"] = "1" if lib.rank != 2 else "0"
    refused(ValueError, "must be the same on all ranks", lambda: dist.all_gather_object(found, 1))
    os.environ["ARRAYCOMM_ALLOW_PICKLE"] = "1"
    dist.all_gather_object(found, Custom(lib.rank))
    assert [one.value for one in found] == list(range(lib.size))
    if lib.rank == 0:
        dist.send_object_list([Custom(7)], 1)
        dist.send_object_list([Custom(8)], 1)
    if lib.rank == 1:
        one: list[Any] = [None]
        dist.recv_object_list(one, 0)
        assert one[0].value == 7
        del os.environ["ARRAYCOMM_ALLOW_PICKLE"]
        refused(ValueError, "sends a pickle", lambda: dist.recv_object_list(one, 0))
    os.environ.pop("ARRAYCOMM_ALLOW_PICKLE", None)
    dist.all_gather_object(found, lib.rank)
    assert found == list(range(lib.size))
