"""Communication hooks of DistributedDataParallel: hook(state, bucket) gives a future of the bucket's new gradients.

Names and meaning are those of torch.distributed.algorithms.ddp_comm_hooks. state of the first three: a group of
arraycomm.distributed, or None for the default group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from arraycomm.distributed.operations.collectives import all_reduce
from arraycomm.distributed.operations.reduce_op import ReduceOp

from .bucket import Bucket

Hook = Callable[[Any, Bucket], Any]


def _averaged(tensor: torch.Tensor, group: Any) -> Any:
    work: Any = all_reduce(tensor, ReduceOp.AVG, group=group, async_op=True)
    return work.get_future()


def allreduce_hook(state: Any, bucket: Bucket) -> Any:
    """What happens without a hook."""
    return _averaged(bucket.buffer(), state)


def _compressed(dtype: torch.dtype, hook: Hook) -> Hook:
    def compressed(state: Any, bucket: Bucket) -> Any:
        buffer = bucket.buffer()
        bucket.set_buffer(buffer.to(dtype))
        return hook(state, bucket).then(lambda ended: buffer.copy_(_one(ended.value())))

    return compressed


def _one(value: Any) -> torch.Tensor:
    return value[0] if isinstance(value, (list, tuple)) else value


fp16_compress_wrapper = partial(_compressed, torch.float16)
bf16_compress_wrapper = partial(_compressed, torch.bfloat16)
fp16_compress_hook = fp16_compress_wrapper(allreduce_hook)
bf16_compress_hook = bf16_compress_wrapper(allreduce_hook)


class PowerSGDState:
    """What powerSGD_hook keeps between steps: for each bucket the error of its last approximation, and P and Q.

    matrix_approximation_rank: of P and Q. start_powerSGD_iter: steps (of all buckets) that are averaged as they are.
    min_compression_rate: a gradient is approximated where that makes it smaller by at least this factor.
    use_error_feedback: what an approximation leaves out is added to the next gradients. warm_start: Q begins as the last one.
    """

    def __init__(self, process_group: Any = None, matrix_approximation_rank: int = 1, start_powerSGD_iter: int = 1000,
                 min_compression_rate: float = 2, use_error_feedback: bool = True, warm_start: bool = True,
                 orthogonalization_epsilon: float = 0, random_seed: int = 0) -> None:
        if matrix_approximation_rank < 1:
            raise ValueError(f"matrix_approximation_rank must be at least 1, got {matrix_approximation_rank}")
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError("Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, because "
                             "PowerSGD can only be applied after the first two iterations in DDP.")
        self.process_group, self.matrix_approximation_rank = process_group, matrix_approximation_rank
        self.start_powerSGD_iter, self.min_compression_rate = start_powerSGD_iter, min_compression_rate
        self.use_error_feedback, self.warm_start = use_error_feedback, warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.iter = 0
        self.errors: dict[int, torch.Tensor] = {}
        self.qs: dict[int, torch.Tensor] = {}
        self.generator = torch.Generator().manual_seed(random_seed)  # equal on all ranks

    def __getstate__(self) -> dict[str, Any]:
        """For checkpoints: without the group. What is loaded is of the default group."""
        return {**self.__dict__, "process_group": None}

    def compresses(self, gradient: torch.Tensor) -> bool:
        if gradient.dim() < 2:
            return False
        rows, columns = gradient.shape[0], gradient[0].numel()
        return bool((rows + columns) * self.matrix_approximation_rank * self.min_compression_rate < rows * columns)


def powerSGD_hook(state: PowerSGDState, bucket: Bucket) -> Any:  # noqa: N802 - torch's name
    """Gradients as products of two thin matrices, whose averages travel: PowerSGD (arXiv:1905.13727), a bucket's at once.

    P travels before the hook returns, so that the order of collectives is the same on all ranks; Q while backward goes on.
    """
    buffer, group, index = bucket.buffer(), state.process_group, bucket.index()
    if state.iter < state.start_powerSGD_iter:
        state.iter += bucket.is_last()
        return _averaged(buffer, group)
    if state.use_error_feedback:
        if index in state.errors:
            buffer += state.errors[index]
        state.errors[index] = buffer.clone()
    gradients = bucket.gradients()
    matrices = [g.view(g.shape[0], -1) for g in gradients if state.compresses(g)]
    rest = [g for g in gradients if not state.compresses(g)]
    ps, qs = _thin(state, index, matrices)
    for m, p, q in zip(matrices, ps, qs, strict=True):
        torch.matmul(m, q, out=p)
    together = _flat([*rest, *ps], buffer)
    all_reduce(together, ReduceOp.AVG, group=group)
    averages = _cut(together, [*rest, *ps])
    plain, ps = averages[: len(rest)], averages[len(rest) :]
    for m, p, q in zip(matrices, ps, qs, strict=True):
        _orthogonalize(p, state.orthogonalization_epsilon)
        torch.matmul(m.t(), p, out=q)

    def decompress(future: Any) -> torch.Tensor:
        for m, p, q, kept in zip(matrices, ps, _cut(_one(future.value()), qs), qs, strict=True):
            torch.matmul(p, q.t(), out=m)
            kept.copy_(q)
        for g, average in zip(rest, plain, strict=True):
            g.copy_(average)
        if state.use_error_feedback:
            state.errors[index] -= buffer
        return buffer

    state.iter += bucket.is_last()
    return _averaged(_flat(qs, buffer), group).then(decompress)


def _thin(state: PowerSGDState, index: int, matrices: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """P, to be filled, and Q: the last one, or random and equal on all ranks."""
    ranks = [min(*m.shape, state.matrix_approximation_rank) for m in matrices]
    ps = [m.new_empty(m.shape[0], r) for m, r in zip(matrices, ranks, strict=True)]
    if not (state.warm_start and index in state.qs):
        qs = [torch.randn(m.shape[1], r, generator=state.generator).to(m) for m, r in zip(matrices, ranks, strict=True)]
        state.qs[index] = qs
    found: Any = state.qs[index]
    for q in found:
        _orthogonalize(q, state.orthogonalization_epsilon)
    return ps, found


def _flat(tensors: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """One behind the other."""
    return torch.cat([x.reshape(-1) for x in tensors]) if tensors else like.new_empty(0)


def _cut(flat: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    return [piece.view(x.shape) for piece, x in zip(flat.split([x.numel() for x in like]), like, strict=True)]


def _orthogonalize(matrix: torch.Tensor, epsilon: float) -> None:
    """The columns, in place (Gram-Schmidt). A column of zeros stays one."""
    for i in range(matrix.shape[1]):
        column = matrix[:, i]
        norm = math.sqrt(float((column.double() ** 2).sum()))
        column /= norm + (epsilon or torch.finfo(matrix.dtype).tiny)
        if i + 1 < matrix.shape[1]:
            others = matrix[:, i + 1 :]
            others -= torch.outer(column, column @ others)
