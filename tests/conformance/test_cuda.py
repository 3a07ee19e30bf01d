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
