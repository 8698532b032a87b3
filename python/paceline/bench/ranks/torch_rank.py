"""A rank of PyTorch: trains, then computes alone, and writes what it has measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.bench.ranks import data
from paceline.bench.ranks.models import build
from paceline.bench.ranks.rank_spec import Asked, place, read
from paceline.bench.ranks.stopwatch import Stopwatch
from paceline.bench.ranks.wrapping import sgd, wrapped

Batch = tuple[torch.Tensor, torch.Tensor]
TRACE = "trace.json"


def main() -> None:
    """Train."""
    asked, (rank, size, local_rank) = read(), place()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = torch.device(f"cuda:{local_rank}" if asked.device == "cuda" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    load = loader(asked, rank, size, device)
    model = build(asked).to(device)
    job = wrapped(asked, model, local_rank)
    criterion = nn.CrossEntropyLoss()

    def train(batch: Batch) -> float:
        job.optimizer.zero_grad()
        loss = criterion(job.model(batch[0]), batch[1])
        loss.backward()
        job.optimizer.step()
        return float(loss.detach())

    stopwatch = Stopwatch(asked, rank, synchroniser(device))
    stopwatch.run(load, train, checker(stopwatch, model))
    final, choices = weights(model), job.choices()
    _alone(asked, load, stopwatch, device, traced=asked.traced and rank == 0 and asked.way != "horovod")
    job.close()
    stopwatch.write(final, engine=f"torch {torch.__version__}", choices=choices)


def synchroniser(device: torch.device) -> Callable[[], object]:
    """What waits until the device has done all."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def weights(model: nn.Module) -> dict[str, Any]:
    """Of the model, as they are now: float32 arrays in torch's layout."""
    return {name: value.detach().cpu().numpy().copy() for name, value in model.named_parameters()}


def checker(stopwatch: Stopwatch, model: nn.Module) -> Callable[[], None]:
    """Called after a step: keeps the weights of the step at which engines are compared."""
    done = [0]

    def check() -> None:
        done[0] += 1
        if done[0] == stopwatch.asked.checked:
            stopwatch.keep(weights(model))

    return check


def loader(asked: Asked, rank: int, size: int, device: torch.device) -> Callable[[int], Batch]:
    """What gives the batch of step k: images (N, 3, height, width), float32, and labels (N,), int64."""
    if asked.data_dir is not None:
        from paceline.bench.ranks.torch_input import image_files

        files = image_files(asked, rank, size, device)
        return lambda _: next(files)
    made = [
        (torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device))
        for images, labels in data.batches(asked, rank)
    ]
    return lambda step: made[step % len(made)]


def _alone(
    asked: Asked, load: Callable[[int], Batch], stopwatch: Stopwatch, device: torch.device, *, traced: bool
) -> None:
    """The same steps by a model that nobody shares, while the other ranks do the same: what communication adds."""
    if not asked.alone:
        return
    model = build(asked).to(device)
    optimizer, criterion = sgd(asked, model), nn.CrossEntropyLoss()

    def step(number: int, part: Callable[[str, Callable[[], Any]], Any]) -> None:
        images, labels = load(number)
        optimizer.zero_grad()
        loss = part("forward", lambda: criterion(model(images), labels))
        part("backward", loss.backward)
        part("optimizer", optimizer.step)

    step(0, lambda _, work: work())
    for number in range(asked.alone):
        stopwatch.part("step", partial(step, number, stopwatch.part))
    if not traced and not asked.traced:
        return
    if not traced:
        for number in range(1 + 2 * asked.alone):  # as long as the first rank records
            step(number, lambda _, work: work())
        return
    from paceline.torch.recorder.recorder import Recorder

    recorder = Recorder(model, optimizer, warmup=1, steps=asked.alone, name=asked.model, batch=asked.batch)
    with recorder:
        number = 0
        while not recorder.done:
            step(number, lambda _, work: work())
            number += 1
    recorder.save(Path(asked.folder) / TRACE)


if __name__ == "__main__":
    main()
