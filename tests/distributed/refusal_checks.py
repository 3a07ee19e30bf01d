"""Wrong calls: the exceptions that torch raises, before anything is sent, so that the group is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import arraycomm.distributed as dist
from arraycomm.core.buffer import Buffer
from arraycomm.core.types import DeviceType, DType
from arraycomm.distributed import ReduceOp

from .checks import Library, check, same
from .object_checks import refused

Case = tuple[type[Exception], str, Callable[[], Any]]
PARAMETER = "Invalid function argument. Expected parameter"


def types(a: Any, b: Any) -> Iterator[Case]:
    """a: of the library. b: two of them."""
    yield TypeError, PARAMETER + " `tensor`", lambda: dist.all_reduce(3)
    yield TypeError, PARAMETER + " `tensor`", lambda: dist.all_reduce([a])
    yield TypeError, PARAMETER + " `op`", lambda: dist.all_reduce(a, op="sum")
    yield TypeError, PARAMETER + " `op`", lambda: dist.all_reduce(a, op=0)
    yield TypeError, "_make_nccl_premul_sum", lambda: dist.all_reduce(a, op=ReduceOp.PREMUL_SUM)
    yield TypeError, PARAMETER + " `tensor`", lambda: dist.broadcast("x", 0)
    yield TypeError, PARAMETER + " `tensor_list`", lambda: dist.all_gather(a, a)
    yield TypeError, PARAMETER + " `tensor_list`", lambda: dist.all_gather([a, 3, a], a)
    yield TypeError, PARAMETER + " `tensor_list`", lambda: dist.all_gather(tuple(b), a)
    yield TypeError, PARAMETER + " `gather_list`", lambda: dist.gather(a, (a, a, a), dst=dist.get_rank())
    yield TypeError, PARAMETER + " `object_list`", lambda: dist.all_gather_object(3, 4)
    yield TypeError, PARAMETER + " `tensor`", lambda: dist.P2POp(dist.isend, 3, 0)
    yield TypeError, "device_ids type should be List[int]", lambda: dist.barrier(device_ids=3)
    yield TypeError, "datetime.timedelta", lambda: dist.barrier(timeout=3)
    yield TypeError, "datetime.timedelta", lambda: dist.monitored_barrier(timeout=3)


def ranks(a: Any) -> Iterator[Case]:
    me = dist.get_rank()
    yield ValueError, "Must specify", lambda: dist.broadcast(a)
    yield ValueError, "Must specify", lambda: dist.reduce(a)
    yield ValueError, "Must specify", lambda: dist.send(a)
    yield ValueError, "Can't specify both", lambda: dist.broadcast(a, src=0, group_src=0)
    yield ValueError, "Can't specify both", lambda: dist.reduce(a, 0, group_dst=0)
    yield ValueError, "Can't specify both", lambda: dist.gather(a, dst=0, group_dst=0)
    yield ValueError, "Can't specify both", lambda: dist.recv(a, src=0, group_src=0)
    yield ValueError, "Global rank 7 is not part of group", lambda: dist.broadcast(a, 7)
    yield ValueError, "Global rank -1 is not part of group", lambda: dist.reduce(a, -1)
    yield ValueError, "Group rank 7 is not part of group", lambda: dist.isend(a, group_dst=7)
    yield ValueError, "Invalid destination rank", lambda: dist.send(3, me)
    yield ValueError, "Invalid destination rank", lambda: dist.send_object_list([1], me)
    yield ValueError, "Argument ``gather_list`` must be specified", lambda: dist.gather(a, dst=me)
    yield ValueError, "must NOT be specified", lambda: dist.gather(a, [a, a, a], dst=(me + 1) % 3)
    yield ValueError, "Argument ``scatter_list`` must be specified", lambda: dist.scatter(a, src=me)
    yield ValueError, "must NOT be specified", lambda: dist.scatter(a, [a, a, a], src=(me + 1) % 3)
    yield ValueError, "must be specified on destination", lambda: dist.gather_object(1, dst=me)
    yield ValueError, "list of size at least 1", lambda: dist.scatter_object_list([], [1, 2, 3])
    yield ValueError, "source rank must provide", lambda: dist.scatter_object_list([None], None, src=me)
    yield ValueError, "at least one object", lambda: dist.broadcast_object_list([])
    yield IndexError, "list index out of range", lambda: dist.batch_isend_irecv([])
    yield ValueError, "Invalid ``p2p_op_list``", lambda: dist.batch_isend_irecv([3])
    yield ValueError, "Invalid ``op``", lambda: dist.P2POp(dist.send, a, 0)
    yield ValueError, "Must specify", lambda: dist.P2POp(dist.isend, a)


def sizes(lib: Library, a: Any, b: Any) -> Iterator[Case]:
    """a: two elements. b: three."""
    me = dist.get_rank()
    nine, four = lib.zeros(9), lib.zeros(4)
    yield RuntimeError, "list size 1", lambda: dist.all_gather([a], a)
    yield RuntimeError, "`tensor_list`: invalid tensor size at index 0", lambda: dist.all_gather([b, b, b], a)
    yield RuntimeError, "list size 2", lambda: dist.gather(a, [a, a], dst=me)
    yield RuntimeError, "invalid tensor size at index 1", lambda: dist.gather(a, [a, b, a], dst=me)
    yield RuntimeError, "list size 4", lambda: dist.scatter(a, [a] * 4, src=me)
    yield RuntimeError, "invalid tensor size at index 0", lambda: dist.scatter(a, [b, b, b], src=me)
    yield RuntimeError, "list size 1", lambda: dist.reduce_scatter(a, [a])
    yield RuntimeError, "invalid tensor size", lambda: dist.reduce_scatter(a, [b, b, b])
    yield RuntimeError, "3 times as many", lambda: dist.all_gather_single(nine, a)
    yield RuntimeError, "3 times as many", lambda: dist.reduce_scatter_single(a, nine)
    yield RuntimeError, "does not divide equally", lambda: dist.all_to_all_single(four, four)
    yield RuntimeError, "Split sizes doesn't match total dim 0", lambda: dist.all_to_all_single(four, four, [1, 1, 1], [2, 1, 1])
    yield RuntimeError, "Number of tensor splits not equal to group size", lambda: dist.all_to_all_single(four, four, [4], [4])
    yield RuntimeError, "`output` has 9 elements", lambda: dist.all_to_all_single(nine, b)
    yield RuntimeError, "list size 1", lambda: dist.all_to_all([a], [a, a, a])
    yield RuntimeError, f"entry {me}, which this rank sends to itself", lambda: dist.all_to_all([b] * 3, [a] * 3)
    yield RuntimeError, "at least one tensor", lambda: dist.all_reduce_coalesced([])
    yield RuntimeError, "must be the size of the group", lambda: dist.all_gather_object([None], 1)
    yield RuntimeError, "must be the size of the group", lambda: dist.scatter_object_list([None], [1], src=me)


def kinds(lib: Library, a: Any) -> Iterator[Case]:
    """Dtypes, reductions and memory."""
    me = dist.get_rank()
    whole, z = lib.array([1, 2], "int32"), lib.array(np.array([1, 2]), "complex64")
    unlike = "tensors with different dtypes"
    yield ValueError, unlike, lambda: dist.all_gather([a, whole, a], a)
    yield ValueError, unlike, lambda: dist.gather(a, [whole] * 3, dst=me)
    yield ValueError, unlike, lambda: dist.scatter(a, [whole] * 3, src=me)
    yield ValueError, unlike, lambda: dist.reduce_scatter(a, [whole] * 3)
    yield ValueError, unlike, lambda: dist.all_gather_single(lib.zeros(6), whole)
    yield ValueError, unlike, lambda: dist.reduce_scatter_single(whole, lib.zeros(6))
    yield ValueError, unlike, lambda: dist.all_to_all_single(lib.zeros(3), lib.array([1, 2, 3], "int32"))
    yield ValueError, unlike, lambda: dist.all_to_all([a, a, a], [whole] * 3)
    yield ValueError, unlike, lambda: dist.all_reduce_coalesced([a, whole])
    yield ValueError, "all_reduce does not support RedOpType.MAX on complex tensors", lambda: dist.all_reduce(z, op=ReduceOp.MAX)
    yield ValueError, "RedOpType.PRODUCT on complex tensors", lambda: dist.all_reduce(z, op=ReduceOp.PRODUCT)
    yield ValueError, "RedOpType.BAND on complex tensors", lambda: dist.reduce(z, me, op=ReduceOp.BAND)
    yield RuntimeError, "Cannot use ReduceOp.BAND", lambda: dist.all_reduce(a, op=ReduceOp.BAND)
    yield RuntimeError, "Cannot use ReduceOp.AVG", lambda: dist.all_reduce(lib.array([True], "bool"), op=ReduceOp.AVG)
    every_other = lib.zeros(6)[::2]
    for call in (dist.send, dist.isend, dist.recv, dist.irecv):
        yield RuntimeError, "has to be contiguous", lambda call=call: call(every_other, (me + 1) % 3)
    yield RuntimeError, "has to be contiguous", lambda: dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, a, (me + 1) % 3), dist.P2POp(dist.irecv, every_other, (me + 2) % 3)])


def unwritable(lib: Library) -> Iterator[Case]:
    me = dist.get_rank()
    if lib.name == "torch":
        yield ValueError, "refer to the same memory", lambda: dist.all_reduce(lib.array([1.0]).expand(3))
        return
    fixed = np.ones(2)
    fixed.flags.writeable = False
    yield ValueError, "read-only", lambda: dist.all_reduce(fixed)
    yield ValueError, "read-only", lambda: dist.broadcast(fixed, (me + 1) % 3)
    yield ValueError, "read-only", lambda: dist.all_gather([fixed] * 3, np.ones(2))
    yield ValueError, "read-only", lambda: dist.irecv(fixed, (me + 1) % 3)
    elsewhere = Buffer(4096, 2, DType.FLOAT32, DeviceType.CUDA, 0, False, (2,), None)
    for call in (dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.all_gather([x, x, x], x),
                 lambda x: dist.send(x, (me + 1) % 3), lambda x: dist.all_gather_single(x, x)):
        yield RuntimeError, "", lambda call=call: call(elsewhere)


@check
def refusals(lib: Library) -> None:
    a, b = lib.zeros(2), lib.zeros(3)
    for cases in (types(a, [a, a, a]), ranks(a), sizes(lib, a, b), kinds(lib, a), unwritable(lib)):
        for kind, text, call in cases:
            refused(kind, text, call)
    x = lib.array([1.0])
    dist.all_reduce(x)
    same(x, [3.0])


@check
def arrays_that_cannot_change(lib: Library) -> None:
    """JAX: a root may give them; where they would be written, the error names what gives a new one."""
    if lib.name == "torch":
        return
    import jax.numpy as jnp

    x = jnp.ones(2)
    refused(ValueError, "core.all_reduce(x)", lambda: dist.all_reduce(x))
    refused(ValueError, "JAX arrays are immutable", lambda: dist.all_gather([x, x, x], x))
    out = np.zeros(2)
    dist.broadcast(jnp.full(2, 4.0, "float32").astype("float32") if lib.rank == 0 else out.astype("float32"), 0)
    dist.reduce(np.zeros(2, "float32") if lib.rank == 0 else x, 0)
    same(dist.group.WORLD.core.all_reduce(x), [3.0, 3.0])
    found = [np.zeros(2, "float32") for _ in range(3)]
    dist.all_gather(found, x)
    same(found[2], [1.0, 1.0])
