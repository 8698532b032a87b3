"""Trains a small net asynchronously: servers apply each gradient when it arrives, and nobody waits for the slowest.

paceline run -np 3 --strategy async-ps --servers 1 -- python examples/async_ps.py
paceline run -np 3 --strategy async-ps --servers 2 --staleness 2 -- python examples/async_ps.py --slow 2
"""

import argparse
import time

import paceline.torch as hvd
import torch
from torch import Tensor, nn


def batches(rank: int, steps: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of points and the class of each: which of four directions they point to."""
    generator = torch.Generator().manual_seed(rank)
    made = []
    for _ in range(steps):
        points = torch.randn(size, 16, generator=generator)
        made.append((points, points[:, :4].argmax(dim=1)))
    return made


def main() -> None:
    """Train, and print the loss and the staleness of the gradients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--slow", type=int, help="a rank that takes 5 ms longer for each step")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.5)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    if not hasattr(optimizer, "staleness"):
        parser.error("needs asynchronous servers; try: paceline run -np 3 --strategy async-ps -- python …")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5)

    began = time.perf_counter()
    for step, (points, targets) in enumerate(batches(hvd.rank(), options.steps, options.batch_size), start=1):
        if hvd.rank() == options.slow:
            time.sleep(0.005)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(points), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 and hvd.rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    rate = options.steps * options.batch_size / (time.perf_counter() - began)

    total = hvd.allreduce(torch.tensor([rate]), op=hvd.Sum)
    if hvd.rank() == 0:
        print(f"{hvd.size()} workers: {total.item():.0f} examples/s")
        print(f"staleness in updates: {optimizer.staleness()}")


if __name__ == "__main__":
    main()
