"""PyTorch Geometric: a graph network in DistributedDataParallel."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = GCNConv(8, 16), GCNConv(16, 16), nn.Linear(16, 2)

    def forward(self, data):
        hidden = self.first(data.x, data.edge_index).relu()
        return self.out(global_mean_pool(self.second(hidden, data.edge_index).relu(), data.batch))


def main() -> None:
    dist.init_process_group(os.environ["BACKEND"])
    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(10, 8), edge_index=torch.randint(0, 10, (2, 30)), y=torch.tensor([i % 2])) for i in range(64)]
    sampler, model = DistributedSampler(graphs), DistributedDataParallel(Network())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in DataLoader(graphs, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), batch.y).backward()
            optimizer.step()
    torch.save(model.state_dict(), f"{sys.argv[1]}/{dist.get_rank()}.pt")
    dist.destroy_process_group()


main()
