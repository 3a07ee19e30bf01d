"""Buckets of gradients: gradients that are reduced together in one buffer, or one sparse gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from arraycomm.core.base.digest import sha256
from arraycomm.core.group.exchange import gather_integers, same_values
from arraycomm.distributed.operations.collectives import all_reduce
from arraycomm.distributed.operations.reduce_op import ReduceOp
from arraycomm.distributed.process_groups.process_group import ProcessGroup


class Bucket:
    """Gradients that are reduced together: what a communication hook is given.

    indices: of its parameters, in the order in which their gradients lie in the buffer.
    """

    def __init__(self, number: int, last: bool, indices: Sequence[int], parameters: Sequence[torch.Tensor],
                 pg: ProcessGroup) -> None:
        self.indices, self._number, self._last, self._pg = indices, number, last, pg
        self._parameters = [parameters[index] for index in indices]
        first = self._parameters[0]
        count = sum(p.numel() for p in self._parameters)
        if first.device.type == "cpu":  # memory shared by all ranks of a host: the collective needs no copy
            self.whole = pg.core.empty(count, first.dtype, like=first.detach())
        else:
            self.whole = torch.empty(count, dtype=first.dtype, device=first.device)
        self._buffer = self.whole
        self.nbytes = self.whole.numel() * self.whole.element_size()
        self.views = self.gradients()
        self.missing = len(indices)
        self.wait: Callable[[], Any] | None = None

    def index(self) -> int:
        """Its number, in the order in which buckets are reduced."""
        return self._number

    def buffer(self) -> torch.Tensor:
        """The gradients, flat."""
        return self._buffer

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Another tensor of as many elements in the buffer's place, for the hooks of this backward."""
        self._buffer = tensor

    def gradients(self) -> list[torch.Tensor]:
        """As views of the buffer."""
        pieces = self._buffer.split([p.numel() for p in self._parameters])
        return [piece.view(p.shape) for piece, p in zip(pieces, self._parameters, strict=True)]

    def parameters(self) -> list[torch.Tensor]:
        return list(self._parameters)

    def is_last(self) -> bool:
        """Whether it is the last one of this backward."""
        return self._last

    def put(self, place: int, gradient: torch.Tensor | None, name: str) -> None:
        """Stores a parameter's gradient before the reduction. None: this rank has no gradient."""
        view = self.views[place]
        if gradient is None:
            view.zero_()
            return
        _check(gradient, torch.strided, name)
        if gradient.data_ptr() != view.data_ptr() or gradient.stride() != view.stride():
            view.copy_(gradient)

    def start(self, hook: Callable[[Bucket], Any] | None) -> Callable[[], Any]:
        """Begins the reduction; returns a function that waits for it. hook: None averages."""
        if hook is None:
            work: Any = all_reduce(self.whole, ReduceOp.AVG, group=self._pg, async_op=True)
            return work.wait  # type: ignore[no-any-return]
        future = hook(self)
        if not hasattr(future, "wait"):
            raise TypeError(f"a communication hook gives a future of a tensor, got {type(future).__name__}")

        def store() -> None:
            value = future.wait()
            value = value[0] if isinstance(value, (list, tuple)) else value
            if value.data_ptr() != self.whole.data_ptr():
                self.whole.copy_(value.view(-1))

        return store

    def results(self) -> list[torch.Tensor]:
        """The reduced gradients, once backward has ended and start() has been waited for."""
        return self.views

    def begin(self) -> None:
        """For a backward."""
        self.missing = len(self.indices)
        self.set_buffer(self.whole)


@torch.no_grad()
def all_reduce_sparse_in_place(group: ProcessGroup, tensor: torch.Tensor, op: str) -> None:
    """all_reduce_sparse(), whose result replaces what the tensor held."""
    tensor.copy_(all_reduce_sparse(group, tensor, op.lower()))


@torch.no_grad()
def all_reduce_sparse(group: ProcessGroup, tensor: torch.Tensor, op: str) -> torch.Tensor:
    """all_reduce of a sparse tensor (COO): a new one, coalesced, on the tensor's device; what lies on a GPU goes by the host.

    Every rank gathers all ranks' entries and adds them itself. RuntimeError for reductions in which what is missing would not
    count as zeros, CollectiveMismatch where ranks differ in shape, dtype or op.
    """
    if op not in ("sum", "avg"):
        raise RuntimeError(f"all_reduce of sparse tensors is SUM or AVG, got {op.upper()}; use to_dense()")
    given, core = tensor.detach().coalesce(), group.core
    indices, values, shape = given.indices().cpu(), given.values().cpu(), given.shape
    about = sha256(f"{tuple(shape)} {len(indices)} {values.dtype} {op}".encode()).digest()[:7]
    told = gather_integers(core._communicator, [int.from_bytes(about, "big"), len(values)], None)
    same_values(core, [kind for kind, _ in told], "give sparse tensors of another shape, dtype or reduction")
    counts = [count for _, count in told]
    places, every = core.all_gather(indices.t(), counts=counts), core.all_gather(values, counts=counts)
    if values.dtype in (torch.float16, torch.bfloat16):
        every = every.float()  # so that the sum is rounded once
    total = torch.sparse_coo_tensor(places.t(), every, shape, check_invariants=False).coalesce()  # adds in rank order
    sums = total.values()
    if op == "avg":
        parts = torch.view_as_real(sums) if sums.is_complex() else sums
        parts.div_(len(counts), rounding_mode=None if parts.is_floating_point() else "trunc")
    return torch.sparse_coo_tensor(total.indices().to(given.device), sums.to(given.device, values.dtype), shape,
                                   is_coalesced=True, check_invariants=False)


class SparseBucket:
    """One parameter whose gradients have some of its rows only: that of an nn.Embedding(sparse=True).

    It is averaged after backward has ended, while the caller waits. Not in forward, where a parameter that is not reached becomes
    ready: the other ranks may arrive only after this rank has continued.
    """

    def __init__(self, index: int, parameter: torch.Tensor, pg: ProcessGroup) -> None:
        self.indices, self._parameter, self._pg = [index], parameter, pg
        self._gradient: torch.Tensor | None = None
        self.nbytes = parameter.numel() * parameter.element_size()
        self.missing = 1
        self.wait: Callable[[], Any] | None = None

    def put(self, place: int, gradient: torch.Tensor | None, name: str) -> None:
        if gradient is not None:
            _check(gradient, torch.sparse_coo, name)
        self._gradient = gradient

    def start(self, hook: Any) -> Callable[[], Any] | None:
        """Does nothing yet: there is nothing to wait for. hook: None, see DistributedDataParallel.register_comm_hook()."""
        return None

    def results(self) -> list[torch.Tensor]:
        mine, self._gradient = self._gradient, None
        if mine is None:
            p = self._parameter
            mine = torch.sparse_coo_tensor(p.new_zeros(1, 0, dtype=torch.int64), p.new_zeros(0, *p.shape[1:]), p.shape,
                                           check_invariants=False)
        return [all_reduce_sparse(self._pg, mine, "avg")]

    def begin(self) -> None:
        self.missing, self._gradient = 1, None


def _check(gradient: torch.Tensor, layout: torch.layout, name: str) -> None:
    if gradient.requires_grad:
        raise RuntimeError("gradients of gradients are not reduced over the ranks: this DistributedDataParallel takes no "
                           "backward(create_graph=True); call it on the module inside, within no_sync()")
    if gradient.layout is layout:
        return
    if layout is torch.strided:
        raise RuntimeError(f"the gradient of {name} is sparse ({gradient.layout}), which this DistributedDataParallel reduces "
                           "for nn.Embedding and nn.EmbeddingBag with sparse=True only; use a dense one")
    raise RuntimeError(f"the gradient of {name} is dense, and its nn.Embedding has sparse=True: something else uses this "
                       "parameter as well; use sparse=False")
