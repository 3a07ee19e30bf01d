"""torch: DistributedDataParallel that accumulates, with buffers and a sharded optimizer."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group(os.environ["BACKEND"])
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    model = DistributedDataParallel(network)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
    data = torch.Generator().manual_seed(rank)
    for step in range(20):
        x = torch.randn(16, 20, generator=data)
        model.require_backward_grad_sync = bool(step % 2)
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    torch.save(network.state_dict(), f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()


main()
