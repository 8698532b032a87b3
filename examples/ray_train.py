"""Trains a small convolutional net on a Ray cluster in several ways, on synthetic images, and compares the results.

python examples/ray_train.py
RAY_ADDRESS=auto python examples/ray_train.py --workers 8 --servers 2
"""

import argparse
import functools
import os
import signal
import time
from collections.abc import Callable

import numpy as np
import torch
from paceline.ray import ElasticRayExecutor, RayExecutor
from paceline.ray import ps as object_store
from torch import Tensor, nn

try:
    import ray
except ImportError:
    raise SystemExit("this example needs Ray: pip install '.[ray]' in a checkout of Paceline") from None

CLASSES = 10
Weights = dict[str, np.ndarray]


def model() -> nn.Module:
    """A net for images of 3 x 32 x 32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, CLASSES)),
    )


def batch(rank: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    """A rank's images of a step: noise, brighter on the right for the higher classes."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    images = torch.randn(size, 3, 32, 32, generator=generator)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    images[:, :, :, 16:] += labels.view(-1, 1, 1, 1) / CLASSES
    return images, labels


def train(steps: int, size: int, *, kill: bool = False) -> tuple[float, Weights]:
    """Train one rank over the runtime, as with Horovod. Return its last loss and its final weights.

    kill: the last rank kills itself halfway, once.
    """
    import paceline.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9), named_parameters=net.named_parameters()
    )
    state = hvd.elastic.TorchState(model=net, optimizer=optimizer, step=0, loss=0.0)

    @hvd.elastic.run
    def go(state: hvd.elastic.TorchState) -> None:
        first = state.step == 0
        while state.step < steps:
            if kill and first and state.step == steps // 2 and hvd.rank() == hvd.size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            images, labels = batch(hvd.rank(), state.step, size)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            state.step, state.loss = state.step + 1, loss.item()
            state.commit()

    go(state)
    weights = {name: weight.detach().numpy() for name, weight in net.named_parameters()}
    hvd.shutdown()
    return state.loss, weights


def by_runtime(options: argparse.Namespace, **job: object) -> tuple[float, Weights]:
    """Train over the runtime: shared memory inside a machine, TCP between machines."""
    settings = RayExecutor.create_settings(timeout_s=120)
    with RayExecutor(settings, num_workers=options.workers, **job) as executor:
        return same(executor.run(train, args=[options.steps, options.batch]))


def with_a_death(options: argparse.Namespace) -> tuple[float, Weights]:
    """Do the same, but an actor is killed halfway: another replaces it, and all continue from the last commit."""
    print("one rank now kills itself, which Ray and Paceline report:", flush=True)
    with ElasticRayExecutor(min_workers=options.workers, max_workers=options.workers) as executor:
        return same(executor.run(train, args=[options.steps, options.batch], kwargs={"kill": True}))


def same(results: list[tuple[float, Weights]]) -> tuple[float, Weights]:
    """Return the mean of all ranks' losses, and the weights, which are bitwise the same on all."""
    first = results[0][1]
    for rank, (_, weights) in enumerate(results):
        if any((weights[name] != first[name]).any() for name in first):
            raise SystemExit(f"the weights of rank {rank} differ from those of rank 0")
    return float(np.mean([loss for loss, _ in results])), first


def by_object_store(options: argparse.Namespace) -> tuple[float, Weights]:
    """Train through Ray's object store: sums inside the node, then parameter servers sharded over the nodes."""
    trained = object_store.train(
        model,
        functools.partial(torch.optim.SGD, lr=0.02, momentum=0.9),
        functools.partial(batch, size=options.batch),
        steps=options.steps,
        workers=options.workers,
    )
    return float(np.mean([steps[-1].loss for steps in trained.steps])), dict(trained.weights)


def main() -> None:
    """Train in each way, and compare the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1, help="parameter servers")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    options = parser.parse_args()

    if os.environ.get("RAY_ADDRESS"):
        ray.init(logging_level="ERROR")
    else:
        # Each worker and server counts as one CPU, whatever this machine has.
        ray.init("local", num_cpus=options.workers + options.servers, include_dashboard=False, logging_level="ERROR")
    ways: dict[str, Callable[[], tuple[float, Weights]]] = {
        "ring": lambda: by_runtime(options, strategy="ring"),
        f"ps, servers: {options.servers}": lambda: by_runtime(options, strategy="ps", servers=options.servers),
        "ray-ps": lambda: by_object_store(options),
        "one killed": lambda: with_a_death(options),
    }
    first: Weights = {}
    print(f"{options.workers} workers, {options.steps} steps of {options.batch} images each", flush=True)
    for name, way in ways.items():
        started = time.perf_counter()
        loss, weights = way()
        seconds = time.perf_counter() - started
        first = first or weights
        difference = max(float(np.abs(weights[each] - first[each]).max()) for each in first)
        print(
            f"{name:17} last loss {loss:.4f}, weights within {difference:.1e} of the first, "
            f"{seconds:.0f} s from start to end",
            flush=True,
        )
        if difference > 1e-4:
            raise SystemExit(f"{name} trained different weights")
    ray.shutdown()


if __name__ == "__main__":
    main()
