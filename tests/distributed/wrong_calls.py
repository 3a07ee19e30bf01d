"""Wrong calls of initialisation, groups, meshes and messages, and what torch.distributed 2.13 (gloo) raises for each.

calls() gives (name, type that torch raises, the call); DIFFERENT what is raised here instead, and why. ACCEPTED and HANGS stand
for a type: torch takes the call, or waits for its timeout or for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

ACCEPTED, HANGS = "accepted", "hangs"

Case = tuple[str, str, Callable[[], Any]]


class Setting(NamedTuple):
    """What the calls work with: the module under test, its device_mesh, an array and one that is not contiguous, this rank
    of two, a group of both, a closed group."""

    dist: Any
    mesh: Any
    x: Any
    strided: Any
    rank: int
    group: Any
    closed: Any


_NOT_SENT = "torch sends before it looks, and waits for a rank that is not there"
_UNHASHED = "torch looks it up in a dictionary; one kind of error for all that is no group here"
_TORCHS_OWN = "what torch raises comes from Python on the way, and does not name the argument"
_CLOSED = "torch goes on with a destroyed group as long as somebody holds it"
DIFFERENT: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("send to rank -1", "send to rank 7", "send to group rank 7", "send to group rank -1", "isend to rank 7",
                     "recv from rank 7", "recv from group rank -1", "irecv from rank -1", "objects to rank 7",
                     "objects from rank 7"), ("ValueError", _NOT_SENT)),
    **dict.fromkeys(("P2POp with rank 7", "P2POp with group rank 7"), ("ValueError", "it could only fail later")),
    **dict.fromkeys(("size of a str", "members of a str", "backend configuration of a str"), ("ValueError", _UNHASHED)),
    **dict.fromkeys(("size of a closed group", "members of a closed group"), ("ValueError", _CLOSED)),
    **dict.fromkeys(("all_reduce on a closed group", "barrier on a closed group"), ("RuntimeError", _CLOSED)),
    **dict.fromkeys(("world rank 7", "world's group rank 7"), ("ValueError", "torch gives any number back for the world")),
    "group of no ranks": ("ValueError", _TORCHS_OWN),
    "group of floats": ("TypeError", "torch makes a group without this rank of 1.0 and 0.5"),
    "shrunk without a list": ("TypeError", "the same, before the support of the backend is looked at"),
    "mesh with a length of 0": ("TypeError", _TORCHS_OWN),
    "mesh with a negative length": ("TypeError", _TORCHS_OWN),
    "mesh of a str as length": ("TypeError", _TORCHS_OWN),
    "mesh of no ranks": ("ValueError", _TORCHS_OWN),
    "mesh of rank 9": ("ValueError", "torch takes the world's group for any mesh of as many ranks, and does not look which"),
    "mesh of words": ("TypeError", _TORCHS_OWN),
    "mesh of fractions": ("TypeError", "torch cuts them off"),
    "mesh with names of another length": ("RuntimeError", _TORCHS_OWN),
    "mesh from a str as group": ("TypeError", _TORCHS_OWN),
    "device type as a number": ("RuntimeError", _TORCHS_OWN),
    "device given as a str": ("ValueError", "torch wants a torch.device there, which programs without torch have not"),
    "device given as a fraction": ("TypeError", _TORCHS_OWN),
    "closed group of an unknown kind": ("ValueError", _UNHASHED),
}


def calls(s: Setting) -> Iterator[Case]:
    """All of them, in an order that is the same on both ranks."""
    yield from _messages(s)
    yield from _batches_and_objects(s)
    yield from _questions(s)
    yield from _groups(s)
    yield from _meshes(s)
    yield from _second_init(s)


def _messages(s: Setting) -> Iterator[Case]:
    d, x, me, other = s.dist, s.x, s.rank, 1 - s.rank
    yield "send without a rank", "ValueError", lambda: d.send(x)
    yield "send with both ranks", "ValueError", lambda: d.send(x, other, group_dst=other)
    yield "send to itself", "ValueError", lambda: d.send(x, me)
    yield "send of a number to itself", "ValueError", lambda: d.send(3, me)
    yield "send to rank -1", HANGS, lambda: d.send(x, -1)
    yield "send to rank 7", HANGS, lambda: d.send(x, 7)
    yield "send to group rank 7", HANGS, lambda: d.send(x, group_dst=7)
    yield "send to group rank -1", HANGS, lambda: d.send(x, group_dst=-1)
    yield "send to a str", "TypeError", lambda: d.send(x, "1")
    yield "send to a fraction", "TypeError", lambda: d.send(x, float(other))
    yield "send of a list", "TypeError", lambda: d.send([x], other)
    yield "send of a number", "TypeError", lambda: d.send(3, other)
    yield "send of None", "TypeError", lambda: d.send(None, other)
    yield "send of a strided array", "RuntimeError", lambda: d.send(s.strided, other)
    yield "send with a str as tag", "TypeError", lambda: d.send(x, other, tag="a")
    yield "send with a fraction as tag", "TypeError", lambda: d.send(x, other, tag=1.5)
    yield "send with tag -1", "RuntimeError", lambda: d.send(x, other, tag=-1)
    yield "send in a str", "ValueError", lambda: d.send(x, other, group="x")
    yield "send with another keyword", "TypeError", lambda: d.send(x, other, foo=1)
    yield "isend without a rank", "ValueError", lambda: d.isend(x)
    yield "isend with both ranks", "ValueError", lambda: d.isend(x, other, group_dst=other)
    yield "isend to rank 7", HANGS, lambda: d.isend(x, 7)
    yield "isend of a number", "TypeError", lambda: d.isend(3, other)
    yield "isend of a strided array", "RuntimeError", lambda: d.isend(s.strided, other)
    yield "isend in a str", "ValueError", lambda: d.isend(x, other, group="x")
    yield "recv with both ranks", "ValueError", lambda: d.recv(x, other, group_src=other)
    yield "recv from rank 7", HANGS, lambda: d.recv(x, 7)
    yield "recv from group rank -1", HANGS, lambda: d.recv(x, group_src=-1)
    yield "recv from a str", "TypeError", lambda: d.recv(x, "1")
    yield "recv into a number", "TypeError", lambda: d.recv(3, other)
    yield "recv into a list", "TypeError", lambda: d.recv([x], other)
    yield "recv into a strided array", "RuntimeError", lambda: d.recv(s.strided, other)
    yield "recv with a str as tag", "TypeError", lambda: d.recv(x, other, tag="a")
    yield "recv in a str", "ValueError", lambda: d.recv(x, other, group="x")
    yield "irecv with both ranks", "ValueError", lambda: d.irecv(x, other, group_src=other)
    yield "irecv from rank -1", HANGS, lambda: d.irecv(x, -1)
    yield "irecv into a number", "TypeError", lambda: d.irecv(3, other)
    yield "send in a closed group", "ValueError", lambda: d.send(x, other, group=s.closed)
    yield "isend in a closed group", "ValueError", lambda: d.isend(x, other, group=s.closed)


def _batches_and_objects(s: Setting) -> Iterator[Case]:
    d, x, me, other = s.dist, s.x, s.rank, 1 - s.rank
    yield "P2POp of send", "ValueError", lambda: d.P2POp(d.send, x, other)
    yield "P2POp of a name", "ValueError", lambda: d.P2POp("isend", x, other)
    yield "P2POp without a rank", "ValueError", lambda: d.P2POp(d.isend, x)
    yield "P2POp with both ranks", "ValueError", lambda: d.P2POp(d.isend, x, other, group_peer=other)
    yield "P2POp of a number", "TypeError", lambda: d.P2POp(d.isend, 3, other)
    yield "P2POp with rank 7", ACCEPTED, lambda: d.P2POp(d.isend, x, 7)
    yield "P2POp with group rank 7", ACCEPTED, lambda: d.P2POp(d.isend, x, group_peer=7)
    yield "P2POp in a str", "ValueError", lambda: d.P2POp(d.isend, x, other, "x")
    yield "batch of nothing", "IndexError", lambda: d.batch_isend_irecv([])
    yield "batch of a number", "ValueError", lambda: d.batch_isend_irecv([3])
    yield "batch that is no list", "ValueError", lambda: d.batch_isend_irecv((d.P2POp(d.isend, x, other),))
    yield "batch in two groups", "ValueError", lambda: d.batch_isend_irecv(
        [d.P2POp(d.isend, x, other), d.P2POp(d.isend, x, other, s.group)])
    yield "batch with a strided array", "RuntimeError", lambda: d.batch_isend_irecv([d.P2POp(d.isend, s.strided, other)])
    yield "objects without a rank", "ValueError", lambda: d.send_object_list([1])
    yield "objects with both ranks", "ValueError", lambda: d.send_object_list([1], other, group_dst=other)
    yield "objects to itself", "ValueError", lambda: d.send_object_list([1], me)
    yield "objects to rank 7", HANGS, lambda: d.send_object_list([1], 7)
    yield "objects in a str", "ValueError", lambda: d.send_object_list([1], other, group="x")
    yield "objects from rank 7", HANGS, lambda: d.recv_object_list([None], 7)
    yield "objects from both ranks", "ValueError", lambda: d.recv_object_list([None], other, group_src=other)


def _questions(s: Setting) -> Iterator[Case]:
    d = s.dist
    yield "rank in a str", "ValueError", lambda: d.get_rank("x")
    yield "size of a str", "AttributeError", lambda: d.get_world_size("x")
    yield "members of a str", "KeyError", lambda: d.get_process_group_ranks("x")
    yield "backend of a str", "ValueError", lambda: d.get_backend("x")
    yield "backend configuration of a str", "TypeError", lambda: d.get_backend_config("x")
    yield "backend outside", "ValueError", lambda: d.get_backend(d.GroupMember.NON_GROUP_MEMBER)
    yield "rank of a closed group", "ValueError", lambda: d.get_rank(s.closed)
    yield "size of a closed group", ACCEPTED, lambda: d.get_world_size(s.closed)
    yield "members of a closed group", "KeyError", lambda: d.get_process_group_ranks(s.closed)
    yield "backend of a closed group", "ValueError", lambda: d.get_backend(s.closed)
    yield "all_reduce on a closed group", ACCEPTED, lambda: d.all_reduce(s.x, group=s.closed)
    yield "barrier on a closed group", ACCEPTED, lambda: d.barrier(s.closed)
    yield "group rank of a rank that is not there", "ValueError", lambda: d.get_group_rank(s.group, 7)
    yield "global rank of a rank that is not there", "ValueError", lambda: d.get_global_rank(s.group, 7)
    yield "global rank of a str", "ValueError", lambda: d.get_global_rank(s.group, "a")
    yield "group rank in a closed group", "ValueError", lambda: d.get_group_rank(s.closed, 0)
    yield "world rank 7", ACCEPTED, lambda: d.get_group_rank(d.group.WORLD, 7)
    yield "world's group rank 7", ACCEPTED, lambda: d.get_global_rank(d.group.WORLD, 7)
    yield "end of a closed group", "ValueError", lambda: d.destroy_process_group(s.closed)
    yield "end of a str", "ValueError", lambda: d.destroy_process_group("x")
    yield "closed group of an unknown kind", "TypeError", lambda: d.get_rank([0])
    yield "backend that is no str", "ValueError", lambda: d.Backend(3)
    yield "backend of an unknown device", "RuntimeError", lambda: d.get_default_backend_for_device("abc")
    yield "backend of no device", "TypeError", lambda: d.get_default_backend_for_device(None)


def _groups(s: Setting) -> Iterator[Case]:
    d = s.dist
    yield "group of no ranks", "TypeError", lambda: d.new_group([])
    yield "group of rank 5", "ValueError", lambda: d.new_group([5])
    yield "group of rank -1", "ValueError", lambda: d.new_group([-1])
    yield "group of a rank twice", "ValueError", lambda: d.new_group([0, 0])
    yield "group of too many", "ValueError", lambda: d.new_group([0, 1, 0])
    yield "group of words", "TypeError", lambda: d.new_group(["a"])
    yield "group of a number", "TypeError", lambda: d.new_group(3)
    yield "group of floats", ACCEPTED, lambda: d.new_group([0.5])
    yield "group with a number as timeout", "TypeError", lambda: d.new_group(timeout=3)
    yield "group over an unknown backend", "AssertionError", lambda: d.new_group(backend="foo")
    yield "group over a number", "ValueError", lambda: d.new_group(backend=3)
    yield "group with another keyword", "TypeError", lambda: d.new_group(foo=1)
    yield "subgroups of 0", "ValueError", lambda: d.new_subgroups(0)
    yield "subgroups of 3", "ValueError", lambda: d.new_subgroups(3)
    yield "subgroups of a str", "TypeError", lambda: d.new_subgroups("a")
    yield "subgroups that overlap", "ValueError", lambda: d.new_subgroups_by_enumeration([[0, 1], [1]])
    yield "subgroups of nothing", "ValueError", lambda: d.new_subgroups_by_enumeration([])
    yield "split into nothing", "ValueError", lambda: d.split_group(None, [])
    yield "split without lists", "ValueError", lambda: d.split_group()
    yield "shrunk without a list", "TypeError", lambda: d.shrink_group((1,))


def _meshes(s: Setting) -> Iterator[Case]:
    make, kind = s.mesh.init_device_mesh, s.mesh.DeviceMesh
    mesh = make("cpu", (1, 2), mesh_dim_names=("a", "b"))
    plain = kind("cpu", [0, 1])
    yield "mesh with a name twice", "RuntimeError", lambda: make("cpu", (1, 2), mesh_dim_names=("a", "a"))
    yield "mesh with too few names", "RuntimeError", lambda: make("cpu", (1, 2), mesh_dim_names=("a",))
    yield "mesh with names of another length", "IndexError", lambda: kind("cpu", [[0, 1]], mesh_dim_names=("a",))
    yield "mesh with a device's number", "RuntimeError", lambda: make("cpu:0", (2,))
    yield "device type as a number", "AttributeError", lambda: make(3, (2,))
    yield "mesh of more than the world", "RuntimeError", lambda: make("cpu", (8,))
    yield "mesh with a number as shape", "TypeError", lambda: make("cpu", 2)
    yield "mesh with a length of 0", "AssertionError", lambda: make("cpu", (0,))
    yield "mesh with a negative length", "RuntimeError", lambda: make("cpu", (-1,))
    yield "mesh of a str as length", "ValueError", lambda: make("cpu", ("a",))
    yield "mesh of nothing", "TypeError", lambda: kind("cpu")
    yield "mesh of no ranks", "AssertionError", lambda: kind("cpu", [])
    yield "mesh of rank 9", ACCEPTED, lambda: kind("cpu", [0, 9])
    yield "mesh of uneven rows", "ValueError", lambda: kind("cpu", [[0, 1], [0]])
    yield "mesh of words", "ValueError", lambda: kind("cpu", ["a"])
    yield "mesh of fractions", ACCEPTED, lambda: kind("cpu", [0.5])
    yield "mesh with an unknown override", "RuntimeError", lambda: make("cpu", (2,), backend_override={5: "gloo"})
    yield "group of several dimensions", "RuntimeError", lambda: mesh.get_group()
    yield "group of dimension 5", "IndexError", lambda: mesh.get_group(5)
    yield "group of an unknown name", "KeyError", lambda: mesh.get_group("no")
    yield "group of a fraction", "AssertionError", lambda: mesh.get_group(1.5)
    yield "group by name where there are none", "KeyError", lambda: plain.get_group("a")
    yield "local rank by name where there are none", "KeyError", lambda: plain.get_local_rank("a")
    yield "size along dimension 5", "IndexError", lambda: mesh.size(5)
    yield "part by an unknown name", "KeyError", lambda: mesh["no"]
    yield "part by a number", "TypeError", lambda: mesh[0]
    yield "part by numbers", "KeyError", lambda: mesh[0, 1]
    yield "part where there are no names", "RuntimeError", lambda: plain["a"]
    yield "flattened where there are no names", "RuntimeError", lambda: plain._flatten()
    yield "flattened under a name that is taken", "ValueError", lambda: mesh._flatten("a")
    yield "mesh from no groups", "ValueError", lambda: kind.from_group([], "cpu")
    yield "mesh from groups without ranks", "ValueError", lambda: kind.from_group([s.group], "cpu")
    yield "mesh from groups without names", "ValueError", lambda: kind.from_group([s.group], "cpu", mesh=[0, 1])
    yield "mesh from a group of other ranks", "ValueError", lambda: kind.from_group(s.group, "cpu", mesh=[0])
    yield "mesh from a str as group", "ValueError", lambda: kind.from_group("x", "cpu")


def _second_init(s: Setting) -> Iterator[Case]:
    """init_process_group() itself: after the world has ended, in each process alone."""
    d = s.dist
    yield "a second init", "ValueError", lambda: d.init_process_group("gloo")
    d.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    alone: dict[str, Any] = {"rank": 0, "world_size": 1}
    for name, kind, arguments in (
        ("init without anything", "ValueError", {"init_method": "env://"}),
        ("init with a store alone", "AssertionError", {"store": d.HashStore()}),
        ("init with a store and no rank", "AssertionError", {"store": d.HashStore(), "world_size": 1}),
        ("init with a store and a URL", "AssertionError", {"store": d.HashStore(), "init_method": "env://", **alone}),
        ("init with a number as timeout", "TypeError", {"timeout": 3, "store": d.HashStore(), **alone}),
        ("init with a number as URL", "RuntimeError", {"init_method": 3}),
        ("init with an empty URL", "RuntimeError", {"init_method": "", **alone}),
        ("init with an unknown scheme", "RuntimeError", {"init_method": "foo://a", **alone}),
        ("init by tcp without a port", "ValueError", {"init_method": "tcp://127.0.0.1", **alone}),
        ("init by tcp without a rank", "ValueError", {"init_method": "tcp://127.0.0.1:1"}),
        ("init by tcp without a size", "ValueError", {"init_method": "tcp://127.0.0.1:1", "rank": 0}),
        ("init by file without a path", "ValueError", {"init_method": "file://", **alone}),
        ("init by file without a rank", "ValueError", {"init_method": "file:///tmp/x"}),
        ("init with the rank twice", "AssertionError", {"init_method": "file:///tmp/x?rank=0", "world_size": 1}),
        ("init with a str as rank", "RuntimeError", {"init_method": "env://", "rank": "0"}),
        ("init with a fraction as size", "RuntimeError", {"init_method": "env://", "world_size": 1.0}),
        ("init over an unknown backend", "AssertionError", {"backend": "foo", "store": d.HashStore(), **alone}),
        ("init over no backend's name", "AssertionError", {"backend": "", "store": d.HashStore(), **alone}),
        ("init over ucc", "AssertionError", {"backend": "ucc", "store": d.HashStore(), **alone}),
        ("init over a number", "ValueError", {"backend": 3, "store": d.HashStore(), **alone}),
        ("init over a pair without a backend", "ValueError", {"backend": "cpu:gloo,cuda", "store": d.HashStore(), **alone}),
        ("init over a device twice", "ValueError", {"backend": "cpu:gloo,cpu:gloo", "store": d.HashStore(), **alone}),
        ("init over an unknown device", "RuntimeError", {"backend": "abc:gloo", "store": d.HashStore(), **alone}),
        ("init with another keyword", "TypeError", {"foo": 3}),
        ("device given as a str", "AttributeError", {"device_id": "cpu", "store": d.HashStore(), **alone}),
        ("device given as a fraction", "AttributeError", {"device_id": 3.5, "store": d.HashStore(), **alone}),
    ):
        yield name, kind, lambda arguments=arguments: d.init_process_group(**{"timeout": timedelta(seconds=5), **arguments})
    yield "rank before init", "ValueError", lambda: d.get_rank()
    yield "barrier before init", "ValueError", lambda: d.barrier()
    yield "group before init", "ValueError", lambda: d.new_group()
    yield "send before init", "ValueError", lambda: d.send(s.x, 0)
    yield "end before init", "AssertionError", lambda: d.destroy_process_group()
