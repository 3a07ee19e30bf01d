"""torchmetrics: states that are summed, joined and of different lengths."""

import os
import sys

import torch
import torch.distributed as dist
import torchmetrics


def main() -> None:
    dist.init_process_group(os.environ["BACKEND"])
    rank = dist.get_rank()
    data = torch.Generator().manual_seed(rank)
    of_classes = torchmetrics.MetricCollection([kind("multiclass", num_classes=4) for kind in (
        torchmetrics.Accuracy, torchmetrics.AUROC, torchmetrics.ConfusionMatrix)])
    mean, joined, pearson = torchmetrics.MeanMetric(), torchmetrics.CatMetric(), torchmetrics.PearsonCorrCoef()
    for _ in range(3 + rank):
        scores = torch.randn(10, 4, generator=data).softmax(1)
        of_classes.update(scores, torch.randint(0, 4, (10,), generator=data))
        mean.update(scores[:, 0])
        joined.update(scores[:, 1])
        pearson.update(scores[:, 0], scores[:, 1])
    torch.save({**of_classes.compute(), "mean": mean.compute(), "joined": joined.compute(), "pearson": pearson.compute()},
               f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()


main()
