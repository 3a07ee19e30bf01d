"""init_process_group(): what it takes, what it refuses, and that it may be called again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.core.bootstrap.store import FileStore, HashStore

LIMIT = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def _nothing_left() -> Any:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("the test left a default group")


def alone(**arguments: Any) -> Any:
    """A world of one."""
    dist.init_process_group(**{"store": HashStore(), "rank": 0, "world_size": 1, **arguments})
    return dist.group.WORLD


@pytest.mark.parametrize(("asked", "told", "config"), [
    ("gloo", "gloo", "cpu:gloo,cuda:gloo"), ("GLOO", "gloo", "cpu:gloo,cuda:gloo"), ("cpu:gloo", "cpu:gloo", "cpu:gloo"),
    ("cpu:gloo,cuda:gloo", "cpu:gloo,cuda:gloo", "cpu:gloo,cuda:gloo"), (None, "undefined", "cpu:gloo"),
    ("undefined", "undefined", "cpu:gloo"), (dist.Backend.GLOO, "gloo", "cpu:gloo,cuda:gloo")])
def test_backends_that_answer(asked: str | None, told: str, config: str) -> None:
    world = alone(backend=asked)
    assert dist.get_backend() == told and dist.get_backend_config() == config and type(dist.get_backend()) is str
    assert (world.group_name, world.group_desc, world.bound_device_id, dist.get_pg_count()) == ("0", "default_pg", None, 1)
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1) and dist.GroupMember.WORLD is world
    dist.destroy_process_group(dist.group.WORLD)


def test_a_timeout_without_end() -> None:
    alone(timeout=timedelta.max)
    dist.destroy_process_group()


@pytest.mark.parametrize(("backend", "error", "text"), [
    ("foo", AssertionError, "Unknown backend type foo; registered are gloo"), ("", AssertionError, "Unknown backend"),
    ("cpu:foo", AssertionError, "foo; registered are gloo"), ("cpu:gloo,cuda", ValueError, "Invalid device:backend pairing"),
    ("cpu:gloo,cpu:gloo", ValueError, "Duplicate device type cpu"), ("abc:gloo", RuntimeError, "Expected one of cpu"),
    (3, ValueError, "string-ish"), ("ucc", AssertionError, "Unknown backend type ucc; registered are gloo"),
    ("fake", AssertionError, "Unknown backend"), ("xccl", RuntimeError, "not available")])
def test_backends_that_do_not(backend: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        alone(backend=backend)
    assert not dist.is_initialized() and dist.get_pg_count() == 0


@pytest.mark.parametrize("name", ["mpi", "nccl"])
def test_backends_with_a_library_of_their_own_say_what_is_missing(name: str) -> None:
    available = {"mpi": dist.is_mpi_available, "nccl": dist.is_nccl_available}[name]()
    assert available == dist.is_backend_available(name)
    if available:
        pytest.skip(f"{name} is there")
    for backend in (name, f"cpu:gloo,cuda:{name}"):
        with pytest.raises(dist.DistBackendError, match=f"backend '{name}' is not available here: "):
            alone(backend=backend)


def test_what_is_available() -> None:
    assert dist.is_available() and dist.is_gloo_available() and dist.is_backend_available("GLOO")
    assert dist.is_backend_available("cpu:gloo,cuda:gloo") and dist.is_backend_available("undefined")
    assert not any(map(dist.is_backend_available, ("foo", "ucc", "cpu:gloo,cuda", "cpu:foo", "abc:gloo")))
    assert not dist.is_ucc_available() and not dist.is_xccl_available()


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"store": HashStore()}, AssertionError, "world_size must be positive if using store"),
    ({"store": HashStore(), "world_size": 1}, AssertionError, "rank must be non-negative if using store"),
    ({"store": HashStore(), "world_size": 1, "rank": 0, "init_method": "env://"}, AssertionError, "both init_method and store"),
    ({"store": HashStore(), "world_size": 1, "rank": 3}, ValueError, "rank 3 of world_size 1"),
    ({"timeout": 3}, TypeError, "Expected timeout argument to be of type datetime.timedelta, got 3"),
    ({"timeout": timedelta(0)}, ValueError, "above 0"),
    ({"device_id": "cpu"}, ValueError, "an accelerator with an index"),
    ({"device_id": "cuda", "backend": "gloo"}, ValueError, "an accelerator with an index"),
    ({"device_id": "cuda:0"}, dist.DistBackendError, "nccl"),
    ({}, ValueError, "RANK"),
    ({"init_method": "tcp://127.0.0.1:1"}, ValueError, "rank parameter missing"),
    ({"init_method": "tcp://127.0.0.1:1", "rank": 0}, ValueError, "world size parameter missing"),
    ({"init_method": "file:///tmp/x?rank=0", "world_size": 1}, AssertionError, "node-specific arguments"),
    ({"init_method": 3}, RuntimeError, "`url` must be a string"),
    ({"init_method": ""}, RuntimeError, "No rendezvous handler for :// in ''"),
    ({"init_method": "foo://a"}, RuntimeError, "No rendezvous handler for foo://.*there are env://"),
    ({"rank": "0"}, RuntimeError, "`rank` must be an integer"),
    ({"world_size": 1.0}, RuntimeError, "`world_size` must be an integer"),
    ({"store": HashStore(), "world_size": 1, "rank": 0, "_ranks": ["a"]}, TypeError, "a rank is an int"),
])
def test_arguments_that_make_no_sense(arguments: dict[str, Any], error: type[Exception], text: str,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(error, match=text):
        dist.init_process_group(**arguments)
    assert not dist.is_initialized() and dist.get_pg_count() == 0


def test_before_and_after() -> None:
    for _ in range(2):
        assert not dist.is_initialized() and dist.group.WORLD is None and dist.GroupMember.WORLD is None
        for call in (dist.get_rank, dist.get_world_size, dist.get_backend, dist.new_group, dist.new_subgroups,
                     lambda: dist.get_process_group_ranks(None), lambda: dist.split_group(split_ranks=[[0]]),
                     lambda: dist.shrink_group([0])):
            with pytest.raises(ValueError, match="Default process group has not been initialized"):
                call()
        with pytest.raises(AssertionError, match="Process group cannot be None"):
            dist.destroy_process_group()
        alone(backend="gloo")
        with pytest.raises(ValueError, match="trying to initialize the default process group twice!"):
            alone(backend="gloo")
        of_group: Callable[..., object]
        for of_group in (dist.get_rank, dist.get_world_size, dist.get_backend, dist.get_process_group_ranks,
                         dist.destroy_process_group):
            with pytest.raises(ValueError, match="Group 'x' is not registered"):
                of_group("x")
        dist.destroy_process_group()


def test_device() -> None:
    assert alone(backend="gloo", device_id=1).bound_device_id == "cuda:1"
    assert dist.new_group().bound_device_id == "cuda:1" and dist.new_group(device_id="cuda:2").bound_device_id == "cuda:2"
    dist.destroy_process_group()


def test_default_backend_of_a_device() -> None:
    assert [dist.get_default_backend_for_device(device) for device in ("cpu", "cuda", "cuda:1", 0)] == ["gloo"] + ["nccl"] * 3
    with pytest.raises(RuntimeError, match="Expected one of cpu"):
        dist.get_default_backend_for_device("abc")
    with pytest.raises(TypeError, match="a device is a str"):
        dist.get_default_backend_for_device(None)
    with pytest.raises(ValueError, match="not registered for device"):
        dist.get_default_backend_for_device("hpu")


def test_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not in the environment"):
        dist.get_node_local_rank()
    assert dist.get_node_local_rank(3) == 3
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert dist.get_node_local_rank(3) == 1


def test_torchelastic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not dist.is_torchelastic_launched()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert dist.is_torchelastic_launched()


def test_options_that_nobody_takes_are_announced() -> None:
    with pytest.warns(UserWarning, match="pg_options is ignored"):
        alone(backend="gloo", pg_options=object())
    dist.destroy_process_group()


def check_again_and_again(rank: int, path: str) -> None:
    ways: list[dict[str, Any]] = [{}, {"init_method": "env://"}, {"init_method": f"file://{path}", "rank": rank, "world_size": 2}]
    ways[2]["init_method"] += f"?use_libuv=0&rank={ways[2].pop('rank')}&world_size={ways[2].pop('world_size')}"
    ways.append({"store": FileStore(path + ".store", 2), "rank": rank, "world_size": 2})
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    for turn in range(12):
        dist.init_process_group("gloo", timeout=LIMIT, **ways[turn % 4])
        world, part = dist.group.WORLD, dist.new_group([turn % 2])
        assert world is not None and (world.group_name, dist.get_pg_count()) == ("0", 2)
        assert world.core.all_reduce(np.array([rank + 1]))[0] == 3 and dist.get_rank(part) == (0 if rank == turn % 2 else -1)
        dist.destroy_process_group()


def test_again_and_again(tmp_path: Path) -> None:
    arraycomm.spawn(check_again_and_again, (str(tmp_path / "meet"),), nprocs=2, start_method="forkserver")


def check_two_worlds_in_one_store(rank: int, path: str) -> None:
    """Of two ranks each, which have the same rank numbers: _ranks tells them apart."""
    members = [0, 1] if rank < 2 else [2, 3]
    dist.init_process_group("gloo", store=FileStore(path, 4), rank=rank % 2, world_size=2, timeout=LIMIT, _ranks=members)
    assert dist.group.WORLD is not None and dist.group.WORLD.group_name == f"{members[0]},{members[1]}#0"
    assert dist.group.WORLD.core.all_reduce(np.array([1 << rank]))[0] == (0b11 if rank < 2 else 0b1100)
    dist.barrier(dist.new_group())
    dist.destroy_process_group()


def test_two_worlds_in_one_store(tmp_path: Path) -> None:
    arraycomm.spawn(check_two_worlds_in_one_store, (str(tmp_path / "meet"),), nprocs=4, start_method="forkserver")


def check_a_try_that_failed(rank: int, path: str) -> None:
    """Rank 0 tries twice in a store that stays, rank 1 once: they meet."""
    store, bell = FileStore(path, 2), FileStore(path + ".bell", 2)
    if rank == 0:
        with pytest.raises(dist.DistStoreError, match="these ranks did not join: 1"):
            dist.init_process_group("gloo", timeout=timedelta(seconds=0.3), store=store, rank=0, world_size=2)
        assert not dist.is_initialized() and dist.get_pg_count() == 0
        bell.set("rung", "")
    bell.wait(["rung"], LIMIT)
    dist.init_process_group("gloo", timeout=LIMIT, store=store, rank=rank, world_size=2)
    assert dist.group.WORLD is not None and dist.group.WORLD.group_name == "0"
    assert dist.group.WORLD.core.all_reduce(np.array([rank + 1]))[0] == 3
    dist.destroy_process_group()


def test_a_try_that_failed(tmp_path: Path) -> None:
    arraycomm.spawn(check_a_try_that_failed, (str(tmp_path / "meet"),), nprocs=2, start_method="forkserver")


class Minimal(dist.Store):
    """A store as a program may write one, with nothing that can be left out."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = FileStore(path, 2)
        self.set, self.get, self.add = self.file.set, self.file.get, self.file.add


def check_a_store_of_the_program(rank: int, path: str) -> None:
    for _ in range(2):
        dist.init_process_group("gloo", timeout=LIMIT, store=Minimal(path), rank=rank, world_size=2)
        for group in [dist.new_group() for _ in range(3)]:
            dist.all_reduce(x := np.array([rank + 1]), group=group)
            assert x.tolist() == [3]
        dist.destroy_process_group()


def test_a_store_of_the_program(tmp_path: Path) -> None:
    arraycomm.spawn(check_a_store_of_the_program, (str(tmp_path / "meet"),), nprocs=2, start_method="forkserver")


def test_importing_loads_no_framework() -> None:
    code = ("import sys, arraycomm.distributed\n"
            "print([name for name in ('numpy', 'torch', 'jax', 'multiprocessing', 'asyncio') if name in sys.modules])")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "[]"
