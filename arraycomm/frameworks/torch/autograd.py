"""Collectives through which gradients flow, over arraycomm.distributed. Names and forms are torch.distributed.nn.functional's.

Each gives new tensors and leaves its inputs alone. In backward every rank takes part again, in the same order: all ranks must
run it. Ranks (src, dst) are ranks of the world, group None is the default group. The gradient of a rank's input is that of the
sum of all ranks' losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

from arraycomm.distributed.operations import collectives, lists
from arraycomm.distributed.operations.reduce_op import ReduceOp
from arraycomm.distributed.process_groups.process_group import ProcessGroup
from arraycomm.distributed.process_groups.world import resolve

Group = ProcessGroup | None


class _Collective(Function):
    """Both directions of one collective: run(*tensors), and the gradients that back(*gradients) makes of its results'. back calls
    the functions of this module, so that gradients have gradients."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], back: Callable[..., Sequence[torch.Tensor]], *tensors: torch.Tensor) -> Any:
        ctx.back = back
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *ctx.back(*gradients)


def broadcast(tensor: torch.Tensor, src: int, group: Group = None) -> torch.Tensor:
    """src's tensor on every rank. Backward: the sum of the gradients at src, zeros elsewhere."""
    pg = resolve(group)

    def back(gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        total = reduce(gradient, src, group=pg)
        return [total if _is_rank(pg, src) else torch.zeros_like(total)]

    run = _filled(torch.clone, lambda found, _: collectives.broadcast(found, src, group=pg))
    return _Collective.apply(run, back, tensor)


def reduce(tensor: torch.Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, group: Group = None) -> torch.Tensor:
    """The reduction at dst; elsewhere the tensor itself, which means nothing. Backward: dst's gradient on every rank."""
    pg = _differentiable(group, op)
    run = _filled(torch.clone, lambda found, _: collectives.reduce(found, dst, op, group=pg))
    return _Collective.apply(run, lambda gradient: _shares([broadcast(gradient.contiguous(), dst, pg)], op, pg), tensor)


def all_reduce(tensor: torch.Tensor, op: ReduceOp = ReduceOp.SUM, group: Group = None) -> torch.Tensor:
    """The reduction on every rank. Backward: the gradients reduced alike. SUM and AVG; TypeError for other reductions."""
    pg = _differentiable(group, op)
    run = _filled(lambda x: x.clone(memory_format=torch.contiguous_format),
                  lambda found, _: collectives.all_reduce(found, op, group=pg))
    return _Collective.apply(run, lambda gradient: [all_reduce(gradient, op, pg)], tensor)


def all_gather(tensor: torch.Tensor, group: Group = None) -> tuple[torch.Tensor, ...]:
    """Every rank's tensor. Backward: the sum of what the ranks' gradients have at this rank's place."""
    pg = resolve(group)
    run = _filled(lambda x: tuple(_empty_like(x) for _ in range(pg.size())),
                  lambda found, x: lists.all_gather(list(found), x.contiguous(), group=pg))
    return tuple(_Collective.apply(run, lambda *gradients: [reduce_scatter(gradients[pg.rank()], gradients, group=pg)], tensor))


def gather(tensor: torch.Tensor, dst: int = 0, group: Group = None) -> tuple[torch.Tensor, ...]:
    """Every rank's tensor at dst, zeros elsewhere. Backward: each rank gets its part of dst's gradients."""
    pg = resolve(group)
    run = _filled(lambda x: tuple(_empty_like(x).zero_() for _ in range(pg.size())),
                  lambda found, x: lists.gather(x.contiguous(), list(found) if _is_rank(pg, dst) else None, dst, group=pg))
    return _Collective.apply(run, lambda *gradients: [scatter(gradients, dst, pg)], tensor)  # type: ignore[no-any-return]


def scatter(tensors: Sequence[torch.Tensor], src: int = 0, group: Group = None) -> torch.Tensor:
    """The tensor of src's list at this rank's place; elsewhere the list tells shapes. Backward: src gathers the gradients."""
    pg = resolve(group)
    run = _filled(lambda *xs: _empty_like(xs[pg.rank()]),
                  lambda found, *xs: lists.scatter(found, _contiguous(xs) if _is_rank(pg, src) else None, src, group=pg))
    return _Collective.apply(run, lambda gradient: gather(gradient, src, pg), *tensors)


def reduce_scatter(output: torch.Tensor, input_list: Sequence[torch.Tensor], op: ReduceOp = ReduceOp.SUM,
                   group: Group = None) -> torch.Tensor:
    """The reduction of every rank's entry at this rank's place. output tells its shape. Backward: all ranks' gradients."""
    pg = _differentiable(group, op)
    run = _filled(lambda *_: _empty_like(output),
                  lambda found, *xs: lists.reduce_scatter(found, _contiguous(xs), op, group=pg))
    return _Collective.apply(run, lambda gradient: _shares(all_gather(gradient, pg), op, pg), *input_list)


def all_to_all(output_tensor_list: Sequence[torch.Tensor], input_tensor_list: Sequence[torch.Tensor],
               group: Group = None) -> tuple[torch.Tensor, ...]:
    """Entry d of the inputs goes to rank d. The output list tells shapes. Backward: the same way back."""
    pg, shapes = resolve(group), [_shape_of(x) for x in input_tensor_list]
    run = _filled(lambda *xs: tuple(xs[0].new_empty(y.shape) for y in output_tensor_list),
                  lambda found, *xs: lists.all_to_all(list(found), _contiguous(xs), group=pg))
    return tuple(_Collective.apply(run, lambda *gradients: all_to_all(shapes, gradients, pg), *input_tensor_list))


def all_to_all_single(output: torch.Tensor, input: torch.Tensor, output_split_sizes: Sequence[int] | None = None,
                      input_split_sizes: Sequence[int] | None = None, group: Group = None) -> torch.Tensor:
    """Rows of the input go to the ranks in turn. output tells the result's shape. Backward: the same way back."""
    pg, shape = resolve(group), _shape_of(input)
    run = _filled(lambda x: x.new_empty(output.shape), lambda found, x: collectives.all_to_all_single(
        found, x.contiguous(), output_split_sizes, input_split_sizes, group=pg))
    return _Collective.apply(run, lambda gradient: [
        all_to_all_single(shape, gradient, input_split_sizes, output_split_sizes, pg)], input)


def _differentiable(group: Group, op: ReduceOp) -> ProcessGroup:
    """The group, for a reduction whose gradient is one."""
    pg = resolve(group)
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise TypeError(f"the gradient of {op} does not follow from the gradients alone; use SUM or AVG")
    return pg


def _shares(gradients: Sequence[torch.Tensor], op: ReduceOp, pg: ProcessGroup) -> Sequence[torch.Tensor]:
    """What of a result's gradients is an input's."""
    return [g / pg.size() for g in gradients] if op == ReduceOp.AVG else gradients


def _filled(make: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors: make(*tensors) gives its result, into which call(result, *tensors) writes."""
    def run(*tensors: torch.Tensor) -> Any:
        found = make(*tensors)
        call(found, *tensors)
        return found

    return run


def _contiguous(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.contiguous() for x in tensors]


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """For backward, without the tensor's memory."""
    return torch.empty(tensor.shape, device="meta")


def _is_rank(pg: ProcessGroup, global_rank: int) -> bool:
    return pg.ranks[pg.rank()] == global_rank
