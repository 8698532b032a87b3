"""The forecast of a row: its command, as `paceline simulate` executes it, in the row's own metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from paceline.catalog.models.workload import Workload
from paceline.cli.simulate import simulate
from paceline.errors import PacelineError
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario

from paceline_lab.studies.steps.data import UNITS, Metric, Row, recording

_OTHERS = frozenset(
    (
        *("traces", "configs", "jobs", "everything", "explain", "detail"),
        *("as_json", "csv", "plan_json", "timeline", "plot"),
    )
)
"""Parameters of `paceline simulate` that are no settings of a forecast."""


@dataclass(frozen=True)
class Answer:
    """The forecast of a command."""

    result: Result
    scenario: Scenario

    @property
    def workload(self) -> Workload | None:
        """The model; None if it is a recording."""
        return self.scenario.workload


@dataclass(frozen=True)
class Forecast:
    """A row and its forecast, in SI: a time in seconds, a rate per second, memory in bytes, a verdict as 1 or 0."""

    row: Row
    answer: Answer

    @property
    def measured(self) -> float:
        """The measured value."""
        return self.row.measured * UNITS[self.row.unit]

    @property
    def value(self) -> float:
        """The forecast value."""
        return _value(self.row.metric, self.answer)

    @property
    def error(self) -> float:
        """Forecast over measured time or memory, minus 1; of a rate, measured over forecast: above 0 is too slow."""
        return error_of(self.row, self.value)

    @property
    def residual(self) -> float:
        """The logarithm of measured over forecast time or memory."""
        return -math.log1p(self.error)

    @property
    def is_covered(self) -> bool | None:
        """Whether the interval of the forecast holds the measured time or memory. None if there is none."""
        if self.row.metric.is_memory:
            assert self.answer.result.sharded is not None
            ends = self.answer.result.sharded.likely.get(memory_kind(self.row.metric))
            return None if ends is None else ends[0] <= self.measured <= ends[1]
        interval = self.answer.result.interval
        if interval is None or self.row.metric is Metric.FORWARD_BACKWARD_TIME or not self.row.metric.is_time:
            return None
        return interval.low_s <= self.answer.result.iteration_s * math.exp(self.residual) <= interval.high_s

    @property
    def fits(self) -> bool | None:
        """Whether the job fits into the GPU's memory by the forecast.

        None if it does not say, and without an optimizer, which the forecast has.
        """
        sharded = self.answer.result.sharded
        return None if sharded is None or self.row.metric is Metric.FORWARD_BACKWARD_TIME else sharded.fits

    @property
    def is_right(self) -> bool | None:
        """Whether the verdict on memory is right: what was measured at all has fitted. None without a verdict."""
        return is_right(self.row, self.fits)


def memory_kind(metric: Metric) -> str:
    """Return the kind of memory that a metric measures: `peak`, `reserved` or `total`."""
    return {Metric.RESERVED: "reserved", Metric.NVIDIA_SMI: "total"}.get(metric, "peak")


def error_of(row: Row, value: float) -> float:
    """Return the error of a forecast of a row, in SI: above 0 is too slow, or too much."""
    ratio = value / (row.measured * UNITS[row.unit])
    return (1 / ratio if row.metric.is_rate else ratio) - 1


def is_right(row: Row, fits: bool | None) -> bool | None:
    """Return whether a verdict on a row's memory is right: what was measured at all has fitted."""
    return None if fits is None else fits == (row.metric is not Metric.FITS or row.measured > 0)


def answers_of(words: Sequence[str]) -> list[Answer]:
    """Return what `paceline simulate` forecasts, by scenario. Raises PacelineError, as the command does."""
    try:
        options: dict[str, Any] = dict(simulate.make_context("simulate", list(words)).params)
    except click.UsageError as error:
        raise PacelineError(error.format_message()) from error
    traces = [
        *(recording(word) if word.startswith("traces/") else word for word in options["traces"]),
        *options["configs"],
    ]
    settings = {name: value for name, value in options.items() if name not in _OTHERS}
    sweep = Sweep.of(traces, settings, "simulate", "flag")
    # In this thread, whose constants may be assumed.
    return [Answer(result_of(scenario), scenario) for scenario in prepare(sweep).scenarios]


def answer_of(words: Sequence[str]) -> Answer:
    """Return what `paceline simulate` forecasts of one scenario. Raises PacelineError, as the command does."""
    answers = answers_of(words)
    if len(answers) != 1:
        raise PacelineError(f"{len(answers)} scenarios instead of one: {' '.join(words)}")
    return answers[0]


def range_of(row: Row) -> tuple[float, float]:
    """Return the least and the most that a command with several scenarios forecasts, in the row's unit."""
    values = [_value(row.metric, answer) / UNITS[row.unit] for answer in answers_of(row.words)]
    return min(values), max(values)


def _value(metric: Metric, answer: Answer) -> float:
    result, workload = answer.result, answer.workload
    rate = result.samples_per_s or 0.0
    match metric:
        case Metric.STEP_TIME:
            return result.iteration_s
        case Metric.FORWARD_BACKWARD_TIME:
            return result.forward_s + result.backward_s
        case Metric.SAMPLES_PER_S:
            return rate
        case Metric.FITS:
            assert result.sharded is not None
            return float(bool(result.sharded.fits))
    if metric.is_memory:
        assert result.sharded is not None
        return float(result.sharded.bytes_of(memory_kind(metric)))
    assert workload is not None
    gpus = result.workers * workload.gpus
    per_gpu = rate / gpus
    if metric in (Metric.TOKENS_PER_S_PER_GPU, Metric.TOKENS_PER_S):
        return (result.tokens_per_s_per_gpu or 0.0) * (gpus if metric is Metric.TOKENS_PER_S else 1)
    if metric is Metric.MODEL_TFLOPS_PER_GPU:
        return per_gpu * workload.model.flops
    assert metric is Metric.HFU
    return per_gpu * workload.hardware_flops / workload.hardware.peak(workload.precision)
