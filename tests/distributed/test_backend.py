"""Backend names, configurations, and backends that a program registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import arraycomm.distributed as dist
from arraycomm.core.bootstrap.rendezvous import Rendezvous
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.core.group.group import Group
from arraycomm.core.interface.registry import get
from arraycomm.distributed import Backend, BackendConfig


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone afterwards."""
    for name in ("_plugins", "backend_capability", "backend_type_map", "default_device_backend_map"):
        monkeypatch.setattr(Backend, name, dict(getattr(Backend, name)))
    monkeypatch.setattr(Backend, "backend_list", list(Backend.backend_list))
    before = set(vars(Backend))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    for name in set(vars(Backend)) - before:
        delattr(Backend, name)


def test_names() -> None:
    assert Backend("GLOO") == "gloo" and type(Backend("GLOO")) is str and Backend("Anything") == "anything"
    assert (Backend.GLOO, Backend.NCCL, Backend.MPI, Backend.UCC, Backend.XCCL, Backend.UNDEFINED) == (
        "gloo", "nccl", "mpi", "ucc", "xccl", "undefined")
    with pytest.raises(ValueError, match="string-ish"):
        Backend(3)  # type: ignore[arg-type]
    kinds = dist.ProcessGroup.BackendType
    assert Backend.backend_type_map["gloo"] is kinds.GLOO is dist.ProcessGroup.GLOO and int(kinds.CUSTOM) == 6


@pytest.mark.parametrize(("text", "pairs"), [
    ("gloo", {"cpu": "gloo", "cuda": "gloo"}), ("nccl", {"cuda": "nccl"}), ("mpi", {"cpu": "mpi", "cuda": "mpi"}),
    ("cpu:gloo,cuda:nccl", {"cpu": "gloo", "cuda": "nccl"}), ("CPU:GLOO", {"cpu": "gloo"}), ("undefined", {"cpu": "gloo"})])
def test_configurations(text: str, pairs: dict[str, str]) -> None:
    assert BackendConfig(text).get_device_backend_map() == pairs
    assert repr(BackendConfig(text)) == ",".join(f"{device}:{name}" for device, name in pairs.items())


class Recorder:
    """A backend as a program may write one: our engine's communicator, and a note of what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def plain(self, store: Any, rank: int, size: int, timeout: Any) -> Any:
        self.asked.append((rank, size, timeout.total_seconds()))
        store.set("seen", "1")
        meeting = Rendezvous(rank, size, store, None, "job", ["127.0.0.1"])
        return get("socket").open(meeting, name=f"recorded {len(self.asked)}", timeout=timeout.total_seconds())

    def extended(self, options: Any, pg_options: Any) -> Any:
        self.asked.append((options.global_ranks_in_group, options.group_id, pg_options))
        return self.plain(options.store, options.group_rank, options.group_size, options.timeout)


def alone(backend: str, **arguments: Any) -> dist.ProcessGroup:
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, **arguments)
    assert dist.group.WORLD is not None
    return dist.group.WORLD


@pytest.mark.usefixtures("registry")
def test_a_registered_backend() -> None:
    recorder = Recorder()
    Backend.register_backend("Mine", recorder.plain, devices="cpu")
    assert Backend.MINE == "mine" in Backend.backend_list and dist.is_backend_available("MINE")  # type: ignore[attr-defined]
    assert Backend.backend_capability["mine"] == ["cpu"] and repr(BackendConfig("mine")) == "cpu:mine"
    world = alone("mine")
    assert world.core.all_reduce(np.arange(3.0)).tolist() == [0, 1, 2] and dist.get_backend() == "mine"
    dist.new_group([0])
    assert recorder.asked == [(0, 1, 1800.0)] * 2  # a communicator for each group
    with pytest.warns(UserWarning, match="'mine' is registered already and replaced"):
        Backend.register_backend("MINE", Recorder().plain, devices="cpu")
    dist.new_group([0])
    assert len(recorder.asked) == 2
    with pytest.raises(AssertionError, match="registered are gloo, .*mine"):
        dist.new_group(backend="foo")


@pytest.mark.usefixtures("registry")
def test_the_extended_form_beside_another_backend() -> None:
    recorder, options = Recorder(), object()
    Backend.register_backend("mine", recorder.extended, extended_api=True, devices=["cuda"])
    world = alone("cpu:gloo,cuda:mine", pg_options=options)
    assert recorder.asked[0] == ([0], "world mine", options)
    assert world.core.backend == "cpu:socket,cuda:mine" and world.core.all_reduce(np.ones(1)) == 1
    mine, host = world.core._movers[2], world.core._movers[1]
    assert (mine.name, host.name) == ("recorded 2", "world")
    part = dist.new_group([0], backend="gloo")
    assert part.core.backend == "socket" and part.core._movers[1] is not host and len(recorder.asked) == 2
    assert dist.new_group([0]).core.backend == world.core.backend and len(recorder.asked) == 4
    dist.destroy_process_group()
    assert mine.closed and host.closed


@pytest.mark.usefixtures("registry")
def test_what_cannot_be_registered() -> None:
    for name, devices, text in (("gloo", None, "registered already, by arraycomm"), ("GLOO", None, "registered already"),
                                ("other", "tpu", "unknown device types tpu")):
        with pytest.raises(ValueError, match=text):
            Backend.register_backend(name, Recorder().plain, devices=devices)
    Backend.register_backend("empty", lambda store, rank, size, timeout: object())
    with pytest.raises(TypeError, match="backend 'empty' gave a object without rank, size"):
        alone("empty")
    Backend.register_backend("broken", lambda store, rank, size, timeout: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        alone("cpu:gloo,cuda:broken")
    assert not dist.is_initialized() and dist.get_pg_count() == 0


@pytest.mark.usefixtures("registry")
def test_a_backend_takes_over_for_devices_that_had_none() -> None:
    Backend.register_backend("mine", Recorder().plain, devices=["hpu", "cpu"])
    assert dist.get_default_backend_for_device("hpu") == "mine" and dist.get_default_backend_for_device("cpu") == "gloo"


def test_the_core_closes_what_the_facade_opened() -> None:
    group = alone("gloo")
    part = dist.new_group()
    assert isinstance(part.core, Group) and part.core is not group.core
    dist.destroy_process_group()
    assert group.closed and part.closed
    with pytest.raises(ValueError, match="its store with it"):
        group.get_group_store()
