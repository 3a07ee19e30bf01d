"""DeepSpeed on CPUs: ZeRO stages 0 to 3, with accumulation and clipping."""

import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    deepspeed.init_distributed(os.environ["BACKEND"])
    saved: dict = {}
    rank = dist.get_rank()
    for stage in range(4):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
        engine, *_ = deepspeed.initialize(model=model, config={
            "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}, "zero_optimization": {"stage": stage}})
        data = torch.Generator().manual_seed(rank)
        for _ in range(6):
            x = torch.randn(8, 10, generator=data)
            engine.backward(nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True)))
            engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            saved |= {f"{stage} {key}": value.detach().clone() for key, value in model.named_parameters()}
    torch.save(saved, f"{sys.argv[1]}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


main()
