"""torch: FSDP2 over init_device_mesh, in float32 and with bfloat16."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    dist.init_process_group(os.environ["BACKEND"])
    mesh, rank = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank()
    saved: dict = {}
    for name, policy in {"float32": MixedPrecisionPolicy(), "bfloat16": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
                         "mixed": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}.items():
        torch.manual_seed(0)
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = torch.Generator().manual_seed(rank)
        for _ in range(5):
            model(torch.randn(4, 6, 32, generator=data)).float().square().mean().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        saved |= {f"{name} {key}": value.full_tensor() for key, value in model.state_dict().items()}
        saved[f"{name} norm"] = norm.full_tensor()
    torch.save(saved, f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()


main()
