"""Trains a small net with DDP over Paceline, with one of torch's further options for data-parallel training.

torchrun --nproc-per-node 2 examples/ddp_options.py --with powersgd
paceline run -np 2 -- python examples/ddp_options.py --with zero
"""

import argparse
import contextlib
import hashlib
from collections.abc import Callable

import paceline.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.join import Join, Joinable
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 200


class Net(nn.Module):
    """Classifies bags of words."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 32, sparse=sparse)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, bags: Tensor) -> Tensor:
        return self.head(self.words(bags).mean(1))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return this rank's bags of a step, labeled by their first word."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    bags = torch.randint(VOCABULARY, (16, 6), generator=generator)
    return bags, bags[:, 0] % 10


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.2)


Trainee = tuple[DistributedDataParallel, Callable[[Tensor], Tensor], torch.optim.Optimizer]
"""The DDP model, the function that is called with a batch, and the optimizer."""


def prepare(option: str, backend: str) -> Trainee:
    """Return what to train, with one option."""
    net = Net(sparse=option == "sparse")
    if option == "powersgd":
        # Its callbacks start collectives: with several buckets, `in_order` keeps their order the same on all ranks.
        model = DistributedDataParallel(net)
        state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, paceline.torch.in_order(powerSGD_hook))
        return model, model, sgd(model)
    model = DistributedDataParallel(net)
    if option in ("fp16", "bf16"):
        hook = default_hooks.fp16_compress_hook if option == "fp16" else default_hooks.bf16_compress_hook
        model.register_comm_hook(dist.group.WORLD, hook)
    elif option == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
        return model, model, optimizer
    elif option == "post-local-sgd":
        alone, _ = dist.new_subgroups(1, backend=backend)
        state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=4)
        model.register_comm_hook(state, post_localSGD_hook)
        averager = averagers.PeriodicModelAverager(period=4, warmup_steps=4)
        return model, model, PostLocalSGDOptimizer(optim=sgd(model), averager=averager)
    elif option == "compile":
        return model, torch.compile(model), sgd(model)
    return model, model, sgd(model)


OPTIONS = ["plain", "compile", "powersgd", "fp16", "bf16", "post-local-sgd", "zero", "join", "sparse"]


def main() -> None:
    """Train, and print a hash of the weights of every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="option", default="plain", choices=OPTIONS)
    parser.add_argument("--steps", type=int, default=13, help="for post-local-sgd, one more than a multiple of 4")
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, forward, optimizer = prepare(options.option, options.backend)
    steps, uneven = options.steps, contextlib.nullcontext()
    if options.option == "join":  # Each rank has a step less than the one before.
        joinable: list[Joinable] = [model]
        steps, uneven = max(1, steps - rank), Join(joinable)
    loss = torch.tensor(0.0)
    with uneven:
        for step in range(steps):
            bags, labels = batch(step, rank)
            loss = nn.functional.cross_entropy(forward(bags), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    digest = hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in model.parameters())).hexdigest()[:16]
    hashes = [""] * size
    dist.all_gather_object(hashes, digest)
    if rank == 0:
        print(f"loss {loss.item():.4f}")
        print(f"weights {digest}, {'the same' if len(set(hashes)) == 1 else 'NOT the same'} on {size} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
