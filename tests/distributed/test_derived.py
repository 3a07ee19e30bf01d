"""Classes of a program's that derive from ProcessGroup and Work, and what programs import beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.core.bootstrap.store import HashStore
from arraycomm.distributed import Backend, torch_only
from arraycomm.launch.spawn import spawn

from .test_backend import registry  # noqa: F401 - a fixture


class Done(dist.Work):
    """As in torch's documents: what it does not define is that of an operation that has ended."""

    waits = 0

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        Done.waits += 1
        return True


class Adds(dist.ProcessGroup):
    """Of torch's tests of groups in Python: each method leaves its number."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.ended: list[str] = []

    def getBackendName(self) -> str:  # noqa: N802
        return "Adds"

    def allreduce(self, tensors: Any, opts: Any = None) -> Done:
        assert opts.reduceOp == dist.ReduceOp.MAX and type(opts) is dist.AllreduceOptions
        tensors[0][...] += 2
        return Done()

    def broadcast(self, tensors: Any, opts: Any = None) -> None:
        tensors[0][...] += 10 + opts.rootRank

    def shutdown(self) -> None:
        self.ended.append("shutdown")


@pytest.fixture
def adds(registry: None) -> None:  # noqa: F811
    Backend.register_backend("adds", lambda store, rank, size, timeout: Adds(rank, size), devices="cpu")


@pytest.mark.usefixtures("adds")
def test_functions_call_its_methods() -> None:
    dist.init_process_group("adds", store=HashStore(), rank=0, world_size=1)
    world: Any = dist.group.WORLD
    assert type(world) is Adds and (world.rank(), world.size(), dist.get_backend(), world.name()) == (0, 1, "adds", "Adds")
    x, grid = np.ones(3), np.ones((2, 3), "int16").T
    before = Done.waits
    dist.all_reduce(x, dist.ReduceOp.MAX)
    dist.all_reduce(grid, dist.ReduceOp.MAX)
    assert Done.waits == before + 2 and (x == 3).all() and (grid == 3).all()
    work: Any = dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
    assert work.wait() is True and work.is_completed() and (x == 5).all() and Done.waits == before + 3
    dist.broadcast(x, 0)
    assert (x == 15).all()
    assert isinstance(world.allreduce([x], _with(dist.ReduceOp.MAX)), Done)
    with pytest.raises(RuntimeError, match="ProcessGroup Adds does not support gather"):
        dist.gather(x, [np.ones(3)])
    with pytest.raises(RuntimeError, match="Adds does not support barrier"):
        world.barrier().wait()
    part: Any = dist.new_group([0])
    assert type(part) is Adds and part is not world
    with pytest.raises(RuntimeError, match=r"cannot be split: make the other group by new_group\(\)"):
        world.split_group([0])
    dist.destroy_process_group()
    assert world.ended == part.ended == ["shutdown"]


def _with(op: Any) -> Any:
    opts = dist.AllreduceOptions()
    opts.reduceOp = op
    return opts


def test_before_it_is_registered() -> None:
    group = Adds(1, 3)
    assert (group.rank(), group.size(), group.closed) == (1, 3, False) and "Adds" in f"{type(group)} {group}"
    with pytest.raises(RuntimeError, match=r"make it in the function that Backend.register_backend\(\) is given"):
        dist.all_reduce(np.ones(1), group=group)
    for place, error in (((3, 3), ValueError), ((0, 0), ValueError), (("0", 1), TypeError), ((1,), TypeError)):
        with pytest.raises(error):
            dist.ProcessGroup(*place)
    assert dist.ProcessGroup(HashStore(), 0, 2).size() == 2
    assert dist.Work().wait() and dist.Work().is_completed() and dist.Work().result() == []


@pytest.mark.usefixtures("adds")
def test_a_place_that_is_not_the_meetings() -> None:
    with pytest.warns(UserWarning, match="replaced"):
        Backend.register_backend("adds", lambda store, rank, size, timeout: Adds(1, 2))
    with pytest.raises(ValueError, match="made rank 1 of 2 where rank 0 of 1 is"):
        dist.init_process_group("adds", store=HashStore(), rank=0, world_size=1)


class Passes(dist.ProcessGroup):
    """Passes everything on to a group of the core, as programs do that count or delay."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size)
        self._inner = arraycomm.init(store=store, rank=rank, world_size=size, timeout=timeout, name="inner")

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        self._inner.all_reduce(tensors[0], opts.reduceOp._core, out=tensors[0])

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        out = tensors[0] if self.rank() == opts.rootRank else None
        self._inner.reduce(tensors[0], opts.rootRank, opts.reduceOp._core, out=out)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        tensors[0][...] = self._inner.broadcast(tensors[0], root=opts.rootRank)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for rank, out in enumerate(outputs[0]):
            out[...] = self._inner.broadcast(inputs[0] if rank == self.rank() else out, root=rank)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        found: Any = self._inner.gather(inputs[0], root=opts.rootRank)
        for out, x in zip(outputs[0] if outputs else (), found if outputs else (), strict=True):
            out[...] = x.reshape(out.shape)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        self._inner.scatter(np.concatenate(inputs[0]) if inputs else None, root=opts.rootRank, out=outputs[0])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for rank, x in enumerate(inputs[0]):
            total = self._inner.all_reduce(x, opts.reduceOp._core)
            if rank == self.rank():
                outputs[0][...] = total

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for out, x in zip(outputs, self._inner.all_to_all(np.stack(inputs)), strict=True):
            out[...] = x

    def barrier(self, opts: Any = None) -> Any:
        self._inner.barrier()

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        self._inner.send_object(tensors[0], peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        tensors[0][...] = self._inner.recv_object(peer, tag)[0]

    def shutdown(self) -> None:
        self._inner.close()
        super().shutdown()


def run(rank: int) -> None:
    """The functions with a group whose class has them all: lists, sizes that differ, objects, coalesced operations, meshes."""
    Backend.register_backend("passes", Passes)
    dist.init_process_group("passes")
    size = dist.get_world_size()
    x = np.full((2, 2), rank + 1.0)
    dist.all_reduce(x)
    assert (x == 3).all()
    dist.reduce(x, 1, dist.ReduceOp.MAX)
    dist.broadcast(x, 1)
    lists: list[Any] = [np.zeros(r + 1) for r in range(size)]
    dist.all_gather(lists, np.full(rank + 1, float(rank)))
    assert [y.tolist() for y in lists] == [[0.0], [1.0, 1.0]]
    whole = np.zeros((2 * size, 3), "int32")
    dist.all_gather_single(whole, np.full((2, 3), rank, "int32"))
    assert whole[:, 0].tolist() == [0, 0, 1, 1]
    mine = np.zeros((2, 3), "int32")
    dist.reduce_scatter_single(mine, whole)
    assert (mine == 2 * rank).all()
    outs: list[Any] = [np.zeros(2) for _ in range(size)]
    dist.all_to_all(outs, [np.full(2, 10.0 * rank + to) for to in range(size)])
    assert [y[0] for y in outs] == [float(rank), 10.0 + rank]
    gathered: Any = [np.zeros(1) for _ in range(size)] if rank == 0 else None
    dist.gather(np.full(1, rank + 1.0), gathered)
    part = np.zeros(1)
    dist.scatter(part, gathered)
    assert part == rank + 1
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * (rank + 1)})
    assert [entry["rank"] for entry in everybody] == list(range(size))
    if rank:
        dist.send(x, 0)
    else:
        assert dist.recv(x, 1) == 1
    works = [dist.all_reduce(np.ones(3), async_op=True) for _ in range(2)]
    assert all(work is not None and work.wait() for work in works)
    mesh = dist.init_device_mesh("cpu", (size,))
    dist.all_reduce(x, group=mesh.get_group())
    dist.monitored_barrier()
    dist.barrier()
    dist.destroy_process_group()


def test_a_class_that_has_all() -> None:
    spawn(run, nprocs=2)


def test_submodules() -> None:
    """Where torch is, and what they say where torch's own groups are needed; without torch the rest is there as well."""
    pytest.importorskip("torch")
    program = ("import sys, arraycomm.distributed as dist\n"
               "assert dist.constants.default_pg_timeout == dist.default_pg_timeout and dist.optim\n"
               "assert not any(name.partition('.')[0] == 'torch' for name in sys.modules)\n"
               "from arraycomm.distributed.nn.functional import all_reduce\n"
               "import arraycomm.frameworks.torch.autograd as autograd\n"
               "assert dist.nn.functional.all_reduce is all_reduce is autograd.all_reduce\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for stand_in in (dist.optim.ZeroRedundancyOptimizer, dist.optim.DistributedOptimizer, dist.nn.RemoteModule):  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match=r'call torch.distributed.init_process_group\("arraycomm"\)'):
            stand_in([], object)
    for name in torch_only.MODULES:
        path = f"arraycomm.distributed.{name}"
        for program in (f"import {path}", f"from {path}.deeper import x", "from {} import {}".format(*path.rsplit(".", 1))):
            with pytest.raises(ModuleNotFoundError, match=f"torch.distributed.{name} works on torch's own groups"):
                exec(program, {})
        with pytest.raises(AttributeError, match="torch's own groups"):
            getattr(dist, name)
    for program in ("import arraycomm.distributed.nonsense", "import nonsense.distributed.fsdp"):
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            exec(program, {})


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    names: Sequence[str] = [name for name in sys.modules if name.partition(".")[0] == "torch"
                            or name.startswith(("arraycomm.frameworks.torch", "arraycomm.distributed.nn"))]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delattr(dist, "nn", raising=False)
    with pytest.raises(AttributeError, match="arraycomm.distributed.nn is not here: .*torch"):
        getattr(dist, "nn")  # noqa: B009 - raises
