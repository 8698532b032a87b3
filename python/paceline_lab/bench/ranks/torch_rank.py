"""A PyTorch rank: trains, then computes without communication, and writes its measurements."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline_lab.bench.ranks import data
from paceline_lab.bench.ranks.models import build
from paceline_lab.bench.ranks.rank_spec import RankSpec, place, read
from paceline_lab.bench.ranks.stopwatch import Stopwatch
from paceline_lab.bench.ranks.wrapping import sgd, wrapped

Batch = tuple[torch.Tensor, torch.Tensor]
TRACE = "trace.json"


def main() -> None:
    """Train."""
    spec, (rank, size, local_rank) = read(), place()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = torch.device("cpu")
    if spec.device == "cuda":
        # Several ranks may share a device.
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    load = loader(spec, rank, size, device)
    model = build(spec).to(device)
    job = wrapped(spec, model, device)
    criterion = nn.CrossEntropyLoss()

    def train(batch: Batch) -> float:
        job.optimizer.zero_grad()
        loss = criterion(job.model(batch[0]), batch[1])
        loss.backward()
        job.optimizer.step()
        return float(loss.detach())

    stopwatch = Stopwatch(spec, rank, synchronizer(device))
    stopwatch.run(load, train, checker(stopwatch, model))
    final, choices = weights(model), job.choices()
    _alone(spec, load, stopwatch, device, traced=spec.traced and rank == 0 and spec.mode != "horovod")
    job.close()
    stopwatch.write(final, engine=f"torch {torch.__version__}", choices=choices)


def synchronizer(device: torch.device) -> Callable[[], object]:
    """Return a function that waits for the device."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def weights(model: nn.Module) -> dict[str, Any]:
    """Return the model's current weights: float32 arrays in torch's layout."""
    return {name: value.detach().cpu().numpy().copy() for name, value in model.named_parameters()}


def checker(stopwatch: Stopwatch, model: nn.Module) -> Callable[[], None]:
    """Return a function to call after each step, which saves the weights at the step of the comparison."""
    done = [0]

    def check() -> None:
        done[0] += 1
        if done[0] == stopwatch.spec.checked:
            stopwatch.keep(weights(model))

    return check


def loader(spec: RankSpec, rank: int, size: int, device: torch.device) -> Callable[[int], Batch]:
    """Return a function that returns the batch of step k: images (N, 3, height, width), float32; labels (N,), int64."""
    if spec.data_dir is not None:
        from paceline_lab.bench.ranks.torch_input import image_files

        files = image_files(spec, rank, size, device)
        return lambda _: next(files)
    made = [
        (torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device))
        for images, labels in data.batches(spec, rank)
    ]
    return lambda step: made[step % len(made)]


def _alone(
    spec: RankSpec, load: Callable[[int], Batch], stopwatch: Stopwatch, device: torch.device, *, traced: bool
) -> None:
    """Run the same steps without communication on all ranks at once, to find out how much communication adds."""
    if not spec.alone:
        return
    model = build(spec).to(device)
    optimizer, criterion = sgd(spec, model), nn.CrossEntropyLoss()

    def step(number: int, part: Callable[[str, Callable[[], Any]], Any]) -> None:
        images, labels = load(number)
        optimizer.zero_grad()
        loss = part("forward", lambda: criterion(model(images), labels))
        part("backward", loss.backward)
        part("optimizer", optimizer.step)

    step(0, lambda _, work: work())
    for number in range(spec.alone):
        stopwatch.part("step", partial(step, number, stopwatch.part))
    if not traced and not spec.traced:
        return
    if not traced:
        for number in range(1 + 2 * spec.alone):  # as long as rank 0 records
            step(number, lambda _, work: work())
        return
    from paceline.torch.recorder.recorder import Recorder

    recorder = Recorder(model, optimizer, warmup=1, steps=spec.alone, name=spec.model, batch=spec.batch)
    with recorder:
        number = 0
        while not recorder.done:
            step(number, lambda _, work: work())
            number += 1
    recorder.save(Path(spec.folder) / TRACE)


if __name__ == "__main__":
    main()
