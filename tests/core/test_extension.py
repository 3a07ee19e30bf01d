"""Extension points with as little as they may have, and values at the edge of what is allowed."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
from arraycomm.core.base.errors import DistStoreError
from arraycomm.core.bootstrap.rendezvous import Rendezvous
from arraycomm.core.bootstrap.store import HashStore, PrefixStore
from arraycomm.core.interface import registry
from arraycomm.core.interface.backend import Communicator
from arraycomm.frameworks import jax as comm

from ..threads import at_once

REQUIRED = ("rank", "size", "name", "closed", "collective", "send", "recv", "barrier", "check_peers", "abort", "close", "batch")


class BareCommunicator:
    """The engine's, with what a communicator must have and nothing else: no entry points for the fast path, no description,
    no memory that peers reach."""

    shortcut = None

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name not in REQUIRED:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def symmetric(self, nbytes: int, *, timeout: float | None = None) -> None:
        return None

    def expose(self, buffer: Any) -> None:
        return None

    def split(self, members: Any, name: str, *, timeout: float) -> BareCommunicator:
        return BareCommunicator(self._inner.split(members, name, timeout=timeout))


class BareBackend:
    name = "bare"
    devices = frozenset({1})
    on_gpus = ""

    def unavailable(self) -> None:
        return None

    def meet(self, timeout: float, name: str) -> None:
        return None

    def open(self, meeting: Rendezvous, *, name: str, timeout: float) -> BareCommunicator:
        return BareCommunicator(registry.get("socket").open(meeting, name=name, timeout=timeout))


def every_operation(group: arraycomm.Group) -> list[Any]:
    rank, other = group.rank, 1 - group.rank
    x = np.arange(4.0) + rank
    results: list[Any] = [group.all_reduce(x), group.all_reduce(x, "max", async_op=True).result(), group.reduce(x, 1),
                          group.broadcast(x, 1), group.all_gather(x), group.all_gather(x[: rank + 1], uneven=True),
                          group.gather(x), group.scatter(x if rank == 0 else None, like=x[:2]), group.reduce_scatter(x),
                          group.all_to_all(x), group.all_reduce(x[::2]), group.broadcast_object({"of": rank}, 1),
                          group.all_gather_object(rank)]
    with group.batch():
        group.isend(x, other)
        received: Any = group.recv(source=other, like=x)
    results.append(received.result())
    symmetric = group.empty((3,), np.float32)
    symmetric[:] = rank
    results += [symmetric, group.all_reduce(symmetric)]
    half = group.split(rank)
    assert half is not None
    with half:
        results.append(half.all_reduce(x))
    group.barrier()
    return results


def text(results: list[Any]) -> list[str]:
    return [repr(getattr(result, "array", result)) for result in results]


def test_a_communicator_without_what_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """All operations give what the engine's own communicator gives; compiled programs, which it cannot serve, say so."""
    monkeypatch.setitem(registry._TABLE, "bare", f"{__name__}:BareBackend")
    monkeypatch.setattr(importlib, "import_module", lambda name, load=importlib.import_module: (
        BareModule if name == __name__ else load(name)))
    found = {}
    for backend in ("socket", "bare"):
        store = HashStore()

        def work(rank: int, store: HashStore = store, backend: str = backend) -> list[str]:
            with arraycomm.init(rank=rank, world_size=2, store=store, backend=backend, timeout=30.0) as group:
                if backend == "bare" and rank == 0:
                    with pytest.raises(TypeError, match="cannot be called by compiled programs"):
                        comm.jit(lambda x: comm.all_reduce(x, group=group))(np.ones(2))
                return text(every_operation(group))

        found[backend] = at_once(2, work)
    assert found["bare"] == found["socket"]


class BareModule:
    BareBackend = BareBackend


def test_sibling_prefixes() -> None:
    """A prefix that another one begins with does not see the other's keys, nor what follows an end."""
    store = HashStore()
    siblings = [PrefixStore(prefix, store) for prefix in ("a", "ab", "a/b", "")]
    for number, sibling in enumerate(siblings):
        sibling.set("k", str(number))
        sibling.add(f"only/{number}", 1)
    assert [sibling.get("k") for sibling in siblings] == [b"0", b"1", b"2", b"3"]
    assert sorted(siblings[0].list_keys()) == ["b/k", "b/only/2", "k", "only/0"]  # of "a/b", which lies in it
    assert sorted(siblings[1].list_keys()) == ["k", "only/1"]
    assert sorted(siblings[2].list_keys()) == ["k", "only/2"]
    assert siblings[1].delete_key("k") and siblings[0].get("k") == b"0"
    assert not siblings[0].check(["only/1"])


def test_groups_with_names_that_begin_alike() -> None:
    """Groups meet under their names: "a" and "ab", and "a/b", at the same time."""
    store = HashStore()

    def work(rank: int) -> list[float]:
        with arraycomm.init(rank=rank, world_size=2, store=store, timeout=30.0) as world:
            groups = [world.subgroup([0, 1], name) for name in ("a", "ab", "a/b", "b")]
            totals = [float(group.all_reduce(np.array(index + rank))) for index, group in enumerate(groups)]
            for group in groups:
                group.close()
            return totals

    assert at_once(2, work) == [[1.0, 3.0, 5.0, 7.0]] * 2


def test_worlds_with_names_that_begin_alike() -> None:
    store = HashStore()

    def work(rank: int) -> list[float]:
        totals = []
        with (arraycomm.init(rank=rank, world_size=2, store=store, name="w", timeout=30.0) as one,
              arraycomm.init(rank=1 - rank, world_size=2, store=store, name="w2", timeout=30.0) as two):
            totals += [float(one.broadcast(np.array(rank + 0.0))), float(two.broadcast(np.array(rank + 0.0)))]
        return totals

    assert at_once(2, work) == [[0.0, 1.0]] * 2


def test_timeouts_of_zero() -> None:
    """0 s is a time: what is ready is taken, what is not ends at once; it is not mistaken for none."""
    store = HashStore()
    store.set("there", "v")
    zero = timedelta(0)
    store.wait(["there"], zero)
    assert store._get_within("there", zero) == b"v"
    for late in (lambda: store.wait(["missing"], zero), lambda: store._get_within("missing", zero),
                 lambda: store.barrier("alone", 2, zero)):
        with pytest.raises(DistStoreError, match="timeout"):
            late()

    def work(rank: int) -> None:
        with arraycomm.init(rank=rank, world_size=2, store=store, timeout=30.0) as group:
            group.barrier()
            if rank == 0:
                pending = group.irecv(source=1, like=np.zeros(2))
                assert not pending.done()
                with pytest.raises(TimeoutError):
                    pending.wait(0)
                group.send(np.ones(1), 1)
                assert pending.result(30).array.tolist() == [5, 5]
            else:
                group.recv(source=0, like=np.zeros(1))
                group.send(np.full(2, 5.0), 0)
            group.barrier()
            if rank == 0:
                with pytest.raises(arraycomm.CollectiveTimeout):
                    group.all_reduce(np.ones(2), timeout=0)
            else:
                with pytest.raises(arraycomm.DistError):
                    group.recv(source=0, like=np.zeros(1))

    at_once(2, work)
