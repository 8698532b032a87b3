"""Trains a small convolutional net with DistributedDataParallel over Paceline, on synthetic images.

torchrun --nproc-per-node 2 examples/ddp.py
paceline run -np 4 --strategy ring -- python examples/ddp.py
mpirun -n 2 python examples/ddp.py --transport mpi
paceline run -np 2 -- python examples/ddp.py --device cuda
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10


def model() -> nn.Module:
    """A net for images of 3 x 32 x 32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, CLASSES)),
    )


def batch(step: int, rank: int, size: int) -> tuple[Tensor, Tensor]:
    """Return this rank's images of a step, with labels that can be learned: the brightest of some patches."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    images = torch.randn(size, 3, 32, 32, generator=generator)
    labels = images[:, 0, 0, :CLASSES].argmax(1)
    images[:, :, :, 16:] += labels.view(-1, 1, 1, 1) / CLASSES
    return images, labels


def same_everywhere(weights: Tensor) -> bool:
    """Return whether all ranks have the same bits."""
    low, high = weights.view(torch.int32).clone(), weights.view(torch.int32).clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return torch.equal(low, high)


def main() -> None:
    """Train, and check that all ranks have the same weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo", "nccl"])
    parser.add_argument(
        "--device", default="cpu", choices=["cpu", "cuda"], help="cuda: rank r on GPU r modulo their number"
    )
    parser.add_argument("--transport", help="as PACELINE_TRANSPORT")
    parser.add_argument("--deterministic", action="store_true", help="operators that give the same bits in every run")
    parser.add_argument("--weights", help="save the weights after training to this file")
    options = parser.parse_args()

    if options.transport:
        os.environ["PACELINE_TRANSPORT"] = options.transport
    import paceline.torch  # noqa: F401 - registers the backend, by what the environment says; torch 2.15 finds it without

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(options.deterministic)
    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("--device cuda: torch sees no CUDA device here; leave it out")
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    net = DistributedDataParallel(model().to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    started = time.perf_counter()
    for step in range(options.steps):
        images, labels = (part.to(device) for part in batch(step, rank, options.batch))
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step} loss {mean.item():.4f}", flush=True)
    seconds = time.perf_counter() - started

    weights = torch.cat([weight.detach().flatten() for weight in net.parameters()])
    if not same_everywhere(weights):
        raise SystemExit(f"rank {rank}: the ranks have different weights")
    if rank == 0:
        if options.weights:
            torch.save(weights.cpu(), options.weights)
        print(
            f"{options.steps * options.batch * size / seconds:.0f} images/s on {size} ranks; all weights are the same"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
