"""Lightning: Trainer with DDP, metrics that are synchronised, validation and checkpoints."""

import os
import sys

import lightning
import torch
import torchmetrics
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)

    def prepare_data(self) -> None:
        """By rank 0, while the others wait in Lightning's own barrier over gloo."""

    def training_step(self, batch, index):
        x, y = batch
        out = self.network(x)
        loss = nn.functional.cross_entropy(out, y)
        self.accuracy(out, y)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("validation", nn.functional.cross_entropy(self.network(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def main() -> None:
    lightning.seed_everything(0)
    x = torch.randn(256, 16)
    data = TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=os.environ["BACKEND"]),
                                max_epochs=2, default_root_dir=sys.argv[1], enable_progress_bar=False, logger=False)
    model = Model()
    trainer.fit(model, DataLoader(data, 16, shuffle=True), DataLoader(data, 16))
    torch.save({**model.state_dict(), **trainer.callback_metrics}, f"{sys.argv[1]}/{trainer.global_rank}.pt")


main()
