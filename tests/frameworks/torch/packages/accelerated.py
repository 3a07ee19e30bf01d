"""accelerate: prepare(), accumulation, clipping and what gathers. It finds the backend itself."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.state.backend == "gloo" and accelerator.num_processes == 2
    set_seed(0)
    x = torch.randn(130, 10)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 16, shuffle=True),
        torch.optim.lr_scheduler.StepLR(optimizer, 5))
    losses = []
    for some, wanted in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(some), wanted)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)))
    accelerator.wait_for_everyone()
    index = accelerator.process_index
    assert gather_object([index]) == [0, 1]
    found = {"losses": torch.stack(losses), "sum": accelerator.reduce(torch.full((3,), float(index))),
             "padded": accelerator.gather(accelerator.pad_across_processes(torch.ones(index + 1)))}
    torch.save({**accelerator.get_state_dict(model), **found}, f"{sys.argv[1]}/{index}.pt")
    accelerator.end_training()


main()
