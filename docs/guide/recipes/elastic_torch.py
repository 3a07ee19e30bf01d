"""Training that resumes from its last checkpoint: torchrun --max-restarts 3 --nproc-per-node 4 elastic_torch.py"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY = 100, 10
CHECKPOINT = "checkpoint.pt"

dist.init_process_group("arraycomm")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
first = 0
if os.path.exists(CHECKPOINT):                             # a folder that all ranks read
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
dist.barrier()                                             # nobody writes before all have read
print(f"begins at step {first} of {STEPS}\n", end="", flush=True)  # in one piece: several processes write
for step in range(first, STEPS):
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank()))
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True)).backward()
    optimizer.step()
    if dist.get_rank() == 0 and (step + 1) % EVERY == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "checkpoint.new")
        os.replace("checkpoint.new", CHECKPOINT)           # whole, or not there
print(f"has ended with {model.module.weight.data.tolist()}\n", end="", flush=True)
dist.destroy_process_group()
