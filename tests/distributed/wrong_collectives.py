"""Wrong calls of collectives, object collectives, barriers and Work: see wrong.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .wrong import Case, Site

RANKS = 3
PARAMETER = "Invalid function argument. Expected parameter"
UNLIKE = "tensors with different dtypes"


def _torch() -> Any:
    return importlib.import_module("torch")


def fixed(s: Site, *shape: int) -> Any:
    """A read-only array of NumPy's."""
    x = s.zeros(*shape)
    x.flags.writeable = False
    return x


NO_ARRAYS: dict[str, Callable[[Site], Any]] = {
    "None": lambda s: None, "a number": lambda s: 3, "a list": lambda s: [s.a], "a string": lambda s: "x",
         "bytes": lambda s: b"x"}
ON_ONE: dict[str, Callable[[Site, Any], Any]] = {
    "all_reduce": lambda s, x: s.dist.all_reduce(x, group=s.group),
    "broadcast": lambda s, x: s.dist.broadcast(x, 0, group=s.group),
    "reduce": lambda s, x: s.dist.reduce(x, 0, group=s.group),
    "scatter": lambda s, x: s.dist.scatter(x, [s.a] * RANKS if s.rank == 0 else None, 0, group=s.group),
    "gather": lambda s, x: s.dist.gather(x, [s.a] * RANKS if s.rank == 0 else None, 0, group=s.group),
    "all_gather": lambda s, x: s.dist.all_gather([s.a] * RANKS, x, group=s.group),
}


def _with(call: Callable[[Site, Any], Any], make: Callable[[Site], Any]) -> Callable[[Site], Any]:
    return lambda s: call(s, make(s))


TYPES = [Case(f"{name} of {what}", TypeError, f"{PARAMETER} `tensor`", _with(call, make))
         for name, call in ON_ONE.items() for what, make in NO_ARRAYS.items()]
TYPES += [
    Case("all_reduce by a string", TypeError, f"{PARAMETER} `op`", lambda s: s.dist.all_reduce(s.a, op="sum", group=s.group)),
    Case("all_reduce by a number", TypeError, f"{PARAMETER} `op`", lambda s: s.dist.all_reduce(s.a, op=0, group=s.group)),
    Case("all_reduce by None", TypeError, f"{PARAMETER} `op`", lambda s: s.dist.all_reduce(s.a, op=None, group=s.group)),
    Case("reduce by a string", TypeError, f"{PARAMETER} `op`", lambda s: s.dist.reduce(s.a, 0, op="sum", group=s.group)),
    Case("reduce_scatter by a string", TypeError, f"{PARAMETER} `op`",
         lambda s: s.dist.reduce_scatter(s.a, [s.a] * RANKS, op="sum", group=s.group)),
    Case("reduce_scatter_single by a string", TypeError, f"{PARAMETER} `op`",
         lambda s: s.dist.reduce_scatter_single(s.a, s.zeros(6), op="sum", group=s.group)),
    Case("premul_sum without a factor", TypeError, "_make_nccl_premul_sum",
         lambda s: s.dist.all_reduce(s.a, op=s.dist.ReduceOp.PREMUL_SUM, group=s.group)),
    Case("ReduceOp of a string", TypeError, "ReduceOp()", lambda s: s.dist.ReduceOp("sum")),
    Case("factor of SUM", RuntimeError, "factor", lambda s: s.dist.ReduceOp(s.dist.ReduceOp.SUM).factor),
    Case("all_gather into an array", TypeError, f"{PARAMETER} `tensor_list`",
         lambda s: s.dist.all_gather(s.a, s.a, group=s.group)),
    Case("all_gather into a tuple", TypeError, f"{PARAMETER} `tensor_list`",
         lambda s: s.dist.all_gather((s.a,) * RANKS, s.a, group=s.group)),
    Case("all_gather into None", TypeError, f"{PARAMETER} `tensor_list`", lambda s: s.dist.all_gather(None, s.a, group=s.group)),
    Case("all_gather into a list with a number", TypeError, f"{PARAMETER} `tensor_list`",
         lambda s: s.dist.all_gather([s.a, 3, s.a], s.a, group=s.group)),
    Case("gather into a tuple", TypeError, f"{PARAMETER} `gather_list`",
         lambda s: s.dist.gather(s.a, (s.a,) * RANKS, dst=s.rank, group=s.group)),
    Case("scatter of a tuple", TypeError, f"{PARAMETER} `scatter_list`",
         lambda s: s.dist.scatter(s.a, (s.a,) * RANKS, src=s.rank, group=s.group)),
    Case("scatter of a list with None", TypeError, f"{PARAMETER} `scatter_list`",
         lambda s: s.dist.scatter(s.a, [s.a, None, s.a], src=s.rank, group=s.group)),
    Case("reduce_scatter of an array", TypeError, f"{PARAMETER} `input_list`",
         lambda s: s.dist.reduce_scatter(s.a, s.zeros(6), group=s.group)),
    Case("reduce_scatter into a list", TypeError, f"{PARAMETER} `output`",
         lambda s: s.dist.reduce_scatter([s.a], [s.a] * RANKS, group=s.group)),
    Case("all_to_all into an array", TypeError, f"{PARAMETER} `output_tensor_list`",
         lambda s: s.dist.all_to_all(s.zeros(6), [s.a] * RANKS, group=s.group)),
    Case("all_to_all of None", TypeError, f"{PARAMETER} `input_tensor_list`",
         lambda s: s.dist.all_to_all([s.a] * RANKS, None, group=s.group)),
    Case("all_gather_single into a list", TypeError, f"{PARAMETER} `output_tensor`",
         lambda s: s.dist.all_gather_single([s.a] * RANKS, s.a, group=s.group)),
    Case("all_gather_single of None", TypeError, f"{PARAMETER} `input_tensor`",
         lambda s: s.dist.all_gather_single(s.zeros(6), None, group=s.group)),
    Case("reduce_scatter_single of a list", TypeError, f"{PARAMETER} `input`",
         lambda s: s.dist.reduce_scatter_single(s.a, [s.a] * RANKS, group=s.group)),
    Case("all_to_all_single of None", TypeError, f"{PARAMETER} `input`",
         lambda s: s.dist.all_to_all_single(s.b, None, group=s.group)),
    Case("all_to_all_single with splits of a string", TypeError, "split",
         lambda s: s.dist.all_to_all_single(s.zeros(3), s.zeros(3), "abc", "abc", group=s.group)),
    Case("all_to_all_single with fractions of rows", TypeError, "split",
         lambda s: s.dist.all_to_all_single(s.zeros(3), s.zeros(3), [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], group=s.group)),
    Case("all_to_all_single with a number of rows", TypeError, "split",
         lambda s: s.dist.all_to_all_single(s.zeros(3), s.zeros(3), 1, 1, group=s.group)),
    Case("all_reduce_coalesced of a string", TypeError, f"{PARAMETER} `tensors`",
         lambda s: s.dist.all_reduce_coalesced("ab", group=s.group)),
    Case("all_reduce_coalesced of a list with None", TypeError, f"{PARAMETER} `tensors`",
         lambda s: s.dist.all_reduce_coalesced([s.a, None], group=s.group)),
    Case("all_gather_coalesced into an array", TypeError, f"{PARAMETER} `output_tensor_lists`",
         lambda s: s.dist.all_gather_coalesced(s.a, [s.a], group=s.group)),
    Case("all_gather_coalesced of an array", TypeError, f"{PARAMETER} `input_tensor_list`",
         lambda s: s.dist.all_gather_coalesced([[s.a]] * RANKS, s.a, group=s.group)),
    Case("barrier with a number for device_ids", None, "device_ids type should be List[int]",
         lambda s: s.dist.barrier(s.group, device_ids=3), ours=TypeError, why="as torch's documents have it"),
    Case("barrier with seconds", TypeError, "datetime.timedelta", lambda s: s.dist.barrier(s.group, timeout=3)),
    Case("monitored_barrier with seconds", TypeError, "datetime.timedelta",
         lambda s: s.dist.monitored_barrier(s.group, timeout=3)),
    Case("barrier with a fraction of seconds", None, "", lambda s: s.dist.barrier(s.group, timeout=2.5)),
    Case("monitored_barrier with a fraction of seconds", None, "", lambda s: s.dist.monitored_barrier(s.group, timeout=2.5)),
    Case("wait with a fraction of seconds", None, "", lambda s: s.dist.all_reduce(s.a, group=s.group, async_op=True).wait(2.5)),
    Case("wait with seconds", TypeError, "datetime.timedelta",
         lambda s: s.dist.all_reduce(s.a, group=s.group, async_op=True).wait(3)),
]

# ---- groups and ranks ----

NO_GROUP = "is not registered"


def _in(group: object) -> Callable[[Site], Any]:
    return lambda s: s.dist.all_reduce(s.a, group=group)


GROUPS = [
    *(Case(f"all_reduce in {what}", ValueError, NO_GROUP, _in(group))
      for what, group in (("a number", 3), ("a string", "x"))),
    Case("all_reduce in the class group", ValueError, NO_GROUP, lambda s: s.dist.all_reduce(s.a, group=s.dist.group)),
    Case("all_reduce in a list of ranks", TypeError, NO_GROUP, lambda s: s.dist.all_reduce(s.a, group=[0, 1, 2]), ours=ValueError,
         why="torch's is that a list cannot be hashed"),
    Case("barrier in a number", AttributeError, NO_GROUP, lambda s: s.dist.barrier(3), ours=ValueError,
         why="as for all others; torch calls a method of it"),
    Case("all_gather_object in a string", ValueError, NO_GROUP,
         lambda s: s.dist.all_gather_object([None] * RANKS, 1, group="x")),
    Case("monitored_barrier in a number", ValueError, NO_GROUP, lambda s: s.dist.monitored_barrier(3)),
]
AS_GLOBAL = "as for a global rank that the group has not"
RANK_CASES = [
    Case("broadcast without src", ValueError, "Must specify", lambda s: s.dist.broadcast(s.a, group=s.group)),
    Case("reduce without dst", ValueError, "Must specify", lambda s: s.dist.reduce(s.a, group=s.group)),
    Case("broadcast with src and group_src", ValueError, "Can't specify both",
         lambda s: s.dist.broadcast(s.a, src=0, group_src=0, group=s.group)),
    Case("reduce with dst and group_dst", ValueError, "Can't specify both",
         lambda s: s.dist.reduce(s.a, dst=0, group_dst=0, group=s.group)),
    Case("gather with dst and group_dst", ValueError, "Can't specify both",
         lambda s: s.dist.gather(s.a, dst=0, group_dst=0, group=s.group)),
    Case("scatter with src and group_src", ValueError, "Can't specify both",
         lambda s: s.dist.scatter(s.a, src=0, group_src=0, group=s.group)),
    Case("gather_object with dst and group_dst", ValueError, "Can't specify both",
         lambda s: s.dist.gather_object(1, [None] * RANKS, dst=0, group_dst=0, group=s.group)),
    Case("broadcast_object_list with src and group_src", ValueError, "Can't specify both",
         lambda s: s.dist.broadcast_object_list([1], src=0, group_src=0, group=s.group)),
    Case("scatter_object_list with src and group_src", ValueError, "Can't specify both",
         lambda s: s.dist.scatter_object_list([None], [1] * RANKS, src=0, group_src=0, group=s.group)),
    Case("broadcast from rank 7", ValueError, "Global rank 7 is not part of group",
         lambda s: s.dist.broadcast(s.a, 7, group=s.group)),
    Case("broadcast from rank -1", ValueError, "Global rank -1 is not part of group",
         lambda s: s.dist.broadcast(s.a, -1, group=s.group)),
    Case("broadcast from group_src 7", RuntimeError, "Group rank 7 is not part of group",
         lambda s: s.dist.broadcast(s.a, group_src=7, group=s.group), ours=ValueError, why=AS_GLOBAL),
    Case("broadcast from group_src -1", RuntimeError, "Group rank -1 is not part of group",
         lambda s: s.dist.broadcast(s.a, group_src=-1, group=s.group), ours=ValueError, why=AS_GLOBAL),
    Case("reduce to rank 7", ValueError, "Global rank 7 is not part of group", lambda s: s.dist.reduce(s.a, 7, group=s.group)),
    Case("gather to rank 7", ValueError, "Global rank 7 is not part of group",
         lambda s: s.dist.gather(s.a, dst=7, group=s.group)),
    Case("scatter from rank -2", ValueError, "Global rank -2 is not part of group",
         lambda s: s.dist.scatter(s.a, src=-2, group=s.group)),
    Case("gather_object to rank 7", ValueError, "Global rank 7 is not part of group",
         lambda s: s.dist.gather_object(1, None, dst=7, group=s.group)),
    Case("broadcast_object_list from rank 7", ValueError, "Global rank 7 is not part of group",
         lambda s: s.dist.broadcast_object_list([1], src=7, group=s.group)),
    Case("scatter_object_list from rank 7", ValueError, "Global rank 7 is not part of group",
         lambda s: s.dist.scatter_object_list([None], [1] * RANKS, src=7, group=s.group)),
    Case("broadcast from a string", ValueError, "Global rank '0' is not part of group",
         lambda s: s.dist.broadcast(s.a, "0", group=s.group)),
    Case("broadcast from 0.5", ValueError, "Global rank 0.5 is not part of group",
         lambda s: s.dist.broadcast(s.a, 0.5, group=s.group)),
    Case("broadcast from outside of the pair", ValueError, "Global rank 2 is not part of group",
         lambda s: s.dist.broadcast(s.a, 2, group=s.pair) if s.rank < 2 else _raise_outside(s)),
    Case("all_reduce by a rank outside", None, "", lambda s: s.rank < 2 or s.dist.all_reduce(s.a, group=s.pair)),
    Case("all_gather by a rank outside", None, "", lambda s: s.rank < 2 or s.dist.all_gather([s.a] * 2, s.a, group=s.pair)),
    Case("barrier by a rank outside", None, "", lambda s: s.rank < 2 or s.dist.barrier(s.pair)),
    Case("monitored_barrier by a rank outside", None, "", lambda s: s.rank < 2 or s.dist.monitored_barrier(s.pair)),
    Case("objects by a rank outside", None, "", lambda s: s.rank < 2 or s.dist.all_gather_object([None] * 2, 1, group=s.pair)),
    Case("gather without a list at the root", ValueError, "must be specified on destination rank",
         lambda s: s.dist.gather(s.a, dst=s.rank, group=s.group)),
    Case("gather with a list elsewhere", ValueError, "must NOT be specified",
         lambda s: s.dist.gather(s.a, [s.a] * RANKS, dst=s.next, group=s.group)),
    Case("scatter without a list at the root", ValueError, "must be specified on source rank",
         lambda s: s.dist.scatter(s.a, src=s.rank, group=s.group)),
    Case("scatter with a list elsewhere", ValueError, "must NOT be specified",
         lambda s: s.dist.scatter(s.a, [s.a] * RANKS, src=s.next, group=s.group)),
]


def _raise_outside(s: Site) -> None:
    """The rank that is not in the pair has nothing to do."""
    if s.rank == 2:
        raise ValueError("Global rank 2 is not part of group")


# ---- sizes ----

SIZES = [
    Case("all_gather into a short list", RuntimeError, "list size 1", lambda s: s.dist.all_gather([s.a], s.a, group=s.group)),
    Case("all_gather into a long list", RuntimeError, "list size 4", lambda s: s.dist.all_gather([s.a] * 4, s.a, group=s.group)),
    Case("all_gather into an empty list", RuntimeError, "list size 0", lambda s: s.dist.all_gather([], s.a, group=s.group)),
    Case("all_gather into larger arrays", RuntimeError, "invalid tensor size",
         lambda s: s.dist.all_gather([s.b, s.b, s.b], s.a, group=s.group)),
    Case("gather into a short list", RuntimeError, "list size 2",
         lambda s: s.dist.gather(s.a, [s.a] * 2, dst=s.rank, group=s.group)),
    Case("gather into arrays of other sizes", RuntimeError, "invalid tensor size at index 1",
         lambda s: s.dist.gather(s.a, [s.a, s.b, s.a], dst=s.rank, group=s.group)),
    Case("scatter of a long list", RuntimeError, "list size 4",
         lambda s: s.dist.scatter(s.a, [s.a] * 4, src=s.rank, group=s.group)),
    Case("scatter of arrays of another size", RuntimeError, "invalid tensor size at index 0",
         lambda s: s.dist.scatter(s.a, [s.b] * 3, src=s.rank, group=s.group)),
    Case("reduce_scatter of a short list", RuntimeError, "list size 1",
         lambda s: s.dist.reduce_scatter(s.a, [s.a], group=s.group)),
    Case("reduce_scatter of larger arrays", RuntimeError, "invalid tensor size",
         lambda s: s.dist.reduce_scatter(s.a, [s.b] * 3, group=s.group)),
    Case("all_gather_single into too much", RuntimeError, "3 times as many",
         lambda s: s.dist.all_gather_single(s.zeros(9), s.a, group=s.group)),
    Case("all_gather_single into too little", RuntimeError, "3 times as many",
         lambda s: s.dist.all_gather_single(s.a, s.a, group=s.group)),
    Case("reduce_scatter_single of too much", RuntimeError, "3 times as many",
         lambda s: s.dist.reduce_scatter_single(s.a, s.zeros(9), group=s.group)),
    Case("all_to_all_single that does not divide", RuntimeError, "does not divide equally",
         lambda s: s.dist.all_to_all_single(s.zeros(4), s.zeros(4), group=s.group)),
    Case("all_to_all_single of splits that do not add up", RuntimeError, "Split sizes doesn't match total dim 0 size",
         lambda s: s.dist.all_to_all_single(s.zeros(4), s.zeros(4), [1, 1, 1], [2, 1, 1], group=s.group)),
    Case("all_to_all_single of too few splits", RuntimeError, "Number of tensor splits not equal to group size",
         lambda s: s.dist.all_to_all_single(s.zeros(4), s.zeros(4), [4], [4], group=s.group)),
    Case("all_to_all_single of negative splits", RuntimeError, "Split sizes",
         lambda s: s.dist.all_to_all_single(s.zeros(4), s.zeros(4), [-1, 3, 2], [-1, 3, 2], group=s.group),
         fatal="SIGSEGV"),
    Case("all_to_all_single into another size", RuntimeError, "`output` has 9 elements",
         lambda s: s.dist.all_to_all_single(s.zeros(9), s.zeros(3), group=s.group)),
    Case("all_to_all_single of a 0-d array", RuntimeError, "0-d",
         lambda s: s.dist.all_to_all_single(s.array(1.0), s.array(1.0), group=s.group)),
    Case("all_to_all into a short list", RuntimeError, "list size 1",
         lambda s: s.dist.all_to_all([s.a], [s.a] * 3, group=s.group)),
    Case("all_to_all into other sizes", RuntimeError, "which this rank sends to itself",
         lambda s: s.dist.all_to_all([s.b] * 3, [s.a] * 3, group=s.group)),
    Case("all_to_all of empty lists", RuntimeError, "list size 0", lambda s: s.dist.all_to_all([], [], group=s.group)),
    Case("all_reduce_coalesced of nothing", RuntimeError, "at least one tensor",
         lambda s: s.dist.all_reduce_coalesced([], group=s.group)),
    Case("all_gather_coalesced into a short list", RuntimeError, "list size 1",
         lambda s: s.dist.all_gather_coalesced([[s.a]], [s.a], group=s.group)),
    Case("all_gather_coalesced into other sizes", RuntimeError, "invalid size of output tensors",
         lambda s: s.dist.all_gather_coalesced([[s.b]] * 3, [s.a], group=s.group)),
]

# ---- dtypes, reductions and memory ----


EVERYWHERE = "a ValueError, as torch's all_reduce and all_gather have it for the same mistake"
NOT_HERE = "only dense tensors of plain dtypes in host memory: a TypeError that says what to pass, before anything is sent"


def _by(op: str) -> Callable[[Site], Any]:
    return lambda s: s.dist.all_reduce(s.a, op=getattr(s.dist.ReduceOp, op), group=s.group)


def _of(dtype: str) -> Callable[[Site], Any]:
    return lambda s: s.dist.all_reduce(s.a.astype(dtype), group=s.group)


def _int(s: Site) -> Any:
    return s.array([1, 2], "int32")


def _complex(s: Site) -> Any:
    return s.array([1, 2], "complex64")


KINDS = [
    Case("all_gather into other dtypes", ValueError, UNLIKE, lambda s: s.dist.all_gather([_int(s)] * 3, s.a, group=s.group)),
    Case("all_gather into mixed dtypes", ValueError, UNLIKE,
         lambda s: s.dist.all_gather([s.a, _int(s), s.a], s.a, group=s.group)),
    Case("gather into another dtype", ValueError, UNLIKE, lambda s: s.dist.gather(s.a, [_int(s)] * 3, dst=s.rank, group=s.group)),
    Case("scatter of another dtype", ValueError, UNLIKE, lambda s: s.dist.scatter(s.a, [_int(s)] * 3, src=s.rank, group=s.group)),
    Case("reduce_scatter of another dtype", ValueError, UNLIKE,
         lambda s: s.dist.reduce_scatter(s.a, [_int(s)] * 3, group=s.group)),
    Case("all_gather_single into another dtype", RuntimeError, UNLIKE,
         lambda s: s.dist.all_gather_single(s.zeros(6), _int(s), group=s.group), ours=ValueError, why=EVERYWHERE),
    Case("reduce_scatter_single of another dtype", RuntimeError, UNLIKE,
         lambda s: s.dist.reduce_scatter_single(_int(s), s.zeros(6), group=s.group), ours=ValueError, why=EVERYWHERE),
    Case("all_to_all_single into another dtype", ValueError, UNLIKE,
         lambda s: s.dist.all_to_all_single(s.zeros(3), s.array([1, 2, 3], "int32"), group=s.group)),
    Case("all_to_all into another dtype", ValueError, UNLIKE,
         lambda s: s.dist.all_to_all([s.a] * 3, [_int(s)] * 3, group=s.group)),
    Case("all_reduce_coalesced of two dtypes", ValueError, UNLIKE,
         lambda s: s.dist.all_reduce_coalesced([s.a, _int(s)], group=s.group)),
    Case("the maximum of complex numbers", ValueError, "all_reduce does not support RedOpType.MAX on complex tensors",
         lambda s: s.dist.all_reduce(_complex(s), op=s.dist.ReduceOp.MAX, group=s.group)),
    Case("the product of complex numbers", ValueError, "RedOpType.PRODUCT on complex tensors",
         lambda s: s.dist.all_reduce(_complex(s), op=s.dist.ReduceOp.PRODUCT, group=s.group)),
    Case("the bits of complex numbers", RuntimeError, "RedOpType.BAND on complex tensors",
         lambda s: s.dist.reduce(_complex(s), 0, op=s.dist.ReduceOp.BAND, group=s.group), ours=ValueError, why=EVERYWHERE),
    Case("reduce_scatter of complex minima", RuntimeError, "RedOpType.MIN on complex tensors",
         lambda s: s.dist.reduce_scatter(_complex(s), [_complex(s)] * 3, op=s.dist.ReduceOp.MIN, group=s.group), ours=ValueError,
         why=EVERYWHERE),
    *(Case(f"{op} of floats", RuntimeError, f"Cannot use ReduceOp.{op}",
           _by(op))
      for op in ("BAND", "BOR", "BXOR")),
    Case("the average of bool", RuntimeError, "Cannot use ReduceOp.AVG",
         lambda s: s.dist.all_reduce(s.array([True], "bool"), op=s.dist.ReduceOp.AVG, group=s.group)),
    Case("all_reduce of a sparse tensor", None, "", lambda s: s.dist.all_reduce(s.a.to_sparse(), group=s.group), only="torch"),
    Case("all_reduce of a sparse tensor by MAX", RuntimeError, "to_dense",
         lambda s: s.dist.all_reduce(s.a.to_sparse(), op=s.dist.ReduceOp.MAX, group=s.group), only="torch"),
    Case("broadcast of a sparse tensor", RuntimeError, "to_dense",
         lambda s: s.dist.broadcast(s.a.to_sparse(), 0, group=s.group), ours=TypeError, why=NOT_HERE, only="torch"),
    Case("all_gather of a sparse tensor", RuntimeError, "to_dense",
         lambda s: s.dist.all_gather([s.a] * 3, s.a.to_sparse(), group=s.group), ours=TypeError, why=NOT_HERE, only="torch"),
    Case("all_reduce of a tensor on meta", None, "real device",
         lambda s: s.dist.all_reduce(_torch().zeros(2, device="meta"), group=s.group), ours=TypeError, why=NOT_HERE,
         only="torch"),
    Case("all_gather into tensors on meta", RuntimeError, "real device",
         lambda s: s.dist.all_gather([_torch().zeros(2, device="meta")] * 3, s.a, group=s.group), ours=TypeError, why=NOT_HERE,
         only="torch"),
    Case("all_reduce of a quantized tensor", NotImplementedError, "dequantize",
         lambda s: s.dist.all_reduce(_torch().quantize_per_tensor(s.a, 0.1, 0, _torch().qint8), group=s.group), ours=TypeError,
         why=NOT_HERE, only="torch"),
    Case("all_reduce of a leaf that requires grad", None, "", lambda s: s.dist.all_reduce(s.a.requires_grad_(), group=s.group),
         only="torch"),
    Case("broadcast of a leaf that requires grad", None, "", lambda s: s.dist.broadcast(s.a.requires_grad_(), 0, group=s.group),
         only="torch"),
    Case("all_gather into leaves that require grad", RuntimeError, "",
         lambda s: s.dist.all_gather([s.zeros(2).requires_grad_() for _ in range(3)], s.a, group=s.group), ours=None,
         why="as all_reduce and broadcast of leaves, also in torch", only="torch"),
    Case("all_reduce of a result that requires grad", None, "",
         lambda s: s.dist.all_reduce(s.a.requires_grad_() * 2, group=s.group), only="torch"),
    Case("all_reduce of an expanded tensor", None, "refer to the same memory",
         lambda s: s.dist.all_reduce(s.array([1.0]).expand(3), group=s.group), ours=ValueError,
         why="its elements cannot hold different results", only="torch"),
    Case("all_reduce of a conjugate view", RuntimeError, "resolve_conj",
         lambda s: s.dist.all_reduce(_complex(s).conj(), group=s.group), ours=ValueError,
         why="as for everything that cannot be written", only="torch"),
    Case("all_reduce of a strided array", None, "", lambda s: s.dist.all_reduce(s.zeros(6)[::2], group=s.group)),
    Case("all_gather_single into a strided array", None, "",
         lambda s: s.dist.all_gather_single(s.zeros(12)[::2], s.a, group=s.group)),
    Case("reduce_scatter_single into a strided array", None, "",
         lambda s: s.dist.reduce_scatter_single(s.zeros(4)[::2], s.zeros(6), group=s.group)),
    Case("all_to_all_single into a strided array", None, "",
         lambda s: s.dist.all_to_all_single(s.zeros(6)[::2], s.zeros(3), group=s.group)),
    Case("all_gather into strided arrays", None, "",
         lambda s: s.dist.all_gather([s.zeros(4)[::2] for _ in range(3)], s.a, group=s.group)),
    Case("all_reduce of a read-only array", ValueError, "read-only", lambda s: s.dist.all_reduce(fixed(s, 2), group=s.group),
         only="numpy"),
    Case("broadcast into a read-only array", ValueError, "read-only",
         lambda s: s.dist.broadcast(fixed(s, 2), s.next, group=s.group), only="numpy"),
    Case("all_gather into read-only arrays", ValueError, "read-only",
         lambda s: s.dist.all_gather([fixed(s, 2)] * 3, s.a, group=s.group), only="numpy"),
    Case("all_gather_single into a read-only array", ValueError, "read-only",
         lambda s: s.dist.all_gather_single(fixed(s, 6), s.a, group=s.group), only="numpy"),
    Case("scatter into a read-only array", ValueError, "read-only",
         lambda s: s.dist.scatter(fixed(s, 2), [s.a] * 3, src=s.rank, group=s.group), only="numpy"),
    Case("reduce_scatter into a read-only array", ValueError, "read-only",
         lambda s: s.dist.reduce_scatter(fixed(s, 2), [s.a] * 3, group=s.group), only="numpy"),
    Case("all_to_all_single into a read-only array", ValueError, "read-only",
         lambda s: s.dist.all_to_all_single(fixed(s, 3), s.b, group=s.group), only="numpy"),
    Case("all_reduce of a NumPy scalar", ValueError, "read-only",
         lambda s: s.dist.all_reduce(s.a[0], group=s.group), only="numpy"),
    *(Case(f"all_reduce of an array of {dtype}", TypeError, "dtype",
           _of(dtype), only="numpy")
      for dtype in ("object", "U4", "datetime64[s]", "longdouble", ">f4")),
]

# ---- objects ----

WAITS = "some ranks wait for their timeout"
OBJECTS = [
    Case("all_gather_object into a number", TypeError, f"{PARAMETER} `object_list`",
         lambda s: s.dist.all_gather_object(3, 4, group=s.group)),
    Case("all_gather_object into a short list", IndexError, "must be the size of the group",
         lambda s: s.dist.all_gather_object([None], 1, group=s.group), ours=RuntimeError,
         why="as for lists of arrays, and before anything is sent"),
    Case("gather_object without a list at the root", ValueError, "must be specified on destination",
         lambda s: s.dist.gather_object(1, dst=s.rank, group=s.group)),
    Case("gather_object with a list elsewhere", ValueError, "must NOT be specified",
         lambda s: s.dist.gather_object(1, [None] * RANKS, dst=s.next, group=s.group)),
    Case("broadcast_object_list of nothing", ValueError, "at least one object",
         lambda s: s.dist.broadcast_object_list([], 0, group=s.group), fatal=WAITS),
    Case("broadcast_object_list of None", TypeError, f"{PARAMETER} `object_list`",
         lambda s: s.dist.broadcast_object_list(None, 0, group=s.group)),
    Case("scatter_object_list into an empty list", ValueError, "list of size at least 1",
         lambda s: s.dist.scatter_object_list([], [1] * RANKS, src=0, group=s.group)),
    Case("scatter_object_list of None at the root", ValueError, "source rank must provide",
         lambda s: s.dist.scatter_object_list([None], None, src=s.rank, group=s.group)),
    Case("scatter_object_list of a short list", RuntimeError, "must be the size of the group",
         lambda s: s.dist.scatter_object_list([None], [1], src=s.rank, group=s.group), fatal=WAITS),
    Case("all_gather_object of a function", None, "ARRAYCOMM_ALLOW_PICKLE",
         lambda s: s.dist.all_gather_object([None] * RANKS, timedelta, group=s.group), ours=TypeError,
         why="no pickle unless ARRAYCOMM_ALLOW_PICKLE=1"),
    Case("broadcast_object_list of a lambda", AttributeError, "ARRAYCOMM_ALLOW_PICKLE",
         lambda s: s.dist.broadcast_object_list([lambda: 1], s.rank, group=s.group), ours=TypeError,
         why="no pickle unless ARRAYCOMM_ALLOW_PICKLE=1"),
]

# ---- Work, barriers, the coalescing manager ----


def _never_come(s: Site) -> Any:
    """An operation to which rank 2 does not come."""
    return s.dist.all_reduce(s.a, group=s.group, async_op=True)


def _nested(s: Site) -> None:
    with s.dist._coalescing_manager(s.group), s.dist._coalescing_manager(s.group):
        s.dist.all_reduce(s.a, group=s.group)


WORK = [
    Case("source_rank of an all_reduce", RuntimeError, "may only be called on work objects that correspond to a recv",
         lambda s: s.dist.all_reduce(s.a, group=s.group, async_op=True).source_rank()),
    Case("unbox of a number", RuntimeError, "boxed()", lambda s: s.dist.Work.unbox(3), ours=TypeError,
         why="as for every argument of the wrong type"),
    Case("a wait that is too short", RuntimeError, "",
         lambda s: _never_come(s).wait(timedelta(milliseconds=200)) if s.rank < 2 else _fail()),
    Case("coalescing managers inside each other", KeyError, "cannot be nested", _nested, ours=ValueError,
         why="torch forgets the outer one"),
    Case("a rank does not come to barrier", RuntimeError, " timeout ",
         lambda s: s.dist.barrier(s.group, timeout=timedelta(milliseconds=500)) if s.rank != 1 else _fail("a timeout elsewhere")),
    Case("a rank does not come to monitored_barrier", RuntimeError, "failed to pass monitoredBarrier in 500 ms",
         lambda s: s.dist.monitored_barrier(s.group, timedelta(milliseconds=500)) if s.rank != 1 else _fail(
             "failed to pass monitoredBarrier in 500 ms")),
]


def _fail(text: str = "") -> None:
    raise RuntimeError(text)


CASES = TYPES + GROUPS + RANK_CASES + SIZES + KINDS + OBJECTS + WORK
