"""DistributedDataParallel over arraycomm.distributed: for torch modules, also where torch was built without torch.distributed."""

from __future__ import annotations

import contextlib
import numbers
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from arraycomm.distributed.operations.collectives import broadcast
from arraycomm.distributed.process_groups.process_group import ProcessGroup
from arraycomm.distributed.process_groups.world import resolve

from .bucket import SparseBucket
from .reducer import Reducer, identity


class DistributedDataParallel(nn.Module):
    """A module that every rank of a group trains on its own part of the data, with the same parameters on all ranks.

    backward() averages the gradients over the ranks, in buckets that are reduced while it computes other gradients. The
    parameters and
    buffers are rank 0's from the beginning. Parameters, names and defaults are torch.nn.parallel.DistributedDataParallel's.
    Gradients
    of an nn.Embedding(sparse=True) stay sparse.

    The module may change between steps, on all ranks alike: parameters and buffers may be replaced
    (load_state_dict(assign=True)),
    added, removed, converted (double()), frozen and unfrozen. The next forward compares the ranks' parameters, and takes rank 0's
    values of new ones.

    Args:
        device_ids: None, or the one device of the module, as output_device.
        dim: accepted, without effect, as check_reduction.
        broadcast_buffers: rank 0's buffers before each forward.
        process_group: of arraycomm.distributed; None: the default group.
        bucket_cap_mb: MiB that a bucket holds at most.
        find_unused_parameters: True: backward need not reach all parameters. Buckets with a parameter that it did not reach, and
            the
            buckets after them, are reduced when it has ended.
        gradient_as_bucket_view: gradients lie in the buckets, which saves memory and a copy.
        static_graph: all steps use the same parameters equally often.

    - Blocks: the constructor and forward() until every rank has called them; backward() until its buckets have been reduced.
    - Errors: RuntimeError for a module without parameters that need gradients, and where it or the arguments that collectives
      depend on
      differ between ranks. ValueError for devices that are not the module's, TypeError for parameters on several devices.
    - Algorithm: gradients in buckets, from the last parameter on (Li et al., "PyTorch Distributed", 2020).

    Examples:
        >>> import torch
        >>> from arraycomm.frameworks.torch import DistributedDataParallel
        >>> pg = dist2.new_group("gloo", timedelta(seconds=60), "cpu", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = DistributedDataParallel(torch.nn.Linear(2, 1), process_group=pg)
        >>> with model.no_sync():
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> model.forward(torch.ones(1, 2)).sum().backward()
        >>> model.module.weight.grad.tolist()
        [[2.0, 2.0]]
        >>> def halved(state, bucket):
        ...     future = torch.futures.Future()
        ...     future.set_result(bucket.buffer() / 2)
        ...     return future
        >>> model.register_comm_hook(None, halved)
        >>> pg.shutdown()
    """

    def __init__(self, module: nn.Module, device_ids: list[Any] | None = None, output_device: Any = None, dim: int = 0,
                 broadcast_buffers: bool = True, process_group: ProcessGroup | None = None, bucket_cap_mb: float | None = None,
                 find_unused_parameters: bool = False, check_reduction: bool = False, gradient_as_bucket_view: bool = False,
                 static_graph: bool = False) -> None:
        super().__init__()
        self.bucket_bytes_cap = _bucket_bytes(bucket_cap_mb)
        self.process_group = resolve(process_group)
        _check(_trained(module), device_ids, output_device)
        _warn(check_reduction, find_unused_parameters and static_graph)
        self.module = module
        self.device_ids, self.output_device, self.dim = device_ids, output_device, dim
        self.broadcast_buffers, self.find_unused_parameters = broadcast_buffers, find_unused_parameters
        self.gradient_as_bucket_view, self.static_graph = gradient_as_bucket_view, static_graph
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self._check_alike()
        self._take_from_first(self._parameters_and_buffers())
        self._start()

    def _start(self, hook: Callable[[Any], Any] | None = None) -> None:
        """This rank's part."""
        reduced = _trained(self.module)
        self._reducer = Reducer(self.process_group, reduced, self.bucket_bytes_cap, sparse=_sparse(self.module),
                                static=self.static_graph, find_unused=self.find_unused_parameters,
                                as_views=self.gradient_as_bucket_view, hook=hook)
        if hook is not None:
            _dense(self._reducer)
        self._trained_now = self._reducer.identities

    def _look(self) -> bool:
        """Whether parameters need gradients; those that do now, and as they are now, will be reduced."""
        trained = [identity(p) for _, p in _trained(self.module)]
        if trained and trained != self._trained_now:
            self._check_alike()
            if set(trained) <= set(self._reducer.identities) and not self.static_graph:
                self._reducer.freeze(trained)
                self._trained_now = trained
            else:
                _check(_trained(self.module), self.device_ids, self.output_device)
                self._reducer.release()
                self._take_from_first(self._parameters_and_buffers())
                self._start(self._reducer.hook)
        return bool(trained)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which are in the default group of where they are made, and have no hook. As torch's."""
        if self.process_group is not resolve(None):
            raise RuntimeError("DDP Pickling/Unpickling are only supported when using DDP with the default process group. That "
                               "is, when you have called init_process_group and have not passed process_group argument to DDP "
                               "constructor")
        ours = ("process_group", "_reducer", "_trained_now")
        return {name: value for name, value in self.__dict__.items() if name not in ours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.process_group = resolve(None)
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self._start()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module. A backward() of the outputs averages the gradients.

        - Shapes: those of the module.
        - Dtypes: those of the module.
        - Memory: inputs and outputs are the module's own.
        - Blocks: with broadcast_buffers until rank 0 has sent its buffers.
        - Errors: RuntimeError when the ranks' parameters differ. Then those of broadcast().
        """
        synchronizes = torch.is_grad_enabled() and self.require_backward_grad_sync
        if synchronizes:
            self._reducer.check_finished()
        reduces = synchronizes and self._look()
        if self.require_forward_param_sync and self.broadcast_buffers:
            self._take_from_first([b for _, b in _kept(self.module, self.module.named_buffers())])
        outputs = self.module(*inputs, **kwargs)
        self.require_forward_param_sync = synchronizes
        if reduces:
            self._reducer.prepare(outputs)
        else:
            self._reducer.skip(outputs)
        return outputs

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients are added up on each rank. The first backward() of a forward outside averages the sums.

        - Blocks: never; nothing is sent inside.
        - Errors: none; contexts may be nested.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Replaces the averaging by hook(state, bucket), which gives a future of the bucket's new gradients.

        It is called for each full bucket, in the same order on all ranks. arraycomm.frameworks.torch.comm_hooks has some hooks.

        - Blocks: never; the hook is called in backward().
        - Errors: TypeError for what cannot be called, RuntimeError for a second hook.
        """
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if self._reducer.hook is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        _dense(self._reducer)
        self._reducer.hook = lambda bucket: hook(state, bucket)

    def _parameters_and_buffers(self) -> list[torch.Tensor]:
        return [x for named in (self.module.named_parameters(), self.module.named_buffers())
                for _, x in _kept(self.module, named)]

    def _check_alike(self) -> None:
        sparse = _sparse(self.module)
        mine = [(name, list(p.shape), str(p.dtype), p.requires_grad, p in sparse)
                for name, p in _kept(self.module, self.module.named_parameters())]
        everybody, chosen = map(self.process_group.core.all_gather_object, (mine, {
            "bucket_cap_mb": self.bucket_bytes_cap / 2**20, "broadcast_buffers": bool(self.broadcast_buffers),
            "find_unused_parameters": bool(self.find_unused_parameters), "static_graph": bool(self.static_graph)}))
        for rank, theirs in enumerate(chosen):
            if theirs != chosen[0]:
                raise RuntimeError(f"DDP expects the same arguments on all ranks, but rank 0 has {chosen[0]}, while rank {rank} "
                                   f"has {theirs}: they would wait for each other's collectives.")
        for rank, theirs in enumerate(everybody):
            if len(theirs) != len(everybody[0]):
                raise RuntimeError(f"DDP expects same model across all ranks, but Rank 0 has {len(everybody[0])} params, while "
                                   f"rank {rank} has inconsistent {len(theirs)} params.")
            for number, (left, right) in enumerate(zip(theirs, everybody[0], strict=True)):
                if list(left) != list(right):
                    raise RuntimeError(f"[{rank}]: params[{number}] in this process, {left}, appears not to match the same param "
                                       f"in process 0, {right} (name, sizes, dtype, requires_grad, sparse).")

    @torch.no_grad()
    def _take_from_first(self, tensors: list[torch.Tensor]) -> None:
        """Rank 0's values in these tensors, one broadcast for all of a dtype. By `data`, as in torch, where autograd does not see
        it: a forward between another one and its backward writes buffers too."""
        kinds: dict[Any, list[torch.Tensor]] = {}
        for t in tensors:
            kinds.setdefault((t.dtype, t.device), []).append(t)
        for alike in kinds.values():
            flat = torch.cat([t.detach().reshape(-1) for t in alike])
            broadcast(flat, group_src=0, group=self.process_group)
            if self.process_group.rank() == 0:
                continue
            for t, piece in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
                t.data.copy_(piece.view(t.shape))


def _kept(module: nn.Module, named: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Without what the module keeps to itself."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    return [(name, tensor) for name, tensor in named if name not in ignored]


def _trained(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters that need gradients. RuntimeError for what torch.func.functional_call() put into their places."""
    found = [(name, p) for name, p in _kept(module, module.named_parameters()) if p.requires_grad]
    for name, p in found:
        if not p.is_leaf:
            raise RuntimeError(f"{name!r} is computed from other tensors, whose gradients this DistributedDataParallel cannot "
                               "average: call the module inside, `.module`, in torch.func.functional_call()")
    return found


def _bucket_bytes(mebibytes: float | None) -> int:
    if mebibytes is None:
        mebibytes = 25
    if isinstance(mebibytes, bool) or not isinstance(mebibytes, numbers.Real):
        raise TypeError(f"bucket_cap_mb must be a number of MiB or None, got {mebibytes!r}")
    return int(mebibytes * 1024 * 1024) or 1


def _warn(check_reduction: bool, unused_though_static: bool) -> None:
    """As torch does."""
    if check_reduction:
        warnings.warn("The `check_reduction` argument in `DistributedDataParallel` module is deprecated. Please avoid using "
                      "it.", FutureWarning, stacklevel=3)
    if unused_though_static:
        warnings.warn("You passed find_unused_parameters=true to DistributedDataParallel, `static_graph` will detect unused "
                      "parameters automatically, so you do not need to set find_unused_parameters=true", stacklevel=3)


def _dense(reducer: Reducer) -> None:
    if any(isinstance(bucket, SparseBucket) for bucket in reducer.buckets):
        raise RuntimeError("communication hooks are given dense gradients only, and this module has an nn.Embedding with "
                           "sparse=True: without a hook both are averaged")


def _sparse(module: nn.Module) -> set[nn.Parameter]:
    """The parameters whose gradients are sparse."""
    return {p for layer in module.modules() if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse
            for p in layer.parameters(recurse=False)}


def _check(reduced: list[tuple[str, torch.Tensor]], device_ids: list[Any] | None, output_device: Any) -> None:
    if not reduced:
        raise RuntimeError("DistributedDataParallel is not needed when a module doesn't have any parameters that require a "
                           "gradient.")
    for name, p in reduced:
        if isinstance(p, nn.UninitializedParameter):
            raise RuntimeError(f"DistributedDataParallel cannot take parameter {name!r}, which is uninitialized: its module is "
                               "lazy; run a forward pass first.")
    devices = {p.device for _, p in reduced}
    if len(devices) > 1:
        raise TypeError("DistributedDataParallel's parameters must be on one device, but they are on "
                        f"{sorted(map(str, devices))}")
    (device,) = devices
    if device.type == "cpu" and (device_ids or output_device is not None):
        raise ValueError("DistributedDataParallel device_ids and output_device arguments only work with single-device GPU "
                         f"modules, but got device_ids {device_ids}, output_device {output_device}, and parameters on cpu.")
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError("device_ids can only be None or contain a single element.")
