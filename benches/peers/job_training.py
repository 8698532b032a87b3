"""One rank of DDP training: the seconds of each step after the warm-up, and how far the weights have moved."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 2880  # three such layers are 100 MB


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers), torch.randn(4, WIDTH)


def resnet18() -> tuple[nn.Module, torch.Tensor]:
    from torchvision.models import resnet18 as make

    return make(num_classes=100), torch.randn(16, 3, 64, 64)


parser = argparse.ArgumentParser()
parser.add_argument("backend")
parser.add_argument("model", choices=["mlp", "mlp-views", "resnet18"])
parser.add_argument("--warmup", type=int, default=3)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
if options.backend == "paceline":
    importlib.import_module("paceline.torch")
dist.init_process_group(options.backend)
torch.manual_seed(rank)
model, data = {"mlp": mlp, "mlp-views": mlp, "resnet18": resnet18}[options.model]()
# With views, gradients live in DDP's buckets; without, copying them there and back takes longer than reducing them.
trained = DistributedDataParallel(model, gradient_as_bucket_view=options.model == "mlp-views")
optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
before = [parameter.detach().clone() for parameter in model.parameters()]
seconds = []
for _ in range(options.warmup + options.steps):
    start = time.perf_counter()
    optimizer.zero_grad()
    loss = trained(data).square().mean()
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - start)
moved = sum(
    (now.detach() - old).double().square().sum().item() for now, old in zip(model.parameters(), before, strict=True)
)
report = {"seconds": seconds[options.warmup :], "moved": math.sqrt(moved)}
(options.out / f"{rank}.json").write_text(json.dumps(report))
dist.destroy_process_group()
