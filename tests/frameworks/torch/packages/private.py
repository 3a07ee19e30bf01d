"""opacus: differentially private training, clipped as a whole and by layers."""

import os
import sys

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dist.init_process_group(os.environ["BACKEND"])
    saved: dict = {}
    rank = dist.get_rank()
    for clipping, norm in {"flat": 1.0, "per_layer": [1.0] * 4}.items():
        torch.manual_seed(0)
        x = torch.randn(128, 10)
        network = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
        model = DifferentiallyPrivateDistributedDataParallel(network)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=norm,
            clipping=clipping, data_loader=DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 16), poisson_sampling=False,
            noise_generator=torch.Generator().manual_seed(5))
        for some, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(some), labels).backward()
            optimizer.step()
        saved |= {f"{clipping} {key}": value for key, value in network.state_dict().items()}
    torch.save(saved, f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()


main()
