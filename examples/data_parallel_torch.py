"""Data parallel training of a torch module: torch's DistributedDataParallel over arraycomm.

    python3 -m venv .venv && .venv/bin/pip install -q '.[numpy]' torch
    .venv/bin/arraycomm-run --nproc-per-node 2 examples/data_parallel_torch.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("arraycomm")
    torch.manual_seed(dist.get_rank())  # parameters become rank 0's; data differ
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(200):
        x = torch.randn(128, 4)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over the ranks
        optimizer.step()
        if step % 50 == 49:
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step + 1}: loss {mean:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
