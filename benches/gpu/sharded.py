"""A rank of `make gpu` that trains a GPT by DDP, ZeRO and FSDP2: what a step takes, and a hash of the weights after it.

paceline run -np 2 -- python benches/gpu/sharded.py alone,none,zero1,zero3

`alone` exchanges nothing: what the ranks take that share a device.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from pathlib import Path

import paceline.torch  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from gpt import GPT

SHAPES = {
    "cuda": {"vocabulary": 50257, "sequence": 512, "layers": 12, "hidden": 768, "heads": 12},
    "cpu": {"vocabulary": 256, "sequence": 32, "layers": 2, "hidden": 32, "heads": 2},
}
BATCH, WARM_UP = 4, 3


def wrapped(sharding: str, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and its optimizer, split over the ranks as `sharding` says."""
    torch.manual_seed(0)
    model: nn.Module = GPT(**SHAPES[device.type]).to(device)
    if sharding == "alone":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    if sharding in ("none", "zero1"):
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if sharding == "zero1":
            return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    size = dist.get_world_size()
    group = int(sharding.partition(":")[2] or size)
    shape, names = ((size,), ("shard",)) if group == size else ((size // group, group), ("copy", "shard"))
    how = {
        "mesh": init_device_mesh(device.type, shape, mesh_dim_names=names),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, number: int, device: torch.device, autocast: bool
) -> Tensor:
    """Train with this rank's part of a batch; return the loss."""
    shape = SHAPES[device.type]
    generator = torch.Generator().manual_seed(1_000_003 * dist.get_rank() + number)
    start = torch.randint(shape["vocabulary"], (BATCH, 1), generator=generator)
    text = ((start + torch.arange(shape["sequence"] + 1)) % shape["vocabulary"]).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def train(sharding: str, device: torch.device, steps: int) -> dict[str, object]:
    """Train from the start; return what it took, and a hash of the weights, which all ranks must share."""
    model, optimizer = wrapped(sharding, device)
    whole = sharding in ("alone", "none", "zero1")
    times, loss = [], torch.tensor(0.0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for number in range(WARM_UP + steps):
        began = time.perf_counter()
        loss = step(model, optimizer, number, device, whole)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    weights = [w.full_tensor() if isinstance(w, DTensor) else w for w in model.parameters()]
    print_of = hashlib.sha256(b"".join(w.detach().cpu().numpy().tobytes() for w in weights)).hexdigest()[:16]
    prints: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(prints, print_of)
    if len(set(prints)) > 1 and sharding != "alone":
        raise SystemExit(f"{sharding}: the ranks have different weights: {prints}")
    return {
        "sharding": sharding,
        "step_ms": round(statistics.median(times[WARM_UP:]) * 1e3, 3),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 3) if device.type == "cuda" else None,
        "loss": round(loss.item(), 5),
        "weights": print_of,
    }


def main(shardings: str, backend: str = "paceline", steps: str = "15") -> None:
    """Train by one after the other; rank 0 says what each took."""
    dist.init_process_group(backend)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    for sharding in shardings.split(","):
        result = train(sharding, device, int(steps))
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
