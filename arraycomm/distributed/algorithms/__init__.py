"""torch.distributed.algorithms: the communication hooks of DistributedDataParallel."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name != "ddp_comm_hooks":  # imported on demand: it needs torch
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.{name}")
