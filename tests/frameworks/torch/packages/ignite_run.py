"""ignite: auto_model, auto_optim, auto_dataloader and metrics over the ranks."""

import sys

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.metrics import Accuracy, Average
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset


def training(index: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 10)
    loader = idist.auto_dataloader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=True)
    torch.manual_seed(idist.get_rank())  # parameters differ until the model is wrapped
    model = idist.auto_model(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2)))
    assert isinstance(model, DistributedDataParallel)
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), 1e-2))

    def step(engine: Engine, batch):
        optimizer.zero_grad()
        out = model(batch[0])
        loss = nn.functional.cross_entropy(out, batch[1])
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "out": out.detach(), "labels": batch[1]}

    trainer = Engine(step)
    Average(lambda found: found["loss"]).attach(trainer, "loss")
    Accuracy(lambda found: (found["out"], found["labels"])).attach(trainer, "accuracy")
    trainer.run(loader, max_epochs=2)
    rank = idist.get_rank()
    assert idist.all_gather(rank) == [0, 1] and idist.broadcast("x" * (rank + 3)) == "xxx" and idist.all_reduce(1.5) == 3
    found = {name: torch.tensor(value) for name, value in trainer.state.metrics.items()}
    torch.save({**model.state_dict(), **found}, f"{sys.argv[1]}/{rank}.pt")


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(training)
