"""Forecasts under coordinators, for people: fastest first within each configuration."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline.forecast.coordination.model import CoordinatedResult, CoordinatedRun

Cell = Callable[[CoordinatedResult], str]
_PARTS = ("compute", "coordinator", "copy", "collective")


def table(runs: Sequence[CoordinatedRun], results: Sequence[CoordinatedResult]) -> list[str]:
    """Return title and table, as lines."""
    groups: dict[tuple[int, float, str], list[CoordinatedResult]] = {}
    for result in results:
        groups.setdefault((result.workers, result.bandwidth_bps, result.strategy), []).append(result)
    first = {key: group[0].iteration_s for key, group in groups.items()}
    shown: list[tuple[Column, Cell]] = []
    if len({result.workers for result in results}) > 1:
        shown.append((Column("workers"), lambda it: str(it.workers)))
    if len({result.bandwidth_bps for result in results}) > 1:
        shown.append((Column("bandwidth"), lambda it: units.rate(it.bandwidth_bps)))
    if len({result.strategy for result in results}) > 1:
        shown.append((Column("strategy", left=True), lambda it: it.strategy))
    unit = units.time_unit(result.iteration_s for result in results)
    shown += [
        (Column("coordinator", left=True), lambda it: it.coordinator),
        (Column(f"iteration\n{unit[1]}"), lambda it: units.in_unit(it.iteration_s, unit)),
        (Column("samples/s"), lambda it: "-" if it.samples_per_s is None else units.digits(it.samples_per_s)),
        (
            Column("scaling\nefficiency"),
            lambda it: "-" if it.scaling_efficiency is None else units.percent(it.scaling_efficiency),
        ),
    ]
    several = any(len(group) > 1 for group in groups.values())
    if several:
        name = results[0].coordinator

        def gain(it: CoordinatedResult) -> str:
            base = first[it.workers, it.bandwidth_bps, it.strategy]
            return f"{(base / it.iteration_s - 1) * 100:+.1f} %" if it.iteration_s else "-"

        shown.append((Column(f"gain over\n{name}"), gain))
    shown += [(Column(f"{part}\n{unit[1]}"), _part(part, unit)) for part in _PARTS]
    rows = [
        [[cell(it) for _, cell in shown] for it in sorted(group, key=lambda it: it.iteration_s)]
        for group in groups.values()
    ]
    return [*_title(runs, results), "", *render([column for column, _ in shown], rows, highlight_first=several)]


def _part(part: str, unit: units.Unit) -> Cell:
    # Tenths of milliseconds are precise enough, whatever the unit of the iteration.
    places = 4 if unit[1] == "s" else 1
    return lambda it: f"{getattr(it, f'{part}_s') / unit[0]:.{places}f}"


def _title(runs: Sequence[CoordinatedRun], results: Sequence[CoordinatedResult]) -> list[str]:
    it = results[0]
    cluster = json.loads(runs[0].cluster.to_json())
    what = f"{it.trace}, {units.size(it.gradient_bytes)} of gradients, batch {it.batch} per worker"
    where = f"cluster {cluster['name']}, {cluster['gpus_per_node']} GPUs per node, {runs[0].iterations} iterations"
    workers = [units.count(it.workers, "worker")] if len({result.workers for result in results}) == 1 else []
    return [f"{what}, {units.duration(it.compute_s)} of computation", ", ".join([*workers, where])]


def to_csv(results: Sequence[CoordinatedResult]) -> str:
    """Return CSV with a header."""
    out = io.StringIO()
    rows = [result.to_dict() for result in results]
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def advice(results: Sequence[CoordinatedResult]) -> list[str]:
    """Return a sentence on where the time of the slowest configuration goes."""
    worst = max(results, key=lambda it: it.iteration_s)
    parts = {part: getattr(worst, f"{part}_s") for part in _PARTS}
    most = max(parts, key=lambda part: parts[part])
    share = units.percent(parts[most] / worst.iteration_s) if worst.iteration_s else "0 %"
    return [
        f"{worst.coordinator} with {units.count(worst.workers, 'worker')}: {share} of an iteration is {most}; the "
        f"latest process is {units.duration(worst.latest_s)} late on average."
    ]
