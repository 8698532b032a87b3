"""The driver of `ray-ps`: Ray starts the workers, whose gradients go through its object store."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from paceline_lab.bench.ranks.data import batch
from paceline_lab.bench.ranks.models import build
from paceline_lab.bench.ranks.rank_spec import RankSpec, read
from paceline_lab.bench.ranks.stopwatch import EVENTS, Stopwatch


def main() -> None:
    """Train, and write the measurements of every worker."""
    spec, size = read(), int(sys.argv[2])
    # First a run for the compared weights, then the measured run.
    first = _train(spec, size, spec.checked, None)
    stopwatch = Stopwatch(spec, 0)
    stopwatch.keep(first.weights)
    result = _train(spec, size, spec.steps, Path(spec.folder) / EVENTS)
    for rank, steps in enumerate(result.steps):
        counted = steps[spec.warmup :]
        own = Stopwatch(spec, rank) if rank else stopwatch
        own.write(
            result.weights,
            seconds=[one.step_s for one in counted],
            input_s=[one.input_s for one in counted],
            losses=[one.loss for one in counted],
            lasted_s=sum(one.step_s for one in counted),
            cpu_s=sum(one.cpu_s for one in counted),
            # Nothing overlaps in its steps, so computation takes as long as it does alone.
            alone={
                "forward": [one.forward_s for one in counted],
                "backward": [one.backward_s for one in counted],
                "step": [one.forward_s + one.backward_s + one.optimizer_s for one in counted],
            },
            engine=f"ray, {result.servers} server shards on {result.nodes} nodes, {result.inside} inside them",
        )


def _train(spec: RankSpec, size: int, steps: int, events: Path | None) -> Any:  # noqa: ANN401 - paceline.ray's result
    import torch
    from paceline.ray.ps import train

    def progress(done: int, _: int) -> None:
        if events is not None:
            with events.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": done - 1 - spec.warmup}) + "\n")

    return train(
        partial(build, spec),
        partial(torch.optim.SGD, lr=spec.learning_rate, momentum=spec.momentum),
        partial(tensors, spec),
        steps=steps,
        workers=size,
        seed=spec.seed,
        servers=spec.servers or None,
        inside=spec.inside,
        timeout_s=spec.limit_s,
        progress=progress,
    )


def tensors(spec: RankSpec, rank: int, step: int) -> Any:  # noqa: ANN401
    """Return images and labels of a step, the same as for every other engine."""
    import torch

    from paceline_lab.bench.ranks.data import DISTINCT

    number = step % min(DISTINCT, spec.steps)
    images, labels = batch(spec.seed, rank, number, spec.batch, spec.image_size, spec.classes)
    return torch.from_numpy(images), torch.from_numpy(labels)


if __name__ == "__main__":
    main()
