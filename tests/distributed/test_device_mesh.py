"""DeviceMesh: geometry, groups and errors, on four ranks without torch; beside torch's own where that matters."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import arraycomm
import arraycomm.distributed as dist
from arraycomm.distributed.device_mesh import DeviceMesh, init_device_mesh
from arraycomm.distributed.process_groups.grid import Grid, read_mesh
from tests.present import present

RANKS = 4


def reduced(value: int, group: dist.ProcessGroup) -> int:
    return int(group.core.all_reduce(np.array([value]))[0])


def check_two_dimensions(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert dist.is_initialized() and dist.init_device_mesh is init_device_mesh and dist.DeviceMesh is DeviceMesh
    assert repr(mesh) == "DeviceMesh((dp=2, tp=2), 'cpu', stride=(2, 1))"
    assert (mesh.shape, mesh.ndim, mesh.size(), mesh.size(0), mesh.size("tp"), mesh.device_type) == ((2, 2), 2, 4, 2, 2, "cpu")
    assert isinstance(mesh.mesh, np.ndarray) and mesh.mesh.tolist() == [[0, 1], [2, 3]] and mesh.mesh.dtype == np.int32
    assert mesh.get_rank() == rank and mesh.get_coordinate() == (rank // 2, rank % 2)
    assert (mesh.get_local_rank("dp"), mesh.get_local_rank(1)) == (rank // 2, rank % 2)
    dp, tp = mesh.get_all_groups()
    assert dp is mesh.get_group("dp") is mesh.get_group(0) is mesh["dp"].get_group() and tp is mesh.get_group(-1)
    assert (dp.group_desc, dp.ranks, tp.ranks) == ("mesh_dp", (rank % 2, rank % 2 + 2), (rank // 2 * 2, rank // 2 * 2 + 1))
    assert reduced(rank, dp) == 2 * (rank % 2) + 2 and reduced(rank, tp) == 4 * (rank // 2) + 1
    assert mesh["dp"].mesh.tolist() == [rank % 2, rank % 2 + 2] and mesh["dp", "tp"] is mesh
    assert mesh["tp"] == mesh["tp"] and hash(mesh["tp"]) == hash(mesh["tp"]) and mesh["tp"] != mesh["dp"]
    with mesh as inside:
        assert inside is mesh
    check_errors(mesh)
    flat = mesh._flatten()
    assert mesh["dp_tp"] == flat and flat.shape == (4,) and flat.get_group() is dist.group.WORLD
    assert mesh._flatten("all")["all"].get_local_rank() == rank and mesh.get_group("all") is dist.group.WORLD
    with pytest.raises(ValueError, match="dp already exists"):
        mesh._flatten("dp")


def check_errors(mesh: DeviceMesh) -> None:
    for call, error, text in (
        (lambda: mesh.get_group(), RuntimeError, "2 dimensions"),
        (lambda: mesh.get_local_rank(), RuntimeError, "2 dimensions"),
        (lambda: mesh.get_group(5), IndexError, "dimension 5"),
        (lambda: mesh.get_group("no"), KeyError, "'no' does not exist"),
        (lambda: mesh.size(7), IndexError, "dimension 7"),
        (lambda: mesh["no"], KeyError, "Valid mesh_dim_names are"),
        (lambda: mesh["tp", "dp"], KeyError, "ascending order"),
        (lambda: mesh["dp", "dp"], RuntimeError, "overlapping"),
        (lambda: mesh[0], TypeError, "indexed by names"),  # type: ignore[index]
        (lambda: DeviceMesh("cpu", [0, 1, 2, 3])["dp"], RuntimeError, "without mesh_dim_names"),
        (lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "dp")), RuntimeError, "must be unique"),
        (lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp",)), RuntimeError, "same length"),
        (lambda: init_device_mesh("cpu:0", (2, 2)), RuntimeError, "Device type with index"),
        (lambda: init_device_mesh("cpu", (2, 4)), RuntimeError, "world size 4, but found 8"),
        (lambda: init_device_mesh("cpu", (2.0, 2)), TypeError, "must be an integer, got 2.0"),  # type: ignore[arg-type]
        (lambda: init_device_mesh("cpu", (4, 0)), TypeError, "integers above 0"),
        (lambda: DeviceMesh("cpu"), TypeError, "needs `mesh`"),
        (lambda: DeviceMesh("cpu", [0, 1, 1, 2]), ValueError, r"twice or more: \[1\]"),
        (lambda: DeviceMesh("cpu", [0, 1, 2, 7]), ValueError, r"ranks \[7\]"),
        (lambda: DeviceMesh("cpu", [[0, 1], [2]]), ValueError, "equally long"),
        (lambda: DeviceMesh("cpu", range(4)).get_group("dp"), KeyError, "No `mesh_dim_names` found"),
        (lambda: mesh.get_local_rank(1.5), AssertionError, "must be an int or a name, got 1.5"),  # type: ignore[arg-type]
        (lambda: mesh.size(1.5), TypeError, "a number or a name, got 1.5"),  # type: ignore[arg-type]
        (lambda: DeviceMesh.from_group("x", "cpu"), TypeError, "takes a ProcessGroup.* got 'x'"),  # type: ignore[arg-type]
        (lambda: DeviceMesh("cpu", ["a"]), TypeError, "integers; got 'a'"),
        (lambda: DeviceMesh("cpu", [0, 1], _init_backend=False).get_group(), RuntimeError, "not initialized"),
        (lambda: init_device_mesh("cpu", (4,), backend_override={1: "gloo"}), RuntimeError, "invalid keys"),
        (lambda: init_device_mesh("cpu", (4,), mesh_dim_names=("a",), backend_override={0: "gloo", "a": "gloo"}),
         RuntimeError, "redundant dim index 0"),
    ):
        with pytest.raises(error, match=text):
            call()


def check_parts(rank: int) -> None:
    """Three dimensions, flattened parts, a mesh of some of the ranks, arrays of other libraries."""
    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("a", "b", "c"), backend_override={"b": "gloo"})
    assert mesh["b"].get_group().backend == "gloo"
    bc = mesh["b", "c"]._flatten("bc")
    assert mesh["a", "bc"].shape == (1, 4) and bc.get_group().size() == 4
    with pytest.raises(RuntimeError, match="overlapping"):
        mesh["b", "bc"]
    columns = mesh["a", "b"]._flatten("ab")
    assert columns.mesh.tolist() == [rank % 2, rank % 2 + 2] and reduced(1, columns.get_group()) == 2
    with pytest.raises(KeyError):
        mesh["b"]["bc"]
    some = DeviceMesh("cpu", np.array([[2, 3]]), mesh_dim_names=("x", "y"))
    if rank < 2:
        assert some.get_coordinate() is None and some.size() == 2 and some.mesh.tolist() == [[2, 3]]
        for call, error in ((lambda: some.get_group("y"), IndexError), (lambda: some["y"], RuntimeError)):
            with pytest.raises(error, match=f"rank {rank} is not in the mesh"):
                call()
    else:
        assert some.get_coordinate() == (0, rank - 2) and reduced(rank, some["y"].get_group()) == 5


def check_from_group(rank: int) -> None:
    world = present(dist.group.WORLD)
    assert DeviceMesh.from_group(world, "cpu").get_group() is world
    mesh = init_device_mesh("cpu", (2, 2))
    grid = [[0, 1], [2, 3]]
    again = DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh=grid, mesh_dim_names=("a", "b"))
    assert again["b"].get_group() is mesh.get_group(1) and again.get_coordinate() == mesh.get_coordinate()
    call: Callable[[], DeviceMesh]
    for call, text in (
        (lambda: DeviceMesh.from_group(mesh.get_all_groups(), "cpu"), "Must pass mesh if"),
        (lambda: DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh=grid), "Must pass mesh_dim_names"),
        (lambda: DeviceMesh.from_group([], "cpu", mesh=grid), "at least one"),
        (lambda: DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh=[0, 1, 2, 3], mesh_dim_names=("a", "b")), "ndim equal"),
        (lambda: DeviceMesh.from_group(world, "cpu", mesh=[0, 1, 2]), "Invalid mesh"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def check_copies(rank: int) -> None:
    """Copies use the groups of this process, by whatever a mesh was copied; also parts, flattened ones, and what holds them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    mesh._flatten("xy")
    held = copy.deepcopy({"held": [mesh]})["held"][0]
    for copied in (copy.copy(mesh), copy.deepcopy(mesh), pickle.loads(pickle.dumps(mesh)), held):
        assert copied == mesh and hash(copied) == hash(mesh) and repr(copied) == repr(mesh)
        assert copied.get_group("y") is mesh.get_group("y") and reduced(rank, copied["x"].get_group()) == 2 * (rank % 2) + 2
        assert copied["xy"].get_group() is mesh["xy"].get_group() and copied.mesh.tolist() == mesh.mesh.tolist()
    part = pickle.loads(pickle.dumps(mesh["y"]))
    assert part == mesh["y"] and part.get_group() is mesh.get_group("y")
    sent = pickle.dumps(mesh)
    got = [pickle.loads(bytes(one)) for one in mesh["xy"].get_group().core.all_gather_object(sent)]
    assert got[rank].get_group("x") is mesh.get_group("x") and all(one == mesh for one in got)
    other = got[(rank + 1) % RANKS]  # of another rank: here it is this one's place, without the groups that stayed there
    assert other.get_coordinate() == mesh.get_coordinate()
    with pytest.raises(RuntimeError, match="not initialized"):
        other.get_group("x")


def check_disagreement(rank: int) -> None:
    with pytest.raises((ValueError, arraycomm.PeerLost), match="DeviceMesh of"):  # who sees it first tells the others
        DeviceMesh("cpu", [0, 1, 2, 3] if rank else [3, 2, 1, 0])


def rank_main(rank: int) -> None:
    check_two_dimensions(rank)
    check_parts(rank)
    check_from_group(rank)
    check_copies(rank)
    check_disagreement(rank)
    assert "torch" not in sys.modules
    dist.destroy_process_group()


def test_on_four_ranks() -> None:
    arraycomm.spawn(rank_main, nprocs=RANKS)


def test_arrays_of_the_callers_library() -> None:
    torch = pytest.importorskip("torch")
    mesh = DeviceMesh("cpu", torch.arange(6).reshape(2, 3), _init_backend=False, _rank=4, mesh_dim_names=("a", "b"))
    assert torch.equal(mesh.mesh, torch.arange(6, dtype=torch.int32).reshape(2, 3))
    assert torch.equal(mesh["b"].mesh, torch.tensor([3, 4, 5], dtype=torch.int32)) and mesh.get_coordinate() == (1, 1)


def test_local_ranks_of_the_documents() -> None:
    """2 hosts with 4 devices each: along dimension 0 the host, along dimension 1 the place in it."""
    for rank in range(8):
        mesh = DeviceMesh(device_type="cuda", mesh=[[0, 1, 2, 3], [4, 5, 6, 7]], _init_backend=False, _rank=rank)
        assert mesh.get_coordinate() == (rank // 4, rank % 4)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 1, 2), (1, 1), (3, 2, 2)])
def test_beside_torchs_own(shape: tuple[int, ...]) -> None:
    """What every rank's mesh and its parts look like, and the kinds of errors. Torch's world is of its fake backend."""
    torch = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    grid, names = np.arange(np.prod(shape)).reshape(shape), ("a", "b", "c")[:len(shape)]
    calls: list[Callable[[Any], Any]] = [
        told, lambda mesh: mesh.size(9), lambda mesh: mesh.size(1.5), lambda mesh: mesh[0], lambda mesh: mesh[0, 1],
        lambda mesh: mesh["no"], lambda mesh: mesh["a", "no"], lambda mesh: told(mesh._flatten())]
    for count in range(1, len(shape) + 1):
        for wanted in itertools.permutations(names, count):
            flat, other = "flat" + "".join(wanted), next((name for name in names if name not in wanted), "no")
            calls += [lambda mesh, wanted=wanted: told(mesh[wanted]),  # type: ignore[misc]
                      lambda mesh, wanted=wanted, flat=flat: told(mesh[wanted]._flatten(flat)),  # type: ignore[misc]
                      lambda mesh, flat=flat: told(mesh[flat]),  # type: ignore[misc]
                      lambda mesh, flat=flat, other=other: told(mesh[flat, other])]  # type: ignore[misc]
    for rank in range(grid.size):
        torch.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=grid.size)
        try:
            for given in (names, None):
                ours = DeviceMesh("cpu", grid.tolist(), mesh_dim_names=given, _init_backend=False, _rank=rank)
                torchs = torch.device_mesh.DeviceMesh("cpu", grid.tolist(), mesh_dim_names=given)
                for number, call in enumerate(calls):
                    assert outcome(call, ours) == outcome(call, torchs), f"call {number} of rank {rank}, names {given}"
        finally:
            torch.destroy_process_group()


def told(mesh: Any) -> tuple[Any, ...]:
    return (repr(mesh), mesh.shape, mesh.ndim, mesh.size(), mesh.mesh_dim_names, tuple(mesh.get_coordinate()), mesh.mesh.tolist(),
            [mesh.size(axis) for axis in range(mesh.ndim)])


def outcome(call: Callable[[Any], Any], mesh: Any) -> Any:
    try:
        return call(mesh)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 3, 2), (2, 1, 2, 3)])
def test_geometry(shape: tuple[int, ...]) -> None:
    """Against NumPy's indexing, for every rank and every choice of dimensions."""
    ranks = np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape)
    assert read_mesh(ranks) == (shape, tuple(ranks.ravel().tolist()))
    for rank in range(ranks.size):
        grid = Grid(shape, tuple(ranks.ravel().tolist()), None, rank, None)
        assert grid.coordinate == tuple(np.argwhere(ranks == rank)[0].tolist())
        for count in range(len(shape) + 1):
            for axes in itertools.combinations(range(len(shape)), count):
                index = tuple(slice(None) if axis in axes else place for axis, place in enumerate(grid.coordinate))
                line = np.atleast_1d(ranks[index]).ravel().tolist()
                assert grid.ranks_along([(axis,) for axis in axes]) == line
                assert not axes or line[grid.position(axes)] == rank
