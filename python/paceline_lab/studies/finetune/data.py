"""The measurements of fine-tuning as rows, with the commands that forecast them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from paceline_lab.studies.finetune.held_out import HELD_OUT, HELD_OUT_GROUPS
from paceline_lab.studies.finetune.measurement import Measurement, measurements
from paceline_lab.studies.finetune.readings import NotForecast, Reading
from paceline_lab.studies.finetune.sources import GROUPS, SOURCES, Source, source_of
from paceline_lab.studies.steps.data import Metric, Row

__all__ = ["GROUPS", "HELD_OUT_GROUPS", "read", "read_held_out"]

_METRICS = {
    "peak_memory_reserved": Metric.RESERVED,
    "p99_step_memory_reserved": Metric.RESERVED,
    "peak_memory_allocated": Metric.ALLOCATED,
    "peak_memory_active": Metric.ACTIVE,
    "peak_memory_nvidia_smi": Metric.NVIDIA_SMI,
    "memory_nvidia_smi_style": Metric.NVIDIA_SMI,
    "peak_memory_unspecified": Metric.UNSPECIFIED,
    "end_of_step_memory_allocated_mean": Metric.UNSPECIFIED,
    **dict.fromkeys(("step_time", "step_time_mean", "iteration_time"), Metric.STEP_TIME),
    "run_time_1024_samples": Metric.SAMPLES_PER_S,
    "samples_per_s": Metric.SAMPLES_PER_S,
    "tokens_per_s": Metric.TOKENS_PER_S,
    "tokens_per_s_total": Metric.TOKENS_PER_S,
    "tokens_per_s_per_gpu": Metric.TOKENS_PER_S_PER_GPU,
    "fits": Metric.FITS,
    "max_context_that_fits": Metric.FITS,
}
"""Metrics of measurements.csv as those of rows."""
_NOT_COUNTED = {
    "end_of_step_memory_allocated_mean": "a mean at the end of steps is no peak",
}
_RUN = 1024
"""Samples whose time the source states."""
_OUTCOMES = {"OOM": 0.0, "fits": 1.0}


@lru_cache(maxsize=1)
def read() -> list[Row]:
    """Return the measurements by which rules and mechanisms were made as rows."""
    return _rows(measurements(), SOURCES)


@lru_cache(maxsize=1)
def read_held_out() -> list[Row]:
    """Return the measurements on which nothing was fitted as rows."""
    return _rows(measurements("held-out.csv"), HELD_OUT)


def _rows(lines: Sequence[Measurement], sources: Sequence[Source]) -> list[Row]:
    timed = {it.source for it in lines if it.metric == "step_time_mean"}
    return [_row(it, source_of(it, sources), timed) for it in lines]


def _row(it: Measurement, source: Source, timed: set[str]) -> Row:
    metric = _METRICS[it.metric]
    reading, left_out = Reading(), _NOT_COUNTED.get(it.metric, "")
    if metric is Metric.UNSPECIFIED and not left_out and source.memory:
        metric = Metric(source.memory)
        reading.add(assumed=f"its peak as {source.memory.replace('_', '-')}")
    elif metric is Metric.UNSPECIFIED and not left_out:
        left_out = "the kind of memory is not stated"
    elif metric is Metric.TOKENS_PER_S and it.source in timed:
        left_out = "the same measurement as the time of its steps"
    try:
        command = source.read(it)
    except NotForecast as error:
        left_out, command = str(error), Reading()
    for text in command.assumed:
        reading.add(assumed=text)
    is_dropped = bool(left_out)
    left_out = left_out or command.not_counted
    measured, unit = _value(it, metric, source)
    return Row(
        id=it.id,
        group=source.group,
        source=it.source,
        model=it.model,
        gpu=it.gpu,
        metric=metric,
        measured=measured,
        unit=unit,
        command="" if is_dropped else command.command,
        assumed="" if left_out else "; ".join(reading.assumed),
        left_out=left_out,
        method=_method(it),
    )


def _value(it: Measurement, metric: Metric, source: Source) -> tuple[float, str]:
    """Return the measured value and its unit."""
    if metric is Metric.FITS:
        return _OUTCOMES.get(it.measured, 1.0), ""
    value = float(it.measured)
    if it.metric == "run_time_1024_samples":
        return _RUN / value, "samples/s"
    unit = "s" if re.match("s/", it.unit) else it.unit
    if metric.is_memory and source.sums_memory:
        value /= int(it.gpus)
    if metric is Metric.STEP_TIME and source.steps_are_passes:
        value *= int(it.accumulate)
    return value, unit


def _method(it: Measurement) -> str:
    """Return what is trained, in one word."""
    first = re.split("[ +]", it.method)[0]
    return "qlora" if first in ("lora", "gptq-lora") and it.quantization not in ("none", "") else first
