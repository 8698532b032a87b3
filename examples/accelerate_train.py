"""Trains a small net with Hugging Face's accelerate over Paceline, on CPUs and synthetic data.

paceline run -np 2 -- python examples/accelerate_train.py
torchrun --nproc-per-node 2 examples/accelerate_train.py
"""

import argparse
import hashlib
import os

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def data(samples: int) -> TensorDataset:
    """Points on a plane, and their height with a little noise."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 16, generator=generator)
    heights = inputs @ torch.linspace(-1, 1, 16) + 0.1 * torch.randn(samples, generator=generator)
    return TensorDataset(inputs, heights[:, None])


def fingerprint(model: nn.Module) -> str:
    """Return a hash of all weights."""
    return hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())).hexdigest()[:16]


def main() -> None:
    """Train, and print a hash of the weights of every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients are added up for a step")
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    options = parser.parse_args()

    torch.manual_seed(0)
    several = [InitProcessGroupKwargs(backend=options.backend)] if "RANK" in os.environ else []
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulate, kwargs_handlers=several)
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(data(256), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    mean = torch.tensor(0.0)
    for _ in range(options.epochs):
        for inputs, heights in loader:
            with accelerator.accumulate(model):
                loss: Tensor = nn.functional.mse_loss(model(inputs), heights)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), reduction="mean")
        accelerator.print(f"loss {mean.item():.4f}")
    hashes = accelerator.gather_for_metrics([fingerprint(model)], use_gather_object=True)
    accelerator.print(
        f"weights {hashes[0]}, {'the same' if len(set(hashes)) == 1 else 'NOT the same'} on {len(hashes)} ranks"
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
