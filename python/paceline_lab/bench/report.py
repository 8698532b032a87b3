"""The table of engines, and the notes below it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from paceline._internal import block
from paceline._internal.block import Fact
from paceline._internal.console import Column, render
from paceline._internal.units import count, digits, factor, percent, span
from paceline.interop.logs import Read
from paceline.interop.logs.show import shown

from paceline_lab.bench import log_fits
from paceline_lab.bench.plan import Plan
from paceline_lab.bench.result import Result, Row
from paceline_lab.bench.statistics import Interval

ALIKE = 0.05
"""Up to this difference, relative to the change by training, weights of engines count as equal up to rounding.

Rounding has a large effect where it decides a ReLU or a pool: in a ResNet-18 with batch 4, changing images by 3e-7 of
their value moves the weights by 0.24, 1.2 and 2.1 % of the change after one, two and three steps. A wrong padding,
layout or mean moves them by 100 %.
"""

_ROUNDING = 1e-4
"""Up to this difference, relative to the change by training, replicas of one process differ by rounding."""

_NOISY = 0.25
"""Relative uncertainty of the rate beyond which comparisons are meaningless."""

Cell = Callable[[Row], str]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else digits(seconds * 1e3, 3) if seconds > 0 else "0"


def _range(interval: Interval | None, text: Callable[[float], str]) -> str:
    return "" if interval is None else f" ({text(interval.low)}-{text(interval.high)})"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "-"
    spread = row.ratio_interval if len(row.runs) > 1 else None
    return f"{row.ratio:.2f}x{_range(spread, lambda value: f'{value:.2f}')}"


def _rate(row: Row) -> str:
    timing = row.timing
    return f"{digits(row.total)} ± {digits(timing.uncertainty, 2)}"


def _error(row: Row) -> str:
    if row.forecast_error is None:
        return "-"
    return f"{'+' if row.forecast_error > 0 else ''}{percent(row.forecast_error)}"


def _efficiency(row: Row) -> str:
    if row.efficiency is None:
        return "-"
    return percent(row.efficiency) + _range(row.efficiency_interval, lambda value: f"{value * 100:.0f}")


def _weights(row: Row) -> str:
    if not row.alike and not _rounded_apart(row):
        return "ranks differ"
    return "-" if row.weights_difference is None else f"{row.weights_difference:.0e}"


def _rounded_apart(row: Row) -> bool:
    """Return whether the replicas of one process differ by rounding only: XLA compiles each device's code apart."""
    return row.replicas_apart is not None and row.replicas_apart < _ROUNDING


def _columns(rows: Sequence[Row]) -> list[tuple[Column, Cell]]:
    """Return the columns that have values in these rows."""
    columns: list[tuple[Column, Cell]] = [(Column("engine", left=True), lambda row: row.engine)]
    if len({row.workers for row in rows}) > 1:
        columns.append((Column("ranks"), lambda row: str(row.workers)))
    columns += [
        (Column("images/s"), _rate),
        (Column("jitter"), lambda row: digits(row.timing.jitter, 2)),
        (Column("step\nms"), lambda row: _ms(row.step_s)),
        (Column("forward\nms"), lambda row: _ms(row.forward_s)),
        (Column("backward\nms"), lambda row: _ms(row.backward_s)),
        (Column("exposed\ncomm. ms"), lambda row: _ms(row.exposed_s)),
    ]
    if any(row.input_s > 0.01 * row.step_s for row in rows):
        columns.append((Column("input\nms"), lambda row: _ms(row.input_s)))
    columns.append((Column("CPUs\nper rank"), lambda row: f"{row.cpu:.2f}"))
    if any(row.ratio is not None for row in rows):
        columns.append((Column("vs first"), _ratio))
    if any(row.efficiency is not None for row in rows):
        columns.append((Column("scaling\nefficiency"), _efficiency))
    if any(row.forecast_s is not None for row in rows):
        columns += [
            (
                Column("forecast\nimages/s"),
                lambda row: "-" if row.forecast_images_per_s is None else digits(row.forecast_images_per_s),
            ),
            (Column("forecast\nerror"), _error),
        ]
    if any(row.weights_difference is not None for row in rows):
        columns.append((Column("weights\ndiffer by"), _weights))
    return columns


def table(plan: Plan, result: Result, read: Sequence[Read], width: int) -> list[str]:
    """Return all lines for people."""
    lines: list[str] = []
    if result.rows:
        lines += [*block.headline(_headline(plan, result.rows)), "", *block.block(_facts(plan, result)), ""]
        columns = _columns(result.rows)
        by_ranks = [[row for row in result.rows if row.workers == workers] for workers in plan.workers]
        groups = [[[cell(row) for _, cell in columns] for row in rows] for rows in by_ranks if rows]
        logs = [_of_log(one, [column.header for column, _ in columns]) for one in read if one.total_images_per_s]
        groups += [logs] if logs else []
        lines += [*render([column for column, _ in columns], groups), ""]
    lines = lines[: len(lines) - (bool(lines) and not lines[-1])]
    notes = block.notes([*_skipped(plan, result), *result.notes, *_remarks(plan, result)], width)
    lines += notes if lines else notes[1:]
    below = [one for one in read if one.sizes or not result.rows]
    if below:
        lines += [*([""] if lines else []), *shown(below)]
    if fitted := log_fits.fits(read):
        lines += [*([""] if lines else []), *log_fits.shown(fitted)]
    return lines[: len(lines) - (bool(lines) and not lines[-1])]


def _of_log(one: Read, headers: list[str]) -> list[str]:
    """Return a row of the same table from a log."""
    rate, devices, batch = one.total_images_per_s or 0.0, one.devices, one.batch
    spread = "" if one.uncertainty is None else f" ± {digits(one.uncertainty, 2)}"
    cells = {
        "engine": one.name,
        "ranks": "-" if devices is None else str(devices),
        "images/s": digits(rate) + spread,
        "jitter": "-" if one.jitter is None else digits(one.jitter, 2),
        "step\nms": _ms(devices * batch / rate) if devices and batch and rate else "-",
    }
    return [cells.get(header, "-") for header in headers]


def _skipped(plan: Plan, result: Result) -> list[str]:
    several = len(plan.workers) > 1
    ranks = {one: f" with {count(one.workers, 'rank')}" if several and one.workers else "" for one in result.skipped}
    return [f"Skipped {one.engine}{ranks[one]}: {one.reason}" for one in result.skipped]


def _headline(plan: Plan, rows: Sequence[Row]) -> str:
    """Return which engine is fastest on most ranks: `resnet18, 4 ranks: ddp-nccl is fastest, 812 images/s (…)`."""
    workers = max(row.workers for row in rows)
    of = [row for row in rows if row.workers == workers]
    best = max(of, key=lambda row: row.total)
    what = f"{plan.model}, {count(workers, 'rank')}: {best.engine}"
    if len(of) == 1:
        return f"{what}, {digits(best.total, 3)} images/s"
    what += f" is fastest, {digits(best.total, 3)} images/s"
    if best.ratio is not None:
        return f"{what} ({factor(best.ratio)} {of[0].engine})"
    second = max((row for row in of if row is not best), key=lambda row: row.total)
    return f"{what} ({factor(1 / second.ratio)} {second.engine})" if second.ratio else what


def _facts(plan: Plan, result: Result) -> list[Fact]:
    data = "synthetic images" if plan.data_dir is None else f"images of {plan.data_dir}"
    rounds = f", {plan.rounds} rounds" if plan.rounds > 1 else ""
    facts = [
        Fact(
            "Setup",
            f"{plan.batch_in_words}, {data} of {plan.image_size} pixels",
            f"{plan.num_batches:,} batches after {plan.num_warmup_batches} warm-up{rounds}",
        )
    ]
    for engine, line in result.lines.items():
        sign = "-" if line.intercept < 0 else "+"
        text = f"{engine}: images/s = {digits(line.slope, 3)} x ranks {sign} {digits(abs(line.intercept), 3)}"
        if line.slope_interval is not None:
            text += f" (slope {span(line.slope_interval.low, line.slope_interval.high)}, 95%)"
        facts.append(Fact("Fit", text))
    compared = [row for row in result.rows if row.weights_difference is not None]
    if compared and not _apart(compared):
        facts.append(Fact("Weights", "equal up to rounding after the first steps"))
    return facts


def _apart(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if (row.weights_difference or 0) > ALIKE]


def _remarks(plan: Plan, result: Result) -> list[str]:
    remarks = []
    if apart := _apart([row for row in result.rows if row.weights_difference is not None]):
        names = ", ".join(dict.fromkeys(row.engine for row in apart))
        remarks.append(f"The weights of {names} differ from those of the first engine by more than rounding")
    noisy = [row for row in result.rows if row.timing.uncertainty > _NOISY * row.total]
    if noisy:
        names = ", ".join(dict.fromkeys(row.engine for row in noisy))
        remarks.append(f"Steps of {names} vary too much to compare: use an idle machine, or more --num-batches")
    for row in result.rows:
        if not row.alike and _rounded_apart(row):
            by = f"{row.replicas_apart:.0e} of the change by training"
            remarks.append(f"Replicas of {row.engine} differ by {by}: each device's code rounds in its own way")
    if any(not row.alike and not _rounded_apart(row) for row in result.rows):
        remarks.append("Ranks that end with different weights have not trained the same model")
    without = [row.engine for row in result.rows if row.runs[-1].ranks[0].get("xla_clusters") == 0]
    if without:
        remarks.append(f"XLA compiled nothing of {', '.join(dict.fromkeys(without))}: these rows compare nothing")
    if plan.data_dir is not None:
        remarks.append("Weights are not compared: frameworks crop and flip images at random, each in its own way")
    return remarks


def totals(result: Result) -> list[str]:
    """Return the closing line of tf_cnn_benchmarks for every engine."""
    return [f"total images/sec: {row.total:.2f} ({row.engine}, {count(row.workers, 'rank')})" for row in result.rows]


def to_json(plan: Plan, result: Result, read: Sequence[Read]) -> str:
    """Return everything as JSON."""
    request: dict[str, Any] = {
        "model": plan.model,
        "batch_size": plan.batch_size,
        "num_batches": plan.num_batches,
        "num_warmup_batches": plan.num_warmup_batches,
        "rounds": plan.rounds,
        "scaling": plan.scaling,
        "workers": list(plan.workers),
        "seed": plan.seed,
        "image_size": plan.image_size,
        "data_dir": None if plan.data_dir is None else str(plan.data_dir),
    }
    lines = [
        {
            "engine": engine,
            "slope": line.slope,
            "intercept": line.intercept,
            "slope_interval": None if line.slope_interval is None else vars(line.slope_interval),
            "intercept_interval": None if line.intercept_interval is None else vars(line.intercept_interval),
        }
        for engine, line in result.lines.items()
    ]
    content = {
        "asked": request,
        "rows": [row.to_dict() for row in result.rows],
        "skipped": [vars(one) for one in result.skipped],
        "regressions": [*lines, *(one.to_dict() for one in log_fits.fits(read))],
        "read": [one.to_dict() for one in read],
        "notes": [*result.notes, *_remarks(plan, result)],
    }
    return json.dumps(content, indent=1, allow_nan=False)
