"""Ray Train: TorchTrainer with two workers, which Ray starts."""

import os
import sys

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training(config: dict) -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 10)
    model = prepare_model(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)))
    loader = prepare_data_loader(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 16, shuffle=True))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for some, wanted in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(some), wanted).backward()
            optimizer.step()
    torch.save(model.state_dict(), f"{config['folder']}/{ray.train.get_context().get_world_rank()}.pt")
    ray.train.report({"loss": 0.0})


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    TorchTrainer(training, train_loop_config={"folder": sys.argv[1]}, scaling_config=ScalingConfig(num_workers=2),
                 torch_config=TorchConfig(backend=os.environ["BACKEND"]), run_config=RunConfig(storage_path=sys.argv[1])).fit()
    ray.shutdown()
