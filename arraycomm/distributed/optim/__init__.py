"""Optimizers that torch.distributed.optim has: all work on torch's own groups."""

from ..torch_only import stand_in

__all__ = ["DistributedOptimizer", "PostLocalSGDOptimizer", "ZeroRedundancyOptimizer"]

DistributedOptimizer = stand_in("optim.DistributedOptimizer")
PostLocalSGDOptimizer = stand_in("optim.PostLocalSGDOptimizer")
ZeroRedundancyOptimizer = stand_in("optim.ZeroRedundancyOptimizer")
