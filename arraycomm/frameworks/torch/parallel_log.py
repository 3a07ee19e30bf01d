"""The log of DistributedDataParallel under TORCH_DISTRIBUTED_DEBUG, with torch's documented fields.

INFO and DETAIL: the construction parameters. DETAIL: at intervals the durations of steps, in nanoseconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from arraycomm.core.base.log import log
from arraycomm.distributed.debug import DebugLevel, get_debug_level

from .reducer import Reducer

_SAID_AT = (10, 20, 100, 1000)  # iterations; then every _EACH
_EACH = 1000


class ParallelLog:
    """The log of one DistributedDataParallel."""

    def __init__(self, module: Any, reducer: Reducer, parameters: Sequence[torch.Tensor]) -> None:
        self._reducer, self._parameters, self._pg = reducer, parameters, module.process_group
        self._name = type(module.module).__name__
        self._level = get_debug_level()
        self._iterations, self._forward = 0, 0.0
        self._sums = [0.0] * 4  # forward, backward's computing, its communication, both at once
        if self._level is not DebugLevel.OFF:
            fields = self._fields(module)
            log().info("[Rank %d]: DDP Initialized with:\n%s", self._pg.rank(),
                       "\n".join(f"{name}: {value}" for name, value in fields.items()))

    def _fields(self, module: Any) -> dict[str, Any]:
        settings = {name.lower(): os.environ.get(name, "N/A") for name in (
            "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DEBUG",
            "NCCL_IB_TIMEOUT", "NCCL_NTHREADS", "NCCL_SOCKET_IFNAME")}
        sizes = [bucket.nbytes for bucket in self._reducer.buckets]
        return {
            "broadcast_buffers": int(module.broadcast_buffers), "bucket_cap_bytes": module.bucket_bytes_cap,
            "find_unused_parameters": int(module.find_unused_parameters),
            "gradient_as_bucket_view": int(module.gradient_as_bucket_view), "is_multi_device_module": 0, "iteration": 0,
            "num_parameter_tensors": len(self._parameters), "output_device": _device(module.output_device),
            "rank": self._pg.rank(), "total_parameter_size_bytes": sum(p.numel() * p.element_size() for p in self._parameters),
            "world_size": self._pg.size(), "backend_name": self._pg.backend, "bucket_sizes": ", ".join(map(str, sizes)),
            "device_ids": ", ".join(map(_device, module.device_ids or ())),
            "dtypes": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in self._parameters})),
            "module_name": self._name, **settings, "torch_distributed_debug": self._level.name}

    def forward(self, seconds: float) -> None:
        self._forward = seconds

    def iteration(self) -> None:
        """A step begins: the one before is complete."""
        if self._level is not DebugLevel.DETAIL:
            return
        began, sent, computed, came = self._reducer.seconds
        if came:
            for number, seconds in enumerate((self._forward, computed - began, came - sent, max(0.0, computed - sent))):
                self._sums[number] += seconds
            self._iterations += 1
            if self._iterations in _SAID_AT or self._iterations % _EACH == 0:
                self._say()

    def _say(self) -> None:
        unused = sum(self._parameters[index].numel() * self._parameters[index].element_size() for index in self._reducer.unused)
        times = [round(seconds / self._iterations * 1e9) for seconds in self._sums]
        log().info("[Rank %d / %d] Training %s unused_parameter_size=%d\n Avg forward compute time: %d\n "
                   "Avg backward compute time: %d\n "
                   "Avg backward comm. time: %d\n Avg backward comm/comp overlap time: %d", self._pg.rank(), self._pg.size(),
                   self._name, unused, *times)


def _device(value: Any) -> str:
    return "-1" if value is None else str(value)
