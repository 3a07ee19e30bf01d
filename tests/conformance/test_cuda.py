"""Arrays on CUDA devices over the CPU engine: staged through pinned memory. Over the stand-in for CUDA's runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import arraycomm
from tests.standin import build

from . import cuda
from .data import CUDA
from .worlds import Settings, World


def settings(size: int) -> Settings:
    return Settings(size, "auto", (("ARRAYCOMM_CUDART_LIBRARY", build.cudart()),))


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def cuda_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with closing(World(settings(request.param), tmp_path_factory.mktemp("world"))) as made:
        yield made


@pytest.fixture
def pair(special: Callable[..., World]) -> World:
    """Two ranks for one test that breaks their group."""
    made = special(2, environ=dict(settings(2).environ))
    made.run("cuda.piece_bytes", nbytes=1024)
    return made


DTYPES = ("bool", "int8", "int64", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn")


@pytest.mark.parametrize("framework", CUDA)
def test_operations(cuda_world: World, framework: str) -> None:
    dtypes = DTYPES if framework == "cuda" else ("bfloat16", "float32")
    cuda_world.run("reductions.matrix", framework=framework, dtypes=dtypes)
    cuda_world.run("movement.matrix", framework=framework, dtypes=dtypes)


def test_functions_and_locations(cuda_world: World) -> None:
    for framework in CUDA:
        cuda_world.run("reductions.functions_and_locations", framework=framework)


@pytest.mark.parametrize("framework", CUDA)
def test_shapes(cuda_world: World, framework: str) -> None:
    cuda_world.run("layouts.small", framework=framework)
    cuda_world.run("movement.uneven", framework=framework, rows=[[1], [3, 0], [0, 0, 5]])
    cuda_world.run("movement.lists", framework=framework)


def test_strides_and_outputs(cuda_world: World) -> None:
    cuda_world.run("layouts.strided", framework="cuda")
    cuda_world.run("layouts.in_place", framework="cuda")
    cuda_world.run("layouts.given_out", framework="cuda", others=("cuda", "cupy"))


@pytest.mark.parametrize(("nbytes", "later"), [(256, True), (4096, False)])
def test_pieces(cuda_world: World, nbytes: int, later: bool) -> None:
    cuda_world.run("cuda.piece_bytes", nbytes=nbytes)
    for framework in CUDA:
        cuda_world.run("cuda.every_kind", framework=framework, later=later)
    cuda_world.run("cuda.piece_bytes", nbytes=4 << 20)


def test_asynchrony(cuda_world: World) -> None:
    cuda_world.run("asynchrony.in_flight", framework="cuda")


@pytest.mark.parametrize("task", ["order_of_calls", "between", "captures", "forgotten", "messages", "split", "other_device",
                                  "slow"])
def test_tasks(cuda_world: World, task: str) -> None:
    cuda_world.run(f"cuda.{task}")


# ---- from device to device ----


@pytest.fixture(params=[2, 3, 4])
def neighbours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with closing(World(settings(request.param), tmp_path)) as made:
        made.run("devices.near")
        yield made


def test_between_devices(neighbours: World) -> None:
    neighbours.run("devices.reaches", yes=True)
    neighbours.run("cuda.slow")
    for framework in CUDA:
        neighbours.run("cuda.every_kind", framework=framework)
    neighbours.run("cuda.every_kind", framework="cuda", later=True)
    neighbours.run("cuda.between")
    neighbours.run("cuda.split")
    neighbours.run("devices.reductions")
    neighbours.run("devices.unaligned")
    neighbours.run("devices.turns")
    neighbours.run("devices.differ")


@pytest.mark.parametrize(("operation", "function", "nth"), [
    ("all_gather", "cudaMemcpyAsync", 3), ("all_gather", "cudaEventRecord", 3), ("all_gather", "cudaEventQuery", 4),
    ("all_reduce", "cuLaunchKernel", 2), ("all_reduce", "cuModuleLoadData", 1)])
def test_a_call_between_devices_fails(neighbours: World, operation: str, function: str, nth: int) -> None:
    neighbours.run("devices.neighbour_fails", operation=operation, function=function, nth=nth, limit=20)


def test_asynchronous_on_one_rank(neighbours: World) -> None:
    for tried in (False, True):  # the first time nobody knows yet whether ranks reach each other
        neighbours.run("devices.uneven_asynchrony", tried=tried, limit=30)


@pytest.mark.parametrize("slow", [1, 3])  # host to device, device to device
def test_the_quicker_way_is_taken(special: Callable[..., World], slow: int) -> None:
    world = special(2, environ=dict(settings(2).environ))
    world.run("devices.near", tried=True)
    world.run("devices.reaches", slow=slow, yes=slow == 1)


@pytest.mark.parametrize(("function", "nth"), [("cudaIpcGetMemHandle", 1), ("cudaIpcOpenMemHandle", 1), ("cudaMalloc", 2),
                                              ("cudaMemcpyAsync", 2), ("cudaEventQuery", 1)])
def test_a_device_that_is_not_reached(special: Callable[..., World], function: str, nth: int) -> None:
    world = special(2, environ=dict(settings(2).environ))
    world.run("devices.near")
    world.run("devices.reaches", fails=function, nth=nth, yes=False, told="through the host's memory: CUDA failed to")


@pytest.mark.parametrize("function", ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"])
def test_devices_that_do_not_reduce(special: Callable[..., World], function: str) -> None:
    world = special(2, environ=dict(settings(2).environ))
    world.run("devices.near")
    world.run("devices.reaches", fails=function, yes=True, reduces=False, told="reductions of arrays on GPUs do not go from "
              "device to device but through the host's memory: CUDA failed to")


def test_ways_that_nobody_is_told_of(special: Callable[..., World]) -> None:
    for world in (special(2, environ={**dict(settings(2).environ), "ARRAYCOMM_CUDA_IPC": "0"}),
                  special(2, environ=dict(settings(2).environ), hosts=("here", "there"))):
        world.run("devices.near")
        world.run("devices.reaches", yes=False)


# ---- MPI ----


@pytest.fixture
def over_mpi(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    library, backend = request.param
    environ = (*settings(2).environ, ("ARRAYCOMM_BACKEND", backend))
    with closing(World(settings(2)._replace(mpi=library, environ=environ), tmp_path)) as made:
        made.run("cuda.piece_bytes", nbytes=1024)
        yield made


@pytest.mark.parametrize("over_mpi", [("openmpi", "mpi"), ("impi", "mpi")], ids=["openmpi", "impi"], indirect=True)
def test_staged_over_mpi(over_mpi: World) -> None:
    over_mpi.run("cuda.every_kind", framework="cuda")
    over_mpi.run("cuda.every_kind", framework="cupy", later=True)
    over_mpi.run("cuda.messages")
    over_mpi.run("cuda.split")


@pytest.mark.parametrize("over_mpi", [("openmpi", "cpu:mpi,cuda:socket")], indirect=True)
def test_two_backends(over_mpi: World) -> None:
    over_mpi.run("cuda.two_backends")
    over_mpi.run("cuda.every_kind", framework="cuda", later=True)
    over_mpi.run("cuda.every_kind", framework="numpy", later=True)
    over_mpi.run("cuda.between")
    over_mpi.run("cuda.split")
    over_mpi.run("objects.everywhere")


@pytest.mark.parametrize(("size", "hosts"), [(2, ()), (3, ()), (2, ("here", "there"))])
def test_memory_that_all_ranks_reach(special: Callable[..., World], size: int, hosts: tuple[str, ...]) -> None:
    world = special(size, environ=dict(settings(size).environ), hosts=hosts)
    world.run("cuda.piece_bytes", nbytes=1024)
    world.run("common.reached", yes=not hosts)


def test_memory_that_cuda_does_not_pin(pair: World) -> None:
    pair.run("common.unpinned")


# ---- what goes wrong ----

FUNCTIONS = ("cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaHostAlloc", "cudaEventRecord", "cudaEventQuery", "cudaEventDestroy",
             "cudaStreamWaitEvent", "cudaEventCreateWithFlags", "cudaStreamCreateWithPriority", "cudaStreamIsCapturing")


def test_a_call_fails(pair: World) -> None:
    for function in FUNCTIONS:
        for later in (False, True):
            pair.run("cuda.fails", function=function, later=later)


def test_a_rank_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAYCOMM_CUDART_LIBRARY", build.cudart())
    arraycomm.spawn(cuda.dies, (str(tmp_path),), nprocs=2)
    assert (tmp_path / "survivor").read_text() == "well"


def test_slow_copies_are_not_silence(special: Callable[..., World]) -> None:
    world = special(2, environ={**dict(settings(2).environ), "ARRAYCOMM_SILENCE": "0.5", "ARRAYCOMM_HEARTBEAT": "0.1"})
    world.run("cuda.slow", milliseconds=700)


@pytest.mark.parametrize("nth", [1, 4])
def test_a_copy_fails_later(pair: World, nth: int) -> None:
    pair.run("cuda.fails_later", nth=nth, limit=20)


@pytest.mark.parametrize(("task", "limit"), [("late", 40), ("stuck", 20), ("mixed", 20)])
def test_a_device_does_not_come_to_it(pair: World, task: str, limit: int) -> None:
    pair.run(f"cuda.{task}", limit=limit)
