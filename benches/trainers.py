"""Times a step of DDP, ZeroRedundancyOptimizer and FSDP2 over Paceline and over gloo, in turns, in the same processes.

paceline run -np 2 -- python benches/trainers.py [--trainers ddp,zero,fsdp2] [--hidden 256] [--layers 8] [--turns 30]
python benches/trainers.py --ray 2 --trainers ddp         # ranks that Ray Train's TorchTrainer starts

Prints for each the medians of the slowest rank in ms, and the median of the pairs' ratios, Paceline over gloo.
"""

import argparse
import math
import os
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paceline.torch  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from gpt import GPT

BACKENDS = ("paceline", "gloo")
VOCABULARY = 1024
WARM_UP = 3


def stepping(trainer: str, group: dist.ProcessGroup, shape: argparse.Namespace) -> Callable[[], Tensor]:
    """Return a function that trains a step in this group, and returns the loss."""
    torch.manual_seed(0)
    model: nn.Module = GPT(
        vocabulary=VOCABULARY,
        sequence=shape.sequence,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=max(1, shape.hidden // 64),
    )
    optimizer: torch.optim.Optimizer
    if trainer == "fsdp2":
        mesh = DeviceMesh.from_group(group, "cpu")
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        optimizer = (
            ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, lr=1e-3)
            if trainer == "zero"
            else torch.optim.AdamW(model.parameters(), lr=1e-3)
        )
    generator = torch.Generator().manual_seed(dist.get_rank())
    text = torch.randint(VOCABULARY, (shape.batch, shape.sequence + 1), generator=generator)

    def step() -> Tensor:
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def measure(shape: argparse.Namespace) -> None:
    """Train by one after the other on this rank, in the group that there is; rank 0 prints what each takes."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    groups = {"paceline": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for trainer in shape.trainers.split(","):
        steps = {backend: stepping(trainer, groups[backend], shape) for backend in BACKENDS}
        taken = torch.zeros(shape.turns, len(BACKENDS), dtype=torch.float64)
        losses = {}
        for turn in range(-WARM_UP, shape.turns):
            for place, backend in enumerate(BACKENDS):
                dist.barrier()
                began = time.perf_counter()
                losses[backend] = steps[backend]().item()
                if turn >= 0:
                    taken[turn, place] = time.perf_counter() - began
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            assert math.isclose(losses["paceline"], losses["gloo"], rel_tol=1e-4), losses
            medians = [1e3 * statistics.median(taken[:, place].tolist()) for place in range(len(BACKENDS))]
            ratio = statistics.median((taken[:, 0] / taken[:, 1]).tolist())
            print(
                f"{trainer:<6} paceline {medians[0]:8.2f} ms, gloo {medians[1]:8.2f} ms, ratio {ratio:.2f}", flush=True
            )


def under_ray(shape: argparse.Namespace) -> None:
    """Have Ray Train start the ranks."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def train(given: dict[str, Any]) -> None:
        # Ray sends this function, but not the modules next to this script.
        runpy.run_path(__file__)["measure"](argparse.Namespace(**given))

    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            train,
            train_loop_config=vars(shape),
            torch_config=TorchConfig(backend="paceline"),
            scaling_config=ScalingConfig(num_workers=shape.ray, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=folder),
        ).fit()


def main() -> None:
    """Measure, as a rank that a launcher has started, or under Ray."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", default="ddp,zero,fsdp2")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--ray", type=int, metavar="RANKS", help="have Ray Train start this many")
    shape = parser.parse_args()
    if shape.ray is not None:
        under_ray(shape)
        return
    dist.init_process_group("paceline")
    measure(shape)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
