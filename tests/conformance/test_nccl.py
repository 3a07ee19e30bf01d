"""The NCCL backend's own code over the stand-ins for NCCL and CUDA's runtime (tests/standin): arrays that the host cannot touch,
streams that run late, communicators that never block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import arraycomm
from tests.standin import build

from . import gpu_faults
from .data import COMPLEX, DTYPES, NARROW
from .worlds import Settings, World

# What NCCL reduces itself; the rest goes through the host.
NATIVE = ("bool", "int8", "int32", "int64", "uint8", "uint32", "uint64", "float16", "bfloat16", "float32", "float64", *COMPLEX,
          "float8_e4m3fn", "float8_e5m2")
OLD = 22105  # no float8, no native gather, scatter and all_to_all


def environ(version: int = 23203, *, blocking: bool = True) -> tuple[tuple[str, str], ...]:
    return (("ARRAYCOMM_BACKEND", "nccl"), ("ARRAYCOMM_CUDART_LIBRARY", build.cudart()),
            ("ARRAYCOMM_NCCL_LIBRARY", build.nccl(version)), ("NCCL_COMM_BLOCKING", str(int(blocking))))


@pytest.fixture(scope="module", params=[(1, 23203), (2, 23203), (3, OLD), (4, 23203)],
                ids=lambda param: f"{param[0]}-{param[1]}")
def gpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    size, version = request.param
    with closing(World(Settings(size, environ=environ(version, blocking=size != 2)), tmp_path_factory.mktemp("gpus"))) as made:
        yield made


def reduced_there(world: World) -> list[str]:
    old = dict(world.settings.environ)["ARRAYCOMM_NCCL_LIBRARY"] == build.nccl(OLD)
    return [dtype for dtype in NATIVE if not (old and dtype.startswith("float8"))]


def test_reductions(gpus: World) -> None:
    gpus.run("gpus.reductions", dtypes=reduced_there(gpus))


def test_functions_locations_and_scans(gpus: World) -> None:
    gpus.run("reductions.functions_and_locations", framework="cuda")


def test_movement(gpus: World) -> None:
    gpus.run("movement.matrix", framework="cuda", dtypes=DTYPES)


def test_uneven(gpus: World) -> None:
    gpus.run("movement.uneven", framework="cuda", rows=[[1], [3, 0], [0, 0, 5], [2, 1], [0], [1000, 1, 0]])
    gpus.run("gpus.uneven_scatter", rows=[[1], [3, 0], [0, 0, 5], [2, 1], [0], [3000, 1, 0]])


def test_lists(gpus: World) -> None:
    gpus.run("movement.lists", framework="cuda")


def test_beside_the_cpu_engine(tmp_path: Path) -> None:
    both = tuple((name, "cpu:socket,cuda:nccl" if name == "ARRAYCOMM_BACKEND" else value) for name, value in environ())
    with closing(World(Settings(2, environ=both), tmp_path)) as world:
        world.run("gpus.two_backends")
        for framework in ("cuda", "numpy"):
            world.run("cuda.every_kind", framework=framework, later=True)
        for task in ("cuda.between", "cuda.split", "objects.everywhere"):
            world.run(task)


@pytest.mark.parametrize("task", [
    "objects.everywhere", "gpus.in_flight", "gpus.streams", "gpus.messages", "gpus.batches", "gpus.dropped_inputs",
    "gpus.captures", "gpus.symmetric", "gpus.splits", "gpus.beside", "gpus.refusals", "gpus.left_over"])
def test_tasks(gpus: World, task: str) -> None:
    gpus.run(task)


@pytest.mark.parametrize("blocking", [True, False])
def test_alone(blocking: bool, tmp_path: Path) -> None:
    with closing(World(Settings(1, environ=environ(OLD, blocking=blocking)), tmp_path)) as world:
        world.run("gpus.alone")


def test_facts(gpus: World) -> None:
    gpus.run("groups.facts", size=gpus.size)


def test_narrow_types_are_among_them() -> None:
    assert {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"} == set(NARROW) & set(NATIVE)


def test_files_are_gone(tmp_path: Path) -> None:
    """What ranks met in is not left behind."""
    world = World(Settings(2, environ=(*environ(), ("TMPDIR", str(tmp_path)))), tmp_path)
    world.run("groups.facts", size=2)
    world.close()
    assert not list(tmp_path.glob("standin-nccl*"))


# ---- what goes wrong ----


@pytest.fixture(scope="module", params=[True, False], ids=["blocking", "not blocking"])
def fragile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("fragile")  # also for what the stand-in leaves of openings that fail
    with closing(World(Settings(3, environ=(*environ(blocking=request.param), ("TMPDIR", str(folder)))), folder)) as made:
        yield made


@pytest.mark.parametrize("function", ["ncclAllReduce", "ncclBroadcast", "ncclGroupEnd", "ncclRedOpCreatePreMulSum",
                                      "ncclCommGetAsyncError"])
def test_failed_call(fragile: World, function: str) -> None:
    fragile.run("gpu_faults.failed_call", function=function)


@pytest.mark.parametrize("rank", [0, 1])
def test_failed_opening(fragile: World, rank: int) -> None:
    fragile.run("gpu_faults.failed_opening", function="ncclCommInitRankConfig", rank=rank)


def test_no_unique_id(fragile: World) -> None:
    fragile.run("gpu_faults.failed_opening", function="ncclGetUniqueId", rank=0)


@pytest.mark.parametrize("task", ["failed_batch", "no_memory", "too_slow", "stuck", "never_comes", "asynchronous_error",
                                  "broken_device", "enqueued_meanwhile", "closed_meanwhile"])
def test_faults(fragile: World, task: str) -> None:
    fragile.run(f"gpu_faults.{task}")


def test_killed_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ():
        monkeypatch.setenv(name, value)
    arraycomm.spawn(gpu_faults.die, (str(tmp_path),), nprocs=3)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["well", "well"]
