"""Trains a small net with DeepSpeed's ZeRO over Paceline, on CPUs and synthetic data.

paceline run -np 2 -- python examples/deepspeed_zero.py --stage 3
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    import deepspeed
except ImportError as error:
    raise SystemExit(f"this example needs DeepSpeed ({error}): pip install --no-build-isolation deepspeed") from None


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return this rank's points of a step, and the height of a plane there."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    inputs = torch.randn(16, 16, generator=generator)
    return inputs, (inputs @ torch.linspace(-1, 1, 16))[:, None]


def main() -> None:
    """Train, and print a hash of the weights of every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, default=2, choices=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    options = parser.parse_args()

    dist.init_process_group(options.backend)  # DeepSpeed uses the group that there is.
    rank, size = dist.get_rank(), dist.get_world_size()
    deepspeed.init_distributed(dist_backend=options.backend)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
        "steps_per_print": 1_000_000,
    }
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    loss = torch.tensor(0.0)
    for step in range(options.steps):
        inputs, heights = batch(step, rank)
        loss = nn.functional.mse_loss(engine(inputs), heights)
        engine.backward(loss)
        engine.step()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        digest = hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in net.parameters())).hexdigest()[:16]
    hashes = [""] * size
    dist.all_gather_object(hashes, digest)
    if rank == 0:
        print(f"loss {loss.item():.4f}")
        print(f"weights {digest}, {'the same' if len(set(hashes)) == 1 else 'NOT the same'} on {size} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
