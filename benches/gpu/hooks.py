"""A rank of `make gpu` that trains by DDP with communication hooks, whose callbacks read what has been reduced.

paceline run -np 2 -- python benches/gpu/hooks.py none,fp16,bf16,int8,powersgd:2,topk:0.1,strategy:ring
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from paceline.torch import strategy_hook
from paceline.torch.compression import register
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH, STEPS = 1024, 6, 256, 20


def trained(hook: str, device: torch.device) -> tuple[list[float], torch.Tensor]:
    """Return the ranks' mean losses, and the weights, of some steps on the same batch, with a hook."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    # A bucket for about each layer: many callbacks, while the backward pass goes on.
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 1)).to(device), bucket_cap_mb=4)
    if hook.startswith("strategy:"):
        strategy_hook(model, hook.partition(":")[2])
    else:
        register(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank)).to(device)
    wanted = inputs[:, :4].sum(1, keepdim=True)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).tolist(), torch.cat([one.detach().flatten() for one in model.parameters()])


def main(names: str) -> None:
    """Train with each hook; the ranks must end with the same weights, and losses must fall as without a hook."""
    dist.init_process_group("paceline")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else None
    if device:
        torch.cuda.set_device(device)
    plain: list[float] = []
    for name in names.split(","):
        losses, weights = trained(name, device or torch.device("cpu"))
        plain = plain or losses
        every = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
        dist.all_gather(every, weights)
        if not all(torch.equal(one, weights) for one in every):
            raise SystemExit(f"{name}: the ranks have different weights")
        if not losses[-1] < 0.8 * losses[0] or losses[-1] - plain[-1] > 0.2 * plain[0]:
            raise SystemExit(f"{name}: losses {losses[0]:.4f} to {losses[-1]:.4f}, {plain[-1]:.4f} without a hook")
        if dist.get_rank() == 0:
            print(json.dumps({"hook": name, "first_loss": losses[0], "last_loss": losses[-1]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
