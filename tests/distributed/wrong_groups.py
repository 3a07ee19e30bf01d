"""Wrong calls that make groups and meshes, and of init_process_group() itself: see wrong.py. Two ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .wrong import Case, Site

RANKS = 2
_TORCHS_OWN = "what torch raises comes from Python on the way, and does not name the argument"


def _grid(s: Site) -> Any:
    return s.mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))


def _plain(s: Site) -> Any:
    return s.mesh.DeviceMesh("cpu", [0, 1])


def _init(s: Site, **arguments: Any) -> None:
    s.dist.init_process_group(**{"timeout": timedelta(seconds=5), **arguments})


GROUPS = [
    Case("group of no ranks", TypeError, "", lambda s: s.dist.new_group([]), ours=ValueError, why=_TORCHS_OWN),
    Case("group of rank 5", ValueError, "", lambda s: s.dist.new_group([5])),
    Case("group of rank -1", ValueError, "", lambda s: s.dist.new_group([-1])),
    Case("group of a rank twice", ValueError, "", lambda s: s.dist.new_group([0, 0])),
    Case("group of too many", ValueError, "", lambda s: s.dist.new_group([0, 1, 0])),
    Case("group of words", TypeError, "", lambda s: s.dist.new_group(["a"])),
    Case("group of a number", TypeError, "", lambda s: s.dist.new_group(3)),
    Case("group of floats", None, "",
         lambda s: s.dist.new_group([0.5]), ours=TypeError, why="torch makes a group without this rank of 1.0 and 0.5"),
    Case("group with a number as timeout", TypeError, "", lambda s: s.dist.new_group(timeout=3)),
    Case("group over an unknown backend", AssertionError, "", lambda s: s.dist.new_group(backend="foo")),
    Case("group over a number", ValueError, "", lambda s: s.dist.new_group(backend=3)),
    Case("group with another keyword", TypeError, "", lambda s: s.dist.new_group(foo=1)),
    Case("subgroups of 0", ValueError, "", lambda s: s.dist.new_subgroups(0)),
    Case("subgroups of 3", ValueError, "", lambda s: s.dist.new_subgroups(3)),
    Case("subgroups of a str", TypeError, "", lambda s: s.dist.new_subgroups("a")),
    Case("subgroups that overlap", ValueError, "", lambda s: s.dist.new_subgroups_by_enumeration([[0, 1], [1]])),
    Case("subgroups of nothing", ValueError, "", lambda s: s.dist.new_subgroups_by_enumeration([])),
    Case("split into nothing", ValueError, "", lambda s: s.dist.split_group(None, [])),
    Case("split without lists", ValueError, "", lambda s: s.dist.split_group()),
    Case("shrunk without a list", TypeError, "",
         lambda s: s.dist.shrink_group((1,)), ours=TypeError, why="the same, before the support of the backend is looked at"),
]
MESHES = [
    Case("mesh with a name twice", RuntimeError, "", lambda s: s.mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "a"))),
    Case("mesh with too few names", RuntimeError, "", lambda s: s.mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a",))),
    Case("mesh with names of another length", IndexError, "",
         lambda s: s.mesh.DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("a",)), ours=RuntimeError, why=_TORCHS_OWN),
    Case("mesh with a device's number", RuntimeError, "", lambda s: s.mesh.init_device_mesh("cpu:0", (2,))),
    Case("device type as a number", AttributeError, "",
         lambda s: s.mesh.init_device_mesh(3, (2,)), ours=RuntimeError, why=_TORCHS_OWN),
    Case("mesh of more than the world", RuntimeError, "", lambda s: s.mesh.init_device_mesh("cpu", (8,))),
    Case("mesh with a number as shape", TypeError, "", lambda s: s.mesh.init_device_mesh("cpu", 2)),
    Case("mesh with a length of 0", AssertionError, "",
         lambda s: s.mesh.init_device_mesh("cpu", (0,)), ours=TypeError, why=_TORCHS_OWN),
    Case("mesh with a negative length", RuntimeError, "",
         lambda s: s.mesh.init_device_mesh("cpu", (-1,)), ours=TypeError, why=_TORCHS_OWN),
    Case("mesh of a str as length", ValueError, "",
         lambda s: s.mesh.init_device_mesh("cpu", ("a",)), ours=TypeError, why=_TORCHS_OWN),
    Case("mesh of nothing", TypeError, "", lambda s: s.mesh.DeviceMesh("cpu")),
    Case("mesh of no ranks", AssertionError, "", lambda s: s.mesh.DeviceMesh("cpu", []), ours=ValueError, why=_TORCHS_OWN),
    Case("mesh of rank 9", None, "",
         lambda s: s.mesh.DeviceMesh("cpu", [0, 9]),
         ours=ValueError, why="torch takes the world's group for any mesh of as many ranks, and does not look which"),
    Case("mesh of uneven rows", ValueError, "", lambda s: s.mesh.DeviceMesh("cpu", [[0, 1], [0]])),
    Case("mesh of words", ValueError, "", lambda s: s.mesh.DeviceMesh("cpu", ["a"]), ours=TypeError, why=_TORCHS_OWN),
    Case("mesh of fractions", None, "", lambda s: s.mesh.DeviceMesh("cpu", [0.5]), ours=TypeError, why="torch cuts them off"),
    Case("mesh with an unknown override", RuntimeError, "",
         lambda s: s.mesh.init_device_mesh("cpu", (2,), backend_override={5: "gloo"})),
    Case("group of several dimensions", RuntimeError, "", lambda s: _grid(s).get_group()),
    Case("group of dimension 5", IndexError, "", lambda s: _grid(s).get_group(5)),
    Case("group of an unknown name", KeyError, "", lambda s: _grid(s).get_group("no")),
    Case("group of a fraction", AssertionError, "", lambda s: _grid(s).get_group(1.5)),
    Case("group by name where there are none", KeyError, "", lambda s: _plain(s).get_group("a")),
    Case("local rank by name where there are none", KeyError, "", lambda s: _plain(s).get_local_rank("a")),
    Case("size along dimension 5", IndexError, "", lambda s: _grid(s).size(5)),
    Case("part by an unknown name", KeyError, "", lambda s: _grid(s)["no"]),
    Case("part by a number", TypeError, "", lambda s: _grid(s)[0]),
    Case("part by numbers", KeyError, "", lambda s: _grid(s)[0, 1]),
    Case("part where there are no names", RuntimeError, "", lambda s: _plain(s)["a"]),
    Case("flattened where there are no names", RuntimeError, "", lambda s: _plain(s)._flatten()),
    Case("flattened under a name that is taken", ValueError, "", lambda s: _grid(s)._flatten("a")),
    Case("mesh from no groups", ValueError, "", lambda s: s.mesh.DeviceMesh.from_group([], "cpu")),
    Case("mesh from groups without ranks", ValueError, "", lambda s: s.mesh.DeviceMesh.from_group([s.group], "cpu")),
    Case("mesh from groups without names", ValueError, "", lambda s: s.mesh.DeviceMesh.from_group([s.group], "cpu", mesh=[0, 1])),
    Case("mesh from a group of other ranks", ValueError, "", lambda s: s.mesh.DeviceMesh.from_group(s.group, "cpu", mesh=[0])),
    Case("mesh from a str as group", ValueError, "",
         lambda s: s.mesh.DeviceMesh.from_group("x", "cpu"), ours=TypeError, why=_TORCHS_OWN),
]
INIT = [
    Case("a second init", ValueError, "twice", lambda s: s.dist.init_process_group("gloo")),
    Case("init without anything", ValueError, "", lambda s: _init(s, init_method="env://"), alone=True),
    Case("init with a store alone", AssertionError, "", lambda s: _init(s, store=s.dist.HashStore()), alone=True),
    Case("init with a store and no rank", AssertionError, "",
         lambda s: _init(s, store=s.dist.HashStore(), world_size=1), alone=True),
    Case("init with a store and a URL", AssertionError, "",
         lambda s: _init(s, store=s.dist.HashStore(), init_method="env://", rank=0, world_size=1), alone=True),
    Case("init with a number as timeout", TypeError, "",
         lambda s: _init(s, timeout=3, store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init with a number as URL", RuntimeError, "", lambda s: _init(s, init_method=3), alone=True),
    Case("init with an empty URL", RuntimeError, "", lambda s: _init(s, init_method="", rank=0, world_size=1), alone=True),
    Case("init with an unknown scheme", RuntimeError, "",
         lambda s: _init(s, init_method="foo://a", rank=0, world_size=1), alone=True),
    Case("init by tcp without a port", ValueError, "",
         lambda s: _init(s, init_method="tcp://127.0.0.1", rank=0, world_size=1), alone=True),
    Case("init by tcp without a rank", ValueError, "", lambda s: _init(s, init_method="tcp://127.0.0.1:1"), alone=True),
    Case("init by tcp without a size", ValueError, "", lambda s: _init(s, init_method="tcp://127.0.0.1:1", rank=0), alone=True),
    Case("init by file without a path", ValueError, "",
         lambda s: _init(s, init_method="file://", rank=0, world_size=1), alone=True),
    Case("init by file without a rank", ValueError, "", lambda s: _init(s, init_method="file:///tmp/x"), alone=True),
    Case("init with the rank twice", AssertionError, "",
         lambda s: _init(s, init_method="file:///tmp/x?rank=0", world_size=1), alone=True),
    Case("init with a str as rank", RuntimeError, "", lambda s: _init(s, init_method="env://", rank="0"), alone=True),
    Case("init with a fraction as size", RuntimeError, "", lambda s: _init(s, init_method="env://", world_size=1.0), alone=True),
    Case("init over an unknown backend", AssertionError, "",
         lambda s: _init(s, backend="foo", store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init over no backend's name", AssertionError, "",
         lambda s: _init(s, backend="", store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init over ucc", AssertionError, "",
         lambda s: _init(s, backend="ucc", store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init over a number", ValueError, "",
         lambda s: _init(s, backend=3, store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init over a pair without a backend", ValueError, "",
         lambda s: _init(s, backend="cpu:gloo,cuda", store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init over a device twice", ValueError, "",
         lambda s: _init(s, backend="cpu:gloo,cpu:gloo", store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init over an unknown device", RuntimeError, "",
         lambda s: _init(s, backend="abc:gloo", store=s.dist.HashStore(), rank=0, world_size=1), alone=True),
    Case("init with another keyword", TypeError, "", lambda s: _init(s, foo=3), alone=True),
    Case("device given as a str", AttributeError, "",
         lambda s: _init(s, device_id="cpu", store=s.dist.HashStore(), rank=0, world_size=1), ours=ValueError,
         why="torch wants a torch.device there, which programs without torch have not", alone=True),
    Case("device given as a fraction", AttributeError, "",
         lambda s: _init(s, device_id=3.5, store=s.dist.HashStore(), rank=0, world_size=1),
         ours=TypeError, why=_TORCHS_OWN, alone=True),
    Case("rank before init", ValueError, "", lambda s: s.dist.get_rank(), alone=True),
    Case("barrier before init", ValueError, "", lambda s: s.dist.barrier(), alone=True),
    Case("group before init", ValueError, "", lambda s: s.dist.new_group(), alone=True),
    Case("send before init", ValueError, "", lambda s: s.dist.send(s.a, 0), alone=True),
    Case("end before init", AssertionError, "", lambda s: s.dist.destroy_process_group(), alone=True),
]
CASES = GROUPS + MESHES + INIT
