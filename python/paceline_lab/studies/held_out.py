"""Public measurements on which nothing was fitted, beside their forecasts: docs/results/finetune.md.

The first forecasts were made after the readings were written, and before anything was corrected. They are kept.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline_lab.studies import finetune
from paceline_lab.studies.finetune.data import HELD_OUT_GROUPS, read_held_out
from paceline_lab.studies.steps.data import UNITS, Row
from paceline_lab.studies.steps.forecast import error_of, is_right
from paceline_lab.studies.steps.result import Computed, covered, numbers, verdicts
from paceline_lab.studies.steps.runs import computed

__all__ = ["TITLE", "FirstForecast", "HeldOut", "first_forecasts", "run"]

TITLE = "Public measurements that nothing was fitted to, and their forecasts"
_FILE = Path(finetune.__file__).parent / "held-out-first.csv"


@dataclass(frozen=True)
class FirstForecast:
    """The first forecast of a row."""

    row: Row
    value: float
    """In SI."""
    fits: bool | None
    is_covered: bool | None

    @property
    def error(self) -> float:
        """Forecast over measured time or memory, minus 1; of a rate, measured over forecast."""
        return error_of(self.row, self.value)

    @property
    def residual(self) -> float:
        """The logarithm of measured over forecast time or memory."""
        return -math.log1p(self.error)

    @property
    def is_right(self) -> bool | None:
        """Whether the verdict on memory is right. None without one."""
        return is_right(self.row, self.fits)


def first_forecasts() -> list[FirstForecast]:
    """Return the first forecasts of all rows that had one."""
    rows = {row.id: row for row in read_held_out()}
    with _FILE.open(encoding="utf-8", newline="") as file:
        return [_first(rows[cells["id"]], cells) for cells in csv.DictReader(file)]


def _first(row: Row, cells: Mapping[str, str]) -> FirstForecast:
    value = float(cells["forecast"]) * UNITS[row.unit]
    return FirstForecast(row, value, _flag(cells["fits"]), _flag(cells["in_interval"]))


def _flag(cell: str) -> bool | None:
    return None if not cell else cell == "1"


@dataclass(frozen=True)
class HeldOut(Computed):
    """The output of this study: the forecasts of today, and the first ones."""

    first: Sequence[FirstForecast] = field(default_factory=first_forecasts)

    def first_of(self, kind: str, group: str | None = None) -> list[FirstForecast]:
        """Return the first forecasts of time or of memory, of one group or of all."""
        rows = [it for it in self.first if group in (None, it.row.group)]
        return [it for it in rows if (it.row.metric.is_time if kind == "time" else it.row.metric.is_memory)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it, with the first forecasts apart."""
        groups: Mapping[str, str | None] = {"total": None, **{group: group for group in self.groups}}
        return super().to_dict() | {"first": {name: self._first(group) for name, group in groups.items()}}

    def text(self, width: int) -> list[str]:
        """Return lines for people, which begin with the errors of the first forecasts."""
        from paceline._internal.console import wrapped

        return [*wrapped(self._first_text(), width), "", *super().text(width)]

    def _first(self, group: str | None) -> dict[str, Any]:
        rows = [it for it in self.first if group in (None, it.row.group)]
        kinds = {kind: numbers(own) for kind in ("time", "memory") if (own := self.first_of(kind, group))}
        return {**kinds, "fits": verdicts(rows), "intervals": {"time": covered(self.first_of("time", group))}}

    def _first_text(self) -> str:
        first = self._first(None)
        fits, intervals = first["fits"], first["intervals"]["time"]
        return (
            f"First forecasts, before any correction: times are {first['time']['mean']:.1%} off on average, memory "
            f"{first['memory']['mean']:.1%}; {fits['right']} of {fits['rows']} verdicts on memory are right; "
            f"{intervals['inside']} of {intervals['rows']} times are in their interval. Those of today:"
        )


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> HeldOut:
    """Forecast every measurement; draw the figure if a folder is given."""
    figure = None if plots is None else plots / "held-out.png"
    result = computed(TITLE, read_held_out(), HELD_OUT_GROUPS, figure, progress)
    return HeldOut(result.title, result.rows, result.skipped, result.groups, result.figures)
