"""Trains a small net with Ray Train's TorchTrainer over Paceline, on CPUs and synthetic data.

python examples/ray_torch_trainer.py --workers 2
"""

import argparse
import hashlib
import tempfile
from typing import Any

try:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
except ImportError as error:
    raise SystemExit(f"this example needs Ray Train ({error}): pip install 'ray[train]'") from None

import torch
import torch.distributed as dist
from torch import Tensor, nn


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return this rank's points of a step, and the height of a plane there."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    inputs = torch.randn(16, 16, generator=generator)
    return inputs, (inputs @ torch.linspace(-1, 1, 16))[:, None]


def train(config: dict[str, Any]) -> None:
    """Train one rank, and print a hash of the weights of every rank."""
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    net = prepare_model(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for step in range(config["steps"]):
        inputs, heights = batch(step, dist.get_rank())
        loss = nn.functional.mse_loss(net(inputs), heights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    digest = hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in net.parameters())).hexdigest()[:16]
    hashes = [""] * dist.get_world_size()
    dist.all_gather_object(hashes, digest)
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}, backend {dist.get_backend()}")
        print(f"weights {digest}, {'the same' if len(set(hashes)) == 1 else 'NOT the same'} on {len(hashes)} ranks")


def main() -> None:
    """Train on a Ray cluster, or on this machine if there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            train,
            train_loop_config={"steps": options.steps},
            scaling_config=ScalingConfig(num_workers=options.workers, resources_per_worker={"CPU": 0.5}),
            torch_config=TorchConfig(backend=options.backend),
            run_config=RunConfig(storage_path=folder),
        ).fit()


if __name__ == "__main__":
    main()
