"""Regression lines of images/s over GPUs, over logs of tf_cnn_benchmarks: one for each series of logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal.console import Column, render, width, wrapped
from paceline._internal.units import count, digits
from paceline.errors import InvalidArgumentError
from paceline.interop.logs import Read

from paceline_lab.bench.statistics import Line, line

_NAMED = re.compile(r"(?i)(?<![a-z])(?:g|gpus?|n|np|ranks?|workers?|devices?)[_=-]?(\d{1,6})(?!\d)")
_NAMED_AFTER = re.compile(r"(?i)(?<!\d)(\d{1,6})[_-]?(?:gpus?|ranks?|workers?|devices?)(?![a-z])")


@dataclass(frozen=True)
class Fit:
    """The line of a series: logs that differ in their number of GPUs only."""

    name: str
    """The logs' name, with * for the number of GPUs."""
    way: str | None
    """How variables were synchronized, by the logs."""
    points: tuple[tuple[int, float], ...]
    """GPUs and images/s of each log."""
    line: Line

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON: slopes in images/s per GPU."""
        intervals = {"slope_interval": self.line.slope_interval, "intercept_interval": self.line.intercept_interval}
        return {
            "logs": self.name,
            "way": self.way,
            "points": [{"gpus": gpus, "images_per_s": rate} for gpus, rate in self.points],
            "slope": self.line.slope,
            "intercept": self.line.intercept,
            **{name: None if one is None else vars(one) for name, one in intervals.items()},
        }


def training(read: Sequence[Read]) -> list[Read]:
    """Return the logs of training."""
    return [one for one in read if one.total_images_per_s is not None]


def number(read: Sequence[Read], gpus: Sequence[int] | None) -> None:
    """Fill in numbers of GPUs that logs do not tell: `gpus`, in the order of the logs, or those of their names.

    Raises InvalidArgumentError.
    """
    logs = training(read)
    if gpus is not None and len(gpus) != len(logs):
        has = f"{count(len(gpus), 'number')} for {count(len(logs), 'run')} of training"
        raise InvalidArgumentError(f"--gpus: {has}", remedy="--gpus 1,2,4 (one for each --read)")
    for place, one in enumerate(logs):
        named = _named(one.source) if one.alone else None
        if one.devices is None:
            one.devices = gpus[place] if gpus is not None else named
        elif gpus is not None and gpus[place] != one.devices:
            raise InvalidArgumentError(
                f"--gpus: {one.source} is a log of {count(one.devices, 'device')}, not {gpus[place]}",
                remedy="drop --gpus",
            )
        elif named not in (None, one.devices):
            one.notes.append(f"the name tells {count(named or 0, 'GPU')}, the log {one.devices}: the log counts")


def _named(source: str) -> int | None:
    """Return the number of GPUs that the file's name tells, or its folder's."""
    for part in reversed(Path(source).parts[-2:]):
        counts = {int(match[1]) for each in (_NAMED, _NAMED_AFTER) for match in each.finditer(part)} - {0}
        if counts:
            return counts.pop() if len(counts) == 1 else None
    return None


def fits(read: Sequence[Read]) -> list[Fit]:
    """Return the lines of series with at least two numbers of GPUs, in the order of the logs."""
    series: dict[tuple[object, ...], list[Read]] = {}
    for one in training(read):
        if one.devices is not None:
            series.setdefault((_template(one), one.what, one.way, one.batch), []).append(one)
    lines = []
    names = _short([str(key[0]) for key in series])
    for name, ((_, _, way, _), logs) in zip(names, series.items(), strict=True):
        points = sorted((one.devices or 0, one.total_images_per_s or 0.0) for one in logs)
        if (fitted := line(points)) is not None:
            lines.append(Fit(name, None if way is None else str(way), tuple(points), fitted))
    return lines


def _template(one: Read) -> str:
    """Return the log's path with * for its number of GPUs."""
    digits_of = re.compile(rf"(?<!\d)0*{one.devices}(?!\d)")
    parts = list(Path(one.source).parts)
    for place in reversed(range(len(parts))):
        marked = [
            match.span(1)
            for each in (_NAMED, _NAMED_AFTER)
            for match in each.finditer(parts[place])
            if int(match[1]) == one.devices
        ] or [match.span() for match in digits_of.finditer(parts[place])][-1:]
        if marked:
            begin, end = marked[0]
            parts[place] = f"{parts[place][:begin]}*{parts[place][end:]}"
            break
    return str(Path(*parts))


def _short(paths: list[str]) -> list[str]:
    """Return the paths without the folders that all have in common."""
    parts = [Path(path).parts for path in paths]
    common = 0
    while parts and all(len(one) > common + 1 and one[common] == parts[0][common] for one in parts):
        common += 1
    return [str(Path(*one[common:])) for one in parts]


def shown(fitted: Sequence[Fit]) -> list[str]:
    """Return the table of lines, and what limits it."""
    if not fitted:
        return []
    columns = [Column("images/s over GPUs", left=True), Column("logs"), Column("GPUs"), Column("images/s\nper GPU")]
    columns += [Column("95% interval"), Column("at 0 GPUs")]
    firsts: dict[str | None, Fit] = {}
    for one in fitted:
        firsts.setdefault(one.way, one)
    if len(firsts) < len(fitted):
        columns.append(Column("vs first of\nthe same way"))
    lines = render(columns, [[_cells(one, firsts[one.way])[: len(columns)] for one in fitted]])
    if any(one.line.slope_interval is None for one in fitted):
        lines += ["", *wrapped("note: a line through two logs has no interval: it passes through both", width(), "  ")]
    return lines


def _cells(one: Fit, first: Fit) -> list[str]:
    interval = one.line.slope_interval
    return [
        one.name if one.way is None else f"{one.name} ({one.way})",
        str(len(one.points)),
        f"{one.points[0][0]}-{one.points[-1][0]}",
        digits(one.line.slope),
        "-" if interval is None else f"{digits(interval.low)} to {digits(interval.high)}",
        digits(one.line.intercept, 3),
        "-" if one is first or not first.line.slope else f"{one.line.slope / first.line.slope:.3f}x",
    ]
