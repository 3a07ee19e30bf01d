"""The functions of arraycomm.frameworks.torch.autograd under torch's module name."""

from importlib import import_module

__all__ = ["all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter",
           "scatter"]

_theirs = import_module("arraycomm.frameworks.torch.autograd")
all_gather, all_reduce, all_to_all, all_to_all_single, broadcast, gather, reduce, reduce_scatter, scatter = (
    getattr(_theirs, name) for name in __all__)
