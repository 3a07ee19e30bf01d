"""Collectives through which gradients flow, over arraycomm.distributed. Names and forms are torch.distributed.nn.functional's.

Each gives new tensors and leaves its inputs alone. In backward every rank takes part again, in the same order: all ranks must
run it. Ranks (src, dst) are ranks of the world, group None is the default group. The gradient of a rank's input is that of the
sum of all ranks' losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from arraycomm.distributed.operations import collectives, lists
from arraycomm.distributed.operations.reduce_op import ReduceOp
from arraycomm.distributed.process_groups.process_group import ProcessGroup
from arraycomm.distributed.process_groups.world import resolve

Group = ProcessGroup | None


def broadcast(tensor: torch.Tensor, src: int, group: Group = None) -> torch.Tensor:
    """src's tensor on every rank. Backward: the sum of the gradients at src, zeros elsewhere."""
    return _Broadcast.apply(src, resolve(group), tensor)


def reduce(tensor: torch.Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, group: Group = None) -> torch.Tensor:
    """The reduction at dst; elsewhere the tensor itself, which means nothing. Backward: dst's gradient on every rank."""
    return _Reduce.apply(dst, op, resolve(group), tensor)


def all_reduce(tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, group: Group = None) -> torch.Tensor:
    """The reduction on every rank. Backward: the gradients reduced alike. SUM and AVG; TypeError for other reductions."""
    return _AllReduce.apply(op, resolve(group), tensor)


def all_gather(tensor: torch.Tensor, group: Group = None) -> tuple[torch.Tensor, ...]:
    """Every rank's tensor. Backward: the sum of what the ranks' gradients have at this rank's place."""
    return _AllGather.apply(resolve(group), tensor)


def gather(tensor: torch.Tensor, dst: int = 0, group: Group = None) -> tuple[torch.Tensor, ...]:
    """Every rank's tensor at dst, zeros elsewhere. Backward: each rank gets its part of dst's gradients."""
    return _Gather.apply(dst, resolve(group), tensor)


def scatter(tensors: Sequence[torch.Tensor], src: int = 0, group: Group = None) -> torch.Tensor:
    """The tensor of src's list at this rank's place; elsewhere the list tells shapes. Backward: src gathers the gradients."""
    return _Scatter.apply(src, resolve(group), *tensors)


def reduce_scatter(output: torch.Tensor, input_list: Sequence[torch.Tensor], op: ReduceOp = ReduceOp.SUM,
                   group: Group = None) -> torch.Tensor:
    """The reduction of every rank's entry at this rank's place. output tells its shape. Backward: all ranks' gradients."""
    return _ReduceScatter.apply(op, resolve(group), output, *input_list)


def all_to_all(output_tensor_list: Sequence[torch.Tensor], input_tensor_list: Sequence[torch.Tensor],
               group: Group = None) -> tuple[torch.Tensor, ...]:
    """Entry d of the inputs goes to rank d. The output list tells shapes. Backward: the same way back."""
    shapes = [tuple(x.shape) for x in output_tensor_list]
    return _AllToAll.apply(shapes, resolve(group), *input_tensor_list)


def all_to_all_single(output: torch.Tensor, input: torch.Tensor, output_split_sizes: Sequence[int] | None = None,
                      input_split_sizes: Sequence[int] | None = None, group: Group = None) -> torch.Tensor:
    """Rows of the input go to the ranks in turn. output tells the result's shape. Backward: the same way back."""
    return _AllToAllSingle.apply(tuple(output.shape), output_split_sizes, input_split_sizes, resolve(group), input)


def _differentiable(op: ReduceOp) -> None:
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise TypeError(f"the gradient of {op} does not follow from the gradients alone; use SUM or AVG")


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, src: int, pg: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
        ctx.src, ctx.pg = src, pg
        found = tensor.clone()
        collectives.broadcast(found, src, group=pg)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        total = _Reduce.apply(ctx.src, ReduceOp.SUM, ctx.pg, gradient)
        return None, None, total if _is_rank(ctx.pg, ctx.src) else torch.zeros_like(total)


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, op: ReduceOp, pg: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
        _differentiable(op)
        ctx.dst, ctx.op, ctx.pg = dst, op, pg
        found = tensor.clone()
        collectives.reduce(found, dst, op, group=pg)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        found = _Broadcast.apply(ctx.dst, ctx.pg, gradient.contiguous())
        return None, None, None, found / ctx.pg.size() if ctx.op == ReduceOp.AVG else found


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, op: ReduceOp, pg: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
        _differentiable(op)
        ctx.op, ctx.pg = op, pg
        found = tensor.clone(memory_format=torch.contiguous_format)
        collectives.all_reduce(found, op, group=pg)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, None, _AllReduce.apply(ctx.op, ctx.pg, gradient)


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, pg: ProcessGroup, tensor: torch.Tensor) -> Any:
        ctx.pg = pg
        found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(pg.size())]
        lists.all_gather(found, tensor.contiguous(), group=pg)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        mine = torch.empty_like(gradients[ctx.pg.rank()], memory_format=torch.contiguous_format)
        return None, _ReduceScatter.apply(ReduceOp.SUM, ctx.pg, mine, *gradients)


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, dst: int, pg: ProcessGroup, tensor: torch.Tensor) -> Any:
        ctx.dst, ctx.pg = dst, pg
        found = [torch.zeros_like(tensor, memory_format=torch.contiguous_format) for _ in range(pg.size())]
        lists.gather(tensor.contiguous(), found if _is_rank(pg, dst) else None, dst, group=pg)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, _Scatter.apply(ctx.dst, ctx.pg, *gradients)


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, src: int, pg: ProcessGroup, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.src, ctx.pg = src, pg
        found = torch.empty_like(tensors[pg.rank()], memory_format=torch.contiguous_format)
        lists.scatter(found, [t.contiguous() for t in tensors] if _is_rank(pg, src) else None, src, group=pg)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, None, *_Gather.apply(ctx.src, ctx.pg, gradient)


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, op: ReduceOp, pg: ProcessGroup, output: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        _differentiable(op)
        ctx.op, ctx.pg = op, pg
        found = torch.empty_like(output, memory_format=torch.contiguous_format)
        lists.reduce_scatter(found, [t.contiguous() for t in tensors], op, group=pg)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        found = _AllGather.apply(ctx.pg, gradient)
        return None, None, None, *((g / ctx.pg.size() for g in found) if ctx.op == ReduceOp.AVG else found)


class _AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, shapes: list[tuple[int, ...]], pg: ProcessGroup, *tensors: torch.Tensor) -> Any:
        ctx.shapes, ctx.pg = [tuple(t.shape) for t in tensors], pg
        found = [tensors[0].new_empty(shape) for shape in shapes]
        lists.all_to_all(found, [t.contiguous() for t in tensors], group=pg)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *_AllToAll.apply(ctx.shapes, ctx.pg, *gradients)


class _AllToAllSingle(Function):
    @staticmethod
    def forward(ctx: Any, shape: tuple[int, ...], take: Any, give: Any, pg: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
        ctx.back = tuple(tensor.shape), give, take, pg
        found = tensor.new_empty(shape)
        collectives.all_to_all_single(found, tensor.contiguous(), take, give, group=pg)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, None, None, None, _AllToAllSingle.apply(*ctx.back, gradient)


def _is_rank(pg: ProcessGroup, global_rank: int) -> bool:
    return pg.ranks[pg.rank()] == global_rank
