"""Reducer: the gradients of a module's parameters, reduced in buckets while backward still computes others."""

from __future__ import annotations

import copyreg
import functools
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from arraycomm.core.base.log import log
from arraycomm.core.group import buckets
from arraycomm.distributed.operations.collectives import all_reduce
from arraycomm.distributed.process_groups.process_group import ProcessGroup

from .bucket import Bucket, SparseBucket

_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module "
    "has parameters that were not used in producing loss. You can enable unused parameter detection by passing the keyword "
    "argument `find_unused_parameters=True` to DistributedDataParallel, and by making sure all `forward` function outputs "
    "participate in calculating loss.\nParameters which did not receive grad for rank {rank}: {names}\n"
    "Parameter indices which did not receive grad for rank {rank}: {indices}")

_LEAVES = type(None), str, bytes, int, float, complex, type, ModuleType, nn.Module  # types without outputs inside


class Reducer:
    """One backward at a time. Every rank has a Reducer with equal parameters; buckets start in the same order on all ranks.

    parameters: (name, tensor) of all that are reduced; sparse: those of them whose gradients are. find_unused: what a backward
    has not reached when it ends is reduced then. as_views: gradients lie in the buckets. static: what the first backward reached,
    and how often, holds for all. hook: None averages; otherwise hook(bucket) gives a future of the bucket's new values.
    Attributes: identities, of the parameters, see identity().
    """

    def __init__(self, pg: ProcessGroup, parameters: Sequence[tuple[str, torch.Tensor]], limit: int, *,
                 sparse: AbstractSet[torch.Tensor], find_unused: bool, as_views: bool, static: bool,
                 hook: Callable[[Bucket], Any] | None = None) -> None:
        self._pg, self._names, self._parameters = pg, [name for name, _ in parameters], [p for _, p in parameters]
        self._find_unused, self._as_views, self._static, self.hook = find_unused, as_views, static, hook
        kinds = [(p.dtype, p.device, index if p in sparse else -1) for index, p in enumerate(self._parameters)]
        planned = buckets.plan([p.numel() * p.element_size() for p in self._parameters], kinds, limit)
        self.buckets: list[Bucket | SparseBucket] = [
            SparseBucket(indices[0], self._parameters[indices[0]], pg) if self._parameters[indices[0]] in sparse else
            Bucket(number, number == len(planned) - 1, indices, self._parameters, pg) for number, indices in enumerate(planned)]
        self._place = {index: (bucket, place) for bucket in self.buckets for place, index in enumerate(bucket.indices)}
        self._times = [1] * len(self._parameters)  # how often backward accumulates into each gradient
        self._learning = static
        self._armed = self._active = self._queued = False  # a forward awaits its backward; backward runs; _end() is queued
        self._local = -1  # the backward of a forward without reduction
        self._touched = {index for index, p in enumerate(self._parameters) if p.grad is not None}  # since the last reduction
        self._used = torch.ones(len(self._parameters), dtype=torch.int32)
        self._counting: Any = None
        self.identities = [identity(p) for p in self._parameters]
        self._nodes = [get_gradient_edge(p).node for p in self._parameters]  # keep the objects behind the identities alive
        me = weakref.ref(self)
        for index, node in enumerate(self._nodes):  # not on the tensor: torch.utils.swap_tensors loses its hooks
            node.register_hook(functools.partial(_told, me, index))
        self._left, self._counts, self._next = list(self._times), [0] * len(self._parameters), 0
        self._frozen: list[int] = []

    def freeze(self, trained: Sequence[Any]) -> None:
        """From now on only parameters of these identities get gradients, on all ranks; backward does not wait for the others."""
        kept = set(trained)
        self._frozen = [index for index, known in enumerate(self.identities) if known not in kept]

    def release(self) -> None:
        """Ends this Reducer: a new one replaces it, with graph nodes of the current tensors."""
        self._wait()
        self._nodes.clear()

    # ---- between forward and backward ----

    def check_finished(self) -> None:
        """RuntimeError, naming the parameters, if the previous backward did not reach all. If it raised on all ranks, its step is
        skipped."""
        if torch._C._current_graph_task_id() != -1:  # inside of that backward, as a checkpoint's forward
            return
        self._leave_out()
        if self._active and any(self._counts):
            late = [index for index in range(len(self._parameters)) if self._left[index] > 0]
            raise RuntimeError(_UNFINISHED.format(rank=self._pg.rank(), names=", ".join(self._names[index] for index in late),
                                                  indices=" ".join(map(str, late))))

    def _leave_out(self) -> None:
        """Skips the step of a backward that raised: _end() will not be called for it.

        All ranks must skip it: a rank that computed its gradients waits for buckets that are never sent. That rank gets
        CollectiveMismatch in its backward, and this rank gets it here."""
        if not self._queued or torch._C._current_graph_task_id() != -1:
            return
        self._active = self._queued = False
        if self._next == len(self.buckets):
            return
        core = self._pg.core
        reached = core.all_gather(torch.tensor([[[self._next]]]), form="stack").flatten().tolist()
        if len(set(reached)) > 1:
            raise RuntimeError(f"the last backward raised after different numbers of buckets: {reached} by rank; destroy the "
                               "group and begin again")
        log().warning("the last backward raised, on all ranks, before all gradients came: its step is left out. Gradients hold "
                      "what it computed here: call zero_grad()")

    def prepare(self, outputs: Any) -> None:
        """Called after a forward whose backward must reduce: the backward that reaches an output; if the loss does not use the
        outputs, the next backward that accumulates into a gradient."""
        self._armed = self._armed or torch._C._current_graph_task_id() == -1  # a checkpoint's forward inside of backward is none
        tensors = _tensors(outputs)
        certain = self._static or (self._find_unused and not self._lead_to_ours(tensors))
        for x in tensors:
            x.register_hook(functools.partial(self._reach, certain))

    def skip(self, outputs: Any) -> None:
        """Called after a forward without reduction: gradients accumulate. A pending backward of an earlier forward reduces."""
        self._leave_out()
        for x in _tensors(outputs):
            x.register_hook(self._stay_local)

    def _stay_local(self, _: torch.Tensor) -> None:
        self._local = torch._C._current_graph_task_id()

    def _lead_to_ours(self, tensors: list[torch.Tensor]) -> bool:
        """Whether a backward from these tensors can accumulate into a parameter's gradient."""
        ours, waiting = set(self._nodes), [x.grad_fn for x in tensors]
        seen = set(waiting)
        while waiting and not seen & ours:
            more = {node for node, _ in waiting.pop().next_functions if node is not None} - seen
            seen |= more
            waiting.extend(more)
        return bool(seen & ours)

    def _reach(self, certain: bool, _: torch.Tensor) -> None:
        """Backward has come to an output. It may raise before its first gradient; and one inside of it (a reentrant
        checkpoint's) ends before all is done. certain: it counts though it may add to no gradient, as autograd.grad()."""
        if not self._active and (certain or self._adds()):
            self._start()
        self._follow()

    def _adds(self) -> bool:
        """Whether the running backward will accumulate into a parameter's gradient."""
        try:
            return any(map(torch._C._will_engine_execute_node, self._nodes))
        except RuntimeError:  # grad() of a parameter
            return False

    def _wait(self) -> None:
        """Waits for all buckets in flight."""
        for bucket in self.buckets:
            if bucket.wait is not None:
                bucket.wait()
                bucket.wait = None
        if self._counting is not None:
            self._counting.wait()
            self._counting = None

    # ---- in backward ----

    def _start(self) -> None:
        self._wait()  # where the last one raised
        self._queued = False  # torch forgets the callback of a backward that raised
        self._armed, self._active = False, True
        self._next, self._left, self._counts = 0, list(self._times), [0] * len(self._parameters)
        for bucket in self.buckets:
            bucket.begin()
        if not self._learning:
            self._ready_all({*self._frozen, *(index for index, times in enumerate(self._times) if not times)})

    def _come(self, index: int) -> None:
        """Called when backward has accumulated into a gradient."""
        self._touched.add(index)
        if self._armed and not self._active and torch._C._current_graph_task_id() != self._local:
            self._start()
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
                               "static_graph=True")
        if self._left[index] == 0:
            self._ready(index)

    def _follow(self) -> None:
        """Queues _end() as a callback for the end of the running backward."""
        if self._active and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _ready(self, index: int) -> None:
        bucket, place = self._place[index]
        bucket.put(place, self._parameters[index].grad, self._names[index])
        bucket.missing -= 1
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self.buckets[self._next].wait = self.buckets[self._next].start(self.hook)
            self._next += 1
        if self._next == len(self.buckets):
            self._count()

    def _ready_all(self, indices: AbstractSet[int]) -> None:
        for index in sorted(indices, reverse=True):
            self._left[index] = 0
            self._ready(index)

    def _count(self) -> None:
        """How many ranks reached each parameter. A parameter that no rank reached keeps its gradient, or has none."""
        self._used[:] = 1
        if self._find_unused or self._static or self._frozen:
            unused = [index for index, p in enumerate(self._parameters) if index not in self._touched or p.grad is None]
            self._used[unused] = 0
            self._counting = all_reduce(self._used, group=self._pg, async_op=True)

    def _end(self) -> None:
        """Called when backward has ended. Missing gradients may come in another backward; else the next forward raises."""
        self._queued = False
        if self._learning:
            self._learning = False
            self._times = self._counts
            self._ready_all(set(range(len(self._parameters))))
        elif self._find_unused:
            self._ready_all({index for index, left in enumerate(self._left) if left > 0})
        if self._next < len(self.buckets):
            return
        self._active = False
        self._touched.clear()
        self._wait()
        used = self._used.tolist()
        for bucket in self.buckets:
            for index, view in zip(bucket.indices, bucket.results(), strict=True):
                if used[index]:
                    self._store(self._parameters[index], view)

    def _store(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        if self._as_views:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.clone()
        else:
            parameter.grad.copy_(view)


def identity(parameter: torch.Tensor) -> Any:
    """The identity of a parameter: the tensor behind the Python object, which torch.utils.swap_tensors changes, and its kind."""
    return parameter._cdata, parameter.dtype, parameter.device, parameter.shape


def _told(reducer: weakref.ref[Reducer], index: int, *_: Any) -> None:
    """A parameter's hook. It must not keep the reducer alive: Python's garbage collector does not see cycles through torch."""
    found = reducer()
    if found is not None:
        found._come(index)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    """The tensors with a graph in the outputs, in containers and attributes of any kind. Iterators are not consumed."""
    waiting, seen, found = [outputs], set(), []
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.grad_fn is not None:
                found.append(value)
            continue
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, deque, AbstractSet)):
            waiting.extend(value)
        waiting.extend(getattr(value, "__dict__", {}).values())
        waiting.extend(getattr(value, name, None) for name in copyreg._slotnames(type(value)))  # type: ignore[attr-defined]
    return found
