"""Reducer: the gradients of a module's parameters, reduced in buckets while backward still computes others."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from arraycomm.core import buckets
from arraycomm.core.log import log
from arraycomm.distributed.collectives import all_reduce
from arraycomm.distributed.process_group import ProcessGroup

from .bucket import Bucket, SparseBucket

_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module "
    "has parameters that were not used in producing loss. You can enable unused parameter detection by passing the keyword "
    "argument `find_unused_parameters=True` to DistributedDataParallel, and by making sure all `forward` function outputs "
    "participate in calculating loss.\nParameters which did not receive grad for rank {rank}: {names}\n"
    "Parameter indices which did not receive grad for rank {rank}: {indices}")


class Reducer:
    """One backward at a time. Every rank has one, with alike parameters; buckets go off in the same order everywhere.

    parameters: (name, tensor) of all that are reduced; sparse: those of them whose gradients are. find_unused: looks from the
    outputs which ones backward will not reach. as_views: gradients lie in the buckets. static: what the first backward reached,
    and how often, holds for all. hook: None averages; otherwise hook(bucket) gives a future of the bucket's new values.
    Attributes: seconds, when backward began, the first bucket went off, backward's computing ended, and the last bucket came;
    unused, the parameters that the last backward did not reach here.
    """

    def __init__(self, pg: ProcessGroup, parameters: Sequence[tuple[str, torch.Tensor]], limit: int, *,
                 sparse: AbstractSet[torch.Tensor], find_unused: bool, as_views: bool, static: bool) -> None:
        self._pg, self._names, self._parameters = pg, [name for name, _ in parameters], [p for _, p in parameters]
        self._find_unused, self._as_views, self._static = find_unused, as_views, static
        self.hook: Callable[[Bucket], Any] | None = None
        kinds = [(p.dtype, p.device, index if p in sparse else -1) for index, p in enumerate(self._parameters)]
        planned = buckets.plan([p.numel() * p.element_size() for p in self._parameters], kinds, limit)
        self.buckets: list[Bucket | SparseBucket] = [
            SparseBucket(indices[0], self._parameters[indices[0]], pg) if self._parameters[indices[0]] in sparse else
            Bucket(number, number == len(planned) - 1, indices, self._parameters, pg) for number, indices in enumerate(planned)]
        self._place = {index: (bucket, place) for bucket in self.buckets for place, index in enumerate(bucket.indices)}
        self._times = [1] * len(self._parameters)  # that backward adds to each gradient
        self._learning = static
        self._active = self._queued = False
        self.unused: list[int] = []
        self._used = torch.ones(len(self._parameters), dtype=torch.int32)
        self._counting: Any = None
        self.seconds = [0.0] * 4
        self._begin()
        me = weakref.ref(self)
        for index, p in enumerate(self._parameters):
            p.register_post_accumulate_grad_hook(_told(me, index))

    # ---- between forward and backward ----

    def check_finished(self) -> None:
        """RuntimeError, naming the parameters, where the backward before did not reach all. Where it raised, on all ranks, its
        step is left out."""
        if self._broken_off():
            self._give_up()
        elif self._active and self._next < len(self.buckets) and any(self._counts):
            late = [index for index in range(len(self._parameters)) if self._left[index] > 0]
            raise RuntimeError(_UNFINISHED.format(rank=self._pg.rank(), names=", ".join(self._names[index] for index in late),
                                                  indices=" ".join(map(str, late))))

    def _broken_off(self) -> bool:
        """A backward's end has not come and will not: this is no forward inside of it, as a checkpoint's."""
        return (self._active and self._queued and self._next < len(self.buckets)
                and torch._C._current_graph_task_id() == -1)

    def _give_up(self) -> None:
        """All ranks have to: one that computed its gradients waits for buckets that do not come. It gets CollectiveMismatch in
        its backward then, and so does this one here."""
        core = self._pg.core
        reached = core.all_gather(torch.tensor([[[self._next]]]), form="stack").flatten().tolist()
        if len(set(reached)) > 1:
            raise RuntimeError(f"the last backward raised after different numbers of buckets: {reached} by rank; destroy the "
                               "group and begin again")
        self._active = False
        log().warning("the last backward raised, on all ranks, before all gradients came: its step is left out. Gradients hold "
                      "what it computed here: call zero_grad()")

    def prepare(self, outputs: Any) -> None:
        """After a forward whose backward is to reduce; it begins from the outputs."""
        self._begin()
        self._active = True
        if self._find_unused and not self._static:
            reached = _reached(outputs)
            self.unused = [index for index, p in enumerate(self._parameters) if p not in reached]
        if not self._learning:
            for index in self.unused:
                self._left[index] = 0
                self._ready(index)
        for x in tree_leaves(outputs):
            if isinstance(x, torch.Tensor) and x.grad_fn is not None:
                x.register_hook(self._reach)

    def _reach(self, _: torch.Tensor) -> None:
        """Backward has come to an output. It may raise before its first gradient; and one inside of it (a reentrant
        checkpoint's) ends before all is done."""
        self._follow()

    def skip(self) -> None:
        """After a forward whose backward is not to reduce: gradients add up. That of one before may still come, and reduces."""
        if self._broken_off():
            self._give_up()

    def _wait(self) -> None:
        """For all buckets that are under way."""
        for bucket in self.buckets:
            if bucket.wait is not None:
                bucket.wait()
                bucket.wait = None
        if self._counting is not None:
            self._counting.wait()
            self._counting = None

    def _begin(self) -> None:
        self._wait()  # where no backward came
        self._queued = False  # torch forgets the callback of a backward that raised
        self._next, self._left, self._counts = 0, list(self._times), [0] * len(self._parameters)
        for bucket in self.buckets:
            bucket.begin()

    # ---- in backward ----

    def _come(self, index: int) -> None:
        """Backward has added to a gradient."""
        if not self._active:
            return
        self._follow()
        self._counts[index] += 1
        if self._learning:
            return
        self._left[index] -= 1
        if self._left[index] < 0:
            raise RuntimeError(f"Expected to mark a variable ready only once: parameter {index}, {self._names[index]}, was "
                               "reached again by this backward. One that several reentrant backward passes reach needs "
                               "static_graph=True, and one that is used outside of `forward` is not seen by "
                               "find_unused_parameters")
        if self._left[index] == 0:
            self._ready(index)

    def _follow(self) -> None:
        """Has _end() called when the backward that runs now has ended."""
        if self._active and not self._queued:
            self._queued = True
            self.seconds[0] = time.monotonic()
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _ready(self, index: int) -> None:
        bucket, place = self._place[index]
        bucket.put(place, self._parameters[index].grad, self._names[index])
        bucket.missing -= 1
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            if self._next == 0:
                self.seconds[1] = time.monotonic()
            self.buckets[self._next].wait = self.buckets[self._next].start(self.hook)
            self._next += 1
        if self._next == len(self.buckets) and (self._find_unused or self._static):
            self._used[:] = 1
            self._used[self.unused] = 0
            self._counting = all_reduce(self._used, group=self._pg, async_op=True)

    def _end(self) -> None:
        """Backward has ended. Where not all gradients came, another one may bring them; else the next forward says so."""
        self._queued = False
        self.seconds[2] = time.monotonic()
        if self._learning:
            self._learn()
        if self._next < len(self.buckets):
            return
        self._active = False
        self._wait()
        used = self._used.tolist()  # by how many ranks, where that was counted
        for bucket in self.buckets:
            for index, view in zip(bucket.indices, bucket.results(), strict=True):
                if used[index]:
                    self._store(self._parameters[index], view)
        self.seconds[3] = time.monotonic()

    def _learn(self) -> None:
        self._learning = False
        self._times = [max(count, 1) for count in self._counts]
        self.unused = [index for index, count in enumerate(self._counts) if not count]
        self._left = [0] * len(self._parameters)
        for index in reversed(range(len(self._parameters))):
            self._ready(index)

    def _store(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        if self._as_views:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.clone()
        else:
            parameter.grad.copy_(view)


def _told(reducer: weakref.ref[Reducer], index: int) -> Callable[[Any], None]:
    """A parameter's hook. It must not keep the reducer alive: a cycle through torch is not found by Python."""
    def hook(_: Any) -> None:
        found = reducer()
        if found is not None:
            found._come(index)

    return hook


def _reached(outputs: Any) -> set[torch.Tensor]:
    """The parameters that a backward from these outputs adds gradients to."""
    tensors = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)]
    found = {x for x in tensors if x.is_leaf and x.requires_grad}
    waiting = [x.grad_fn for x in tensors if x.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting.append(node)
            if hasattr(node, "variable"):
                found.add(node.variable)
    return found
