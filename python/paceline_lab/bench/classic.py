"""Output for one engine in the format of tf_cnn_benchmarks, which people and scripts can read."""

from __future__ import annotations

from typing import Any

from paceline._internal.console import put, say

from paceline_lab.bench.engines import Engine
from paceline_lab.bench.plan import Plan
from paceline_lab.bench.result import Row
from paceline_lab.bench.runner import Watcher
from paceline_lab.bench.statistics import timing

_RULE = "-" * 64


def header(plan: Plan, engine: Engine, workers: int) -> list[str]:
    """Return the header."""
    batch = plan.batch_of(workers)
    data = "synthetic" if plan.data_dir is None else str(plan.data_dir)
    return [
        f"Model:       {plan.model}",
        f"Dataset:     {data} ({plan.image_size} x {plan.image_size} pixels, {plan.classes} classes)",
        "Mode:        training",
        f"Batch size:  {batch * workers} global",
        f"             {batch} per device",
        f"Num batches: {plan.num_batches}",
        f"Devices:     {workers} ranks",
        "Optimizer:   momentum",
        f"Variables:   {engine.label}",
        "==========",
    ]


class Steps(Watcher):
    """Prints a line every `display_every` steps while an engine runs."""

    def __init__(self, plan: Plan, display_every: int) -> None:
        """Start without steps."""
        self._plan, self._every = plan, display_every
        self._seconds: list[float] = []
        self._images = 0

    def begins(self, engine: Engine, workers: int, number: int) -> None:
        """Print the header before the first run."""
        if number == 0:
            say([*header(self._plan, engine, workers), "Running warm up"])
            self._images = workers * self._plan.batch_of(workers)

    def hears(self, event: dict[str, Any]) -> None:
        """Print a line for a measured step."""
        if "seconds" not in event:
            return
        if not self._seconds:
            put("Done warm up\nStep\tImg/sec\ttotal_loss")
        self._seconds.append(event["seconds"])
        step = len(self._seconds)
        if step == 1 or step % self._every == 0:
            timed = timing(self._images, self._seconds)
            rate = f"images/sec: {timed.images_per_s:.1f} +/- {timed.uncertainty:.1f} (jitter = {timed.jitter:.1f})"
            put(f"{step}\t{rate}\t{event['loss']:.3f}")


def closing(row: Row) -> list[str]:
    """Return the last lines."""
    return [_RULE, f"total images/sec: {row.total:.2f}", _RULE]
