"""The result: one row per engine and number of ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_lab.bench.statistics import Interval, Line, Timing, bootstrap, timing


@dataclass
class Measured:
    """One run of an engine: the results of its ranks and servers."""

    ranks: list[dict[str, Any]]
    servers_cpu_s: float = 0.0
    trace: str | None = None

    @property
    def seconds(self) -> list[float]:
        """Duration of each step at rank 0; all ranks wait for each other."""
        times: list[float] = self.ranks[0]["seconds"]
        return times

    @property
    def lasted_s(self) -> float:
        """Total duration of the steps, at the slowest rank."""
        return max((float(one["lasted_s"]) for one in self.ranks), default=0.0)

    @property
    def alike(self) -> bool:
        """Whether all ranks ended with bitwise equal weights."""
        return len({one["digest"] for one in self.ranks}) == 1


@dataclass
class Row:
    """One engine with one number of ranks, over all rounds."""

    engine: str
    workers: int
    batch: int
    """Batch size per rank."""
    servers: int = 0
    runs: list[Measured] = field(default_factory=list)
    ratio: float | None = None
    """Median over rounds of its rate divided by the first engine's."""
    ratio_interval: Interval | None = None
    """Smallest and largest ratio of the rounds."""
    weights_difference: float | None = None
    """Distance from the first engine's weights after a few steps, relative to the change by training (2-norm)."""
    forecast_s: float | None = None
    """Forecast iteration time."""
    forecast_of: str | None = None
    """The simulated strategy."""
    efficiency: float | None = None
    efficiency_interval: Interval | None = None

    @property
    def images(self) -> int:
        """Global batch size."""
        return self.workers * self.batch

    @property
    def seconds(self) -> list[float]:
        """Duration of each step of all rounds."""
        return [each for run in self.runs for each in run.seconds]

    @property
    def timing(self) -> Timing:
        """Rate, uncertainty and jitter as in tf_cnn_benchmarks."""
        return timing(self.images, self.seconds)

    @property
    def totals(self) -> list[float]:
        """Images/s of each round, from the total time of its steps."""
        return [self.images * len(run.seconds) / run.lasted_s for run in self.runs]

    @property
    def total(self) -> float:
        """Images/s: the median of the rounds."""
        return statistics.median(self.totals)

    @property
    def interval(self) -> Interval:
        """Confidence interval of the median of the rounds, by resampling the steps of each."""
        return bootstrap([run.seconds for run in self.runs], lambda drawn: self.images / middle(drawn))

    @property
    def step_s(self) -> float:
        """Median step time."""
        return statistics.median(self.seconds)

    @property
    def input_s(self) -> float:
        """Median time that a step waits for its batch, at rank 0."""
        return statistics.median(float(each) for run in self.runs for each in run.ranks[0]["input_s"])

    def alone_s(self, part: str) -> float | None:
        """Return a part of a step without communication (`step`, `forward`, …), at the slowest rank."""
        times = [
            max(statistics.median(one["alone"][part]) for one in run.ranks)
            for run in self.runs
            if all(part in one["alone"] for one in run.ranks)
        ]
        return statistics.median(times) if times else None

    @property
    def forward_s(self) -> float | None:
        """Forward time without communication."""
        return self.alone_s("forward")

    @property
    def backward_s(self) -> float | None:
        """Backward time without communication; in TensorFlow it includes the optimizer."""
        alone, step, forward = self.alone_s("backward"), self.alone_s("step"), self.forward_s
        if alone is None and step is not None and forward is not None:
            return max(0.0, step - forward)
        return alone

    @property
    def exposed_s(self) -> float | None:
        """Exposed communication: step time minus a step without communication and minus the wait for the batch."""
        step = self.alone_s("step")
        return None if step is None else self.step_s - self.input_s - step

    @property
    def cpu(self) -> float:
        """Cores that a rank keeps busy while training, averaged over ranks."""
        return statistics.median(
            statistics.fmean(one["cpu_s"] / one["lasted_s"] for one in run.ranks) for run in self.runs
        )

    @property
    def loss(self) -> float | None:
        """Loss of rank 0's last step; None if it is not finite."""
        last = float(self.runs[-1].ranks[0]["losses"][-1])
        return last if math.isfinite(last) else None

    @property
    def alike(self) -> bool:
        """Whether all ranks ended with the same weights in every round."""
        return all(run.alike for run in self.runs)

    @property
    def replicas_apart(self) -> float | None:
        """Largest distance of the weights of one process's replicas, relative to the change by training (2-norm)."""
        distances = [one["replicas_apart"] for run in self.runs for one in run.ranks if "replicas_apart" in one]
        return max(distances, default=None)

    @property
    def forecast_images_per_s(self) -> float | None:
        """Forecast images/s of all ranks."""
        return None if self.forecast_s is None else self.images / self.forecast_s

    @property
    def forecast_error(self) -> float | None:
        """Simulated / measured - 1 of the step time."""
        return None if self.forecast_s is None else self.forecast_s / (self.images / self.total) - 1

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON: times in seconds, rates in images/s."""
        own = self.timing
        return {
            "engine": self.engine,
            "workers": self.workers,
            "batch_size": self.batch,
            "servers": self.servers,
            "total_images_per_s": self.total,
            "images_per_s": own.images_per_s,
            "uncertainty": own.uncertainty,
            "jitter": own.jitter,
            "interval": vars(self.interval),
            "rounds": self.totals,
            "ratio": self.ratio,
            "ratio_interval": None if self.ratio_interval is None else vars(self.ratio_interval),
            "step_s": self.step_s,
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
            "exposed_communication_s": self.exposed_s,
            "input_s": self.input_s,
            "cpu_per_rank": self.cpu,
            "servers_cpu_s": sum(run.servers_cpu_s for run in self.runs),
            "loss": self.loss,
            "ranks_alike": self.alike,
            "replicas_apart": self.replicas_apart,
            "weights_difference": self.weights_difference,
            "forecast_images_per_s": self.forecast_images_per_s,
            "forecast_of": self.forecast_of,
            "forecast_error": self.forecast_error,
            "scaling_efficiency": self.efficiency,
            "scaling_efficiency_interval": None if self.efficiency_interval is None else vars(self.efficiency_interval),
            "choices": self.runs[-1].ranks[0].get("choices") or None,
            "software": self.runs[-1].ranks[0].get("engine"),
            "xla_clusters": self.runs[-1].ranks[0].get("xla_clusters"),
            "step_seconds": [run.seconds for run in self.runs],
        }


@dataclass(frozen=True)
class Skipped:
    """An engine that did not run, and the reason."""

    engine: str
    workers: int | None
    reason: str
    failed: bool = False
    """Whether it started and failed."""


@dataclass
class Result:
    """The result of a benchmark."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    lines: dict[str, Line] = field(default_factory=dict)
    """Regression lines of images/s over ranks, by engine."""
    notes: list[str] = field(default_factory=list)
    ended: int | None = None
    """The exit code, if Ctrl-C or SIGTERM ended the benchmark early."""

    def row(self, engine: str, workers: int) -> Row | None:
        """Return the row of an engine with this number of ranks."""
        return next((row for row in self.rows if (row.engine, row.workers) == (engine, workers)), None)


def middle(rounds: Sequence[Sequence[float]]) -> float:
    """Return the step time in seconds: the median of the rounds' means."""
    return 1 / statistics.median(1 / statistics.fmean(each) for each in rounds)


def compare(rows: Sequence[Row]) -> None:
    """Fill in the ratios to the first row with the same number of ranks, round by round."""
    for row in rows:
        first = next(one for one in rows if one.workers == row.workers)
        ratios = [ours / theirs for ours, theirs in zip(row.totals, first.totals, strict=False)]
        if row is not first and ratios:
            row.ratio = statistics.median(ratios)
            row.ratio_interval = Interval(min(ratios), max(ratios))
