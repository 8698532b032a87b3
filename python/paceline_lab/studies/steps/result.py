"""Measured steps and their forecasts, as JSON, as CSV and as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline._internal import block, units
from paceline._internal.console import Column, render, wrapped
from paceline.forecast.likeness import LEVEL

from paceline_lab.studies.report import csv_of
from paceline_lab.studies.steps.data import UNITS, Metric, Row
from paceline_lab.studies.steps.forecast import Forecast

_KINDS: dict[str, Callable[[Row], bool]] = {
    "time": lambda row: row.metric.is_time,
    "memory": lambda row: row.metric.is_memory,
}
BY: dict[str, Callable[[Row], str]] = {
    "method": lambda row: row.method,
    "gpu": lambda row: row.forecast_gpu,
    "model": lambda row: row.forecast_model,
    "kernels": lambda row: row.kernels,
    "metric": lambda row: row.metric.value,
}
"""The columns by which rows are summed up."""
_MOST = 0.9
"""The share of rows whose error `p90` does not fall below."""


class Compared(Protocol):
    """A row beside a forecast of it."""

    @property
    def row(self) -> Row:
        """The measurement."""

    @property
    def error(self) -> float:
        """Forecast over measured time or memory, minus 1."""

    @property
    def residual(self) -> float:
        """The logarithm of measured over forecast time or memory."""

    @property
    def fits(self) -> bool | None:
        """Whether the job fits by the forecast; None without a verdict."""

    @property
    def is_right(self) -> bool | None:
        """Whether the verdict is right; None without one."""

    @property
    def is_covered(self) -> bool | None:
        """Whether the interval holds what was measured; None without an interval."""


@dataclass(frozen=True)
class Computed:
    """The output of a study of steps."""

    title: str
    rows: Sequence[Forecast]
    skipped: Sequence[tuple[Row, str]]
    groups: Mapping[str, str]
    """Titles of the groups of rows, in the order of the output."""
    figures: Sequence[str] = ()

    def of(self, kind: str, group: str | None = None) -> list[Forecast]:
        """Return the rows of time or of memory, of one group or of all."""
        return [it for it in self.rows if _KINDS[kind](it.row) and group in (None, it.row.group)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it. Values are in the unit of the row."""
        return {
            "rows": [_plain(it) for it in self.rows],
            "skipped": [{**_named(row), "measured": row.measured, "reason": why} for row, why in self.skipped],
            "total": self._sum(),
            "summary": {group: self._sum(group) for group in self.groups},
            "by": {
                name: {
                    kind: {value: numbers(rows) for value, rows in parted(self.of(kind), name).items()}
                    for kind in _KINDS
                }
                for name in BY
            },
            "figures": list(self.figures),
        }

    def _sum(self, group: str | None = None) -> dict[str, Any]:
        """Return the errors of time and of memory, how many verdicts are right, and how many intervals hold."""
        rows = [it for it in self.rows if group in (None, it.row.group)]
        return {
            **{kind: numbers(own) for kind in _KINDS if (own := self.of(kind, group))},
            "fits": verdicts(rows),
            "intervals": {kind: covered(self.of(kind, group)) for kind in _KINDS},
        }

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        return csv_of([_plain(it) for it in self.rows], ["id"])

    def text(self, width: int) -> list[str]:
        """Return the errors of each group, every row, and the rows without a forecast as lines for people."""
        import click

        title = f"{self.title}. Error: forecast / measured - 1, of times and of memory"
        lines = [*block.headline(title, columns=width), "", *self._sums(), *wrapped(self._verdicts(), width), ""]
        for group, title in self.groups.items():
            rows = [it for it in self.rows if it.row.group == group]
            if rows:
                lines += [click.style(title[0].upper() + title[1:], bold=True), *_table(rows), ""]
        if self.skipped:
            lines.append(click.style("Not forecast", bold=True))
            for reason in dict.fromkeys(why for _, why in self.skipped):
                names = units.listed([row.id for row, why in self.skipped if why == reason])
                lines += wrapped(f"{names}: {reason}", width)
        return lines + [f"Wrote {figure}" for figure in self.figures]

    def _sums(self) -> list[str]:
        columns = [Column("", left=True), Column("", left=True), Column("rows")]
        columns += [Column(name) for name in ("mean", "median", "p90", "worst", "bias")]
        lines = []
        for group, title in self.groups.items():
            kinds = [(kind, rows) for kind in _KINDS if (rows := self.of(kind, group))]
            lines.append([[title, kind, *sums(rows)] for kind, rows in kinds])
        return render(columns, [own for own in lines if own])

    def _verdicts(self) -> str:
        groups = [verdicts([it for it in self.rows if it.row.group == group]) for group in self.groups]
        rows, right, hopeful, cautious = (sum(one[name] for one in groups) for name in groups[0])
        times, sizes = (covered(self.of(kind)) for kind in _KINDS)
        return (
            f"{LEVEL:.0%} intervals that do not know a row's source hold {times['inside']} of {times['rows']} times "
            f"and {sizes['inside']} of {sizes['rows']} values of memory. {right} of {rows} verdicts on memory are "
            f"right: {hopeful} fit by the forecast but did not, {cautious} do not fit but did"
        )


def numbers(rows: Sequence[Compared]) -> dict[str, Any]:
    """Return rows, mean, median, 90th percentile and worst size of the error, and the bias: the mean logarithm."""
    sizes = sorted(abs(it.error) for it in rows)
    return {
        "rows": len(sizes),
        "mean": statistics.fmean(sizes),
        "median": statistics.median(sizes),
        "p90": sizes[math.ceil(_MOST * len(sizes)) - 1],
        "worst": sizes[-1],
        "bias": math.expm1(-statistics.fmean(it.residual for it in rows)),
    }


def sums(rows: Sequence[Compared]) -> list[str]:
    """Return the numbers as cells of a table."""
    figures = numbers(rows)
    return [
        str(figures["rows"]),
        *(f"{figures[name]:.1%}" for name in ("mean", "median", "p90", "worst")),
        f"{figures['bias']:+.1%}",
    ]


def verdicts(rows: Sequence[Compared]) -> dict[str, int]:
    """Return how many commands have a verdict on memory, how many are right, and how the others are wrong."""
    first = {it.row.command: it for it in rows if it.is_right is not None}
    wrong = [it for it in first.values() if not it.is_right]
    too_hopeful = sum(bool(it.fits) for it in wrong)
    return {
        "rows": len(first),
        "right": len(first) - len(wrong),
        "fits_but_did_not": too_hopeful,
        "does_not_fit_but_did": len(wrong) - too_hopeful,
    }


def covered(rows: Sequence[Compared]) -> dict[str, int]:
    """Return how many of the rows have an interval, and how many of these are in theirs."""
    known = [it.is_covered for it in rows if it.is_covered is not None]
    return {"rows": len(known), "inside": sum(known)}


def parted(rows: Sequence[Forecast], name: str) -> dict[str, list[Forecast]]:
    """Return rows by a column of `BY`."""
    column = BY[name]
    parts: dict[str, list[Forecast]] = {}
    for it in rows:
        parts.setdefault(column(it.row), []).append(it)
    return parts


def _named(row: Row) -> dict[str, Any]:
    names = ("id", "group", "source", "model", "gpu", "metric", "unit")
    return {name: str(getattr(row, name)) for name in names}


def _plain(it: Forecast) -> dict[str, Any]:
    row = it.row
    return {
        **_named(row),
        "measured": row.measured,
        "forecast": it.value / UNITS[row.unit],
        "error": None if not (row.metric.is_time or row.metric.is_memory) else it.error,
        "fits": it.fits,
        "kernels": row.kernels,
        "assumed": row.assumed,
        "command": f"paceline simulate {row.command}",
    }


def _table(rows: Sequence[Forecast]) -> list[str]:
    columns = [Column("row", left=True), Column("model", left=True), Column("GPU", left=True)]
    columns += [Column("", left=True), Column("measured"), Column("forecast"), Column("error")]
    return render(columns, [[cells(it) for it in rows]])


def cells(it: Forecast) -> list[str]:
    """Return the cells of a row's line in a table."""
    row = it.row
    # Remarks in brackets and the owner of a repository are in `--json`.
    names = [row.id, row.model.rpartition("/")[2].partition(" (")[0], row.gpu.partition(" (")[0]]
    if row.metric is Metric.FITS:
        words = ("does not fit", "fits")
        verdict = "right" if it.is_right else "wrong"
        return [*names, "memory", words[row.measured > 0], words[it.value > 0], verdict]
    unit = row.unit.partition("/GPU")[0]
    values = [f"{row.measured:g} {unit}", f"{units.digits(it.value / UNITS[row.unit])} {unit}", f"{it.error:+.1%}"]
    kind = "time" if row.metric.is_time else row.metric.value.replace("_", "-")
    return [*names, kind, *values]
