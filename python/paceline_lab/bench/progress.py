"""Shows the progress of a benchmark of several engines on stderr."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING, Any

import click
from paceline._internal.console import on_terminal
from paceline._internal.units import count, digits

from paceline_lab.bench.engines import Engine
from paceline_lab.bench.plan import Plan
from paceline_lab.bench.runner import Watcher

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Shown(Watcher):
    """A progress bar on a terminal, or one line per run elsewhere. A context manager."""

    def __init__(self, plan: Plan) -> None:
        """Start before the first run."""
        self._plan, self._runs, self._done = plan, 1, 0
        self._name, self._images = "", 0
        self._seconds: list[float] = []
        self._started = time.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Shown:
        """Show the bar."""
        if on_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar = bar, bar.add_task("starting", total=self._runs)
            bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar[0].stop()

    def expects(self, runs: int) -> None:
        """Set the total number of runs."""
        self._runs, self._started = runs, time.monotonic()
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, total=runs)

    def begins(self, engine: Engine, workers: int, number: int) -> None:
        """Start a run."""
        self._seconds, self._images = [], workers * self._plan.batch_of(workers)
        in_rounds = f"round {number + 1}/{self._plan.rounds}, " if self._plan.rounds > 1 else ""
        self._name = f"{in_rounds}{engine.label}, {count(workers, 'rank')}"
        self._show(0, "starting")

    def hears(self, event: dict[str, Any]) -> None:
        """Handle an event of rank 0."""
        steps = max(1, self._plan.num_batches // self._plan.rounds)
        if "seconds" not in event:
            self._show(0, "warming up" if event["step"] < 0 else f"step {event['step'] + 1}")
            return
        self._seconds.append(event["seconds"])
        self._show(len(self._seconds) / steps, f"step {len(self._seconds)}, {self._rate()} images/s")

    def ended(self, why: str | None, images_per_s: float | None = None) -> None:
        """End the run."""
        self._done += 1
        if self._bar is None:
            outcome = (
                f"failed: {why}"
                if why
                else f"{self._rate() if images_per_s is None else digits(images_per_s)} images/s"
            )
            click.echo(f"paceline: {self._done}/{self._runs} {self._name}: {outcome}{self._left()}", err=True)
        else:
            self._show(0, "ended")

    def _left(self) -> str:
        """Return the estimated time left, if it is over a minute."""
        left = (time.monotonic() - self._started) / self._done * (self._runs - self._done)
        return f"; about {math.ceil(left / 60)} min left" if left > 60 else ""

    def _rate(self) -> str:
        return digits(self._images / statistics.fmean(self._seconds)) if self._seconds else "?"

    def _show(self, share: float, what: str) -> None:
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, completed=self._done + min(1.0, share), description=f"{self._name}: {what}")
