"""The functions of arraycomm.frameworks.torch.autograd under torch's module name."""

from importlib import import_module

__all__ = ["all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter",
           "scatter"]

_theirs = import_module("arraycomm.frameworks.torch.autograd")
all_gather = _theirs.all_gather
all_reduce = _theirs.all_reduce
all_to_all = _theirs.all_to_all
all_to_all_single = _theirs.all_to_all_single
broadcast = _theirs.broadcast
gather = _theirs.gather
reduce = _theirs.reduce
reduce_scatter = _theirs.reduce_scatter
scatter = _theirs.scatter
