"""One rank: seconds per training step, or per all-reduce of each size, with one system."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH = 2880  # three such layers are 100 MB
BLOCK = 3  # steps
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]


def model_of(name: str) -> tuple[nn.Module, torch.Tensor]:
    if name == "mlp":
        layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
        return nn.Sequential(*layers), torch.randn(4, WIDTH)
    from torchvision.models import resnet18

    return resnet18(num_classes=100), torch.randn(16, 3, 64, 64)


def trained(way: str, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer to train with; all ranks begin with the same weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if way in ("gloo", "paceline"):
        import torch.distributed as dist

        if way == "paceline":
            importlib.import_module("paceline.torch")
        dist.init_process_group(way)
        return nn.parallel.DistributedDataParallel(model), optimizer
    if way == "alone":
        return model, optimizer
    hvd: Any = importlib.import_module("horovod.torch" if way == "horovod" else "paceline.torch")
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def steps(way: str, name: str, warmup: int, count: int) -> dict[str, Any]:
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    model, data = model_of(name)
    net, optimizer = trained(way, model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    seconds = []
    for _ in range(warmup + count):
        start = time.perf_counter()
        optimizer.zero_grad()
        net(data).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    pairs = zip(model.parameters(), before, strict=True)
    moved = sum((now.detach() - old).double().square().sum().item() for now, old in pairs)
    return {"seconds": seconds[warmup:], "moved": math.sqrt(moved)}


def alternated(way: str, blocks: int) -> dict[str, Any]:
    """ResNet-18 with and without a feature, alternating every BLOCK steps: seconds per step of each block.

    `way` is timeline (recorded or not) or init (a job was joined or not; it is not used).
    """
    hvd: Any = importlib.import_module("paceline.torch")
    torch.manual_seed(0)
    model, data = model_of("resnet18")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if way == "timeline":
        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        return time.perf_counter() - start

    def block(*, having: bool) -> float:
        if having and way == "timeline":
            hvd.start_timeline(os.environ["BENCH_TIMELINE"])
        elif having:
            hvd.init()
            hvd.barrier()
        step()
        seconds = statistics.median(step() for _ in range(BLOCK))
        if having:
            hvd.stop_timeline() if way == "timeline" else hvd.shutdown()
        return seconds

    step()
    pairs = []
    for number in range(blocks):
        having = [number % 2 == 0, number % 2 == 1]
        seconds = {each: block(having=each) for each in having}
        pairs.append([seconds[True], seconds[False]])
    return {"pairs": pairs}


def reductions(way: str) -> dict[str, Any]:
    """The median time of a named all-reduce that the caller waits for at once, by size in bytes."""
    hvd: Any = importlib.import_module("horovod.torch" if way == "horovod" else "paceline.torch")
    hvd.init()
    result = {}
    for size in SIZES:
        tensor = torch.ones(size // 4)
        times: list[float] = []
        until, over = time.perf_counter() + 1.0, False
        while not over and len(times) < 2000:
            for _ in range(20):
                start = time.perf_counter()
                hvd.allreduce_(tensor, name=f"t{size}", op=hvd.Average)
                times.append(time.perf_counter() - start)
            # All ranks must end together.
            late = torch.tensor(float(time.perf_counter() > until))
            over = hvd.allreduce(late, name="over", op=hvd.Sum).item() > 0
        result[str(size)] = statistics.median(times[5:])
    return {"median_s": result}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["gloo", "paceline", "hvd", "timeline", "horovod", "alone", "init"])
    parser.add_argument("what", choices=["mlp", "resnet18", "reductions", "costs"])
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "reductions":
        report = reductions(options.way)
    elif options.what == "costs":
        report = alternated(options.way, options.steps)
    else:
        report = steps(options.way, options.what, options.warmup, options.steps)
    rank = os.environ.get("RANK") or os.environ["HOROVOD_RANK"]
    (options.out / f"{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
