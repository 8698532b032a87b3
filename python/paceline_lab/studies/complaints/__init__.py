"""Public complaints that training is slow, and the causes that `paceline compare` names: rows.json.

A row has the workload as it is typed, the measurement, and the cause that the issue ended with. A known cause is right
among the first two; where nothing was wrong, the run is as forecast; where no cause was found, none can be wrong. The
issue itself does not count in how common its cause is.
"""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render, wrapped
from paceline.cli.compare import compare as command
from paceline.compare.explain import Explanation
from paceline.compare.report import answer
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import simulate

__all__ = ["Complaint", "read", "run"]

TITLE = "Public complaints, and the causes that paceline compare names"
FIRST = 2
"""Causes among which a known one is right."""


@dataclass(frozen=True)
class Complaint:
    """A complaint. `names`: the causes of the catalog that count as its cause; none if that is unknown, or nothing."""

    id: str
    source: str
    asked: str
    workload: str
    cause: str
    names: tuple[str, ...]
    note: str
    measured: str = ""
    times: float = 0.0
    """Instead: how many times as long a step took as on `of_gpus`."""
    of_gpus: int = 0
    first_right: bool | None = None
    """Whether the first answer was right, of a complaint that had not been seen when the causes were built; None for
    the others."""


@dataclass(frozen=True)
class Named:
    """A complaint with the answer."""

    complaint: Complaint
    explanation: Explanation

    @property
    def first(self) -> list[str]:
        """The names of the likeliest causes; if the run is as forecast, only those that the forecast has already."""
        causes = [one for one in self.explanation.causes if one.in_forecast or not self.explanation.is_as_forecast]
        return [one.hypothesis.cause.name for one in causes[:FIRST]]

    @property
    def is_right(self) -> bool | None:
        """Whether the answer is right; None if nobody knows."""
        if self.complaint.cause == "none":
            return self.explanation.is_as_forecast
        return any(name in self.complaint.names for name in self.first) if self.complaint.names else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            **vars(self.complaint),
            "names": list(self.complaint.names),
            "measured_s": self.explanation.question.seconds,
            "forecast_s": self.explanation.question.forecast.seconds,
            "as_forecast": self.explanation.is_as_forecast,
            "first": self.first,
            "right": self.is_right,
        }


@dataclass(frozen=True)
class Complaints:
    """All complaints with their answers."""

    rows: Sequence[Named]

    @property
    def right(self) -> tuple[int, int]:
        """How many answers are right, and of how many it is known."""
        known = [row.is_right for row in self.rows if row.is_right is not None]
        return sum(known), len(known)

    @property
    def unseen(self) -> tuple[int, int]:
        """Of the complaints that had not been seen: how many first answers were right, and how many there are."""
        firsts = [row.complaint.first_right for row in self.rows if row.complaint.first_right is not None]
        return sum(firsts), len(firsts)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        right, known = self.right
        return {
            "rows": [row.to_dict() for row in self.rows],
            "right": right,
            "known": known,
            "unseen": self.unseen,
            "skipped": [],
        }

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["id", "source", "measured_s", "forecast_s", "as_forecast", "first", "cause", "right"])
        for row in self.rows:
            one = row.to_dict()
            right = "" if row.is_right is None else row.is_right
            values = [one[name] for name in ("id", "source", "measured_s", "forecast_s", "as_forecast")]
            writer.writerow([*values, " ".join(row.first), one["cause"], right])
        return out.getvalue()

    def text(self, width: int) -> list[str]:
        """Return lines for people."""
        right, known = self.right
        columns = [Column("complaint", left=True), Column("measured\n/ forecast"), Column("named first", left=True)]
        columns += [Column("right", left=True)]
        marks = {True: "yes", False: "no", None: "-"}
        cells = [
            [
                row.complaint.id,
                units.factor(row.explanation.ratio),
                ", ".join(row.first) or "as forecast",
                marks[row.is_right],
            ]
            for row in self.rows
        ]
        causes = [f"{row.complaint.id}: {row.complaint.cause}; {row.complaint.source}" for row in self.rows]
        first, unseen = self.unseen
        facts = [
            Fact("Right", f"{right} of {known} whose cause is known: among the first {FIRST}, or as forecast"),
            Fact(
                "Blind", f"{first} of {unseen} that had not been seen when the causes were built, in the first answer"
            ),
        ]
        return [
            *wrapped(TITLE, width),
            "",
            *block.block(facts, width),
            "",
            *render(columns, [cells]),
            *block.notes(causes, width, title="Causes, as the issues ended"),
        ]


def read() -> list[Complaint]:
    """Return the complaints of rows.json."""
    rows = json.loads((Path(__file__).parent / "rows.json").read_text(encoding="utf-8"))
    return [Complaint(**{**row, "names": tuple(row["names"])}) for row in rows]


def named(complaint: Complaint) -> Named:
    """Compare a complaint's measurement with its forecast. Raises InvalidArgumentError."""
    words = shlex.split(complaint.workload)
    context = command.make_context("compare", [*words, "--measured", complaint.measured or "1s"])
    options = dict(context.params)
    workload = options.pop("workload")
    for name in ("measured", "everything", "as_json"):
        options.pop(name)
    given = {name: value for name, value in options.items() if value is not None}
    measured = complaint.measured or _relative(complaint, workload, given)
    return Named(complaint, answer(workload, given, measured, without=complaint.source))


def _relative(complaint: Complaint, workload: str, given: dict[str, Any]) -> str:
    """Return the time of a step that took so many times as long as on fewer GPUs."""
    if not complaint.times:
        raise InvalidArgumentError(f"{complaint.id}: has neither a measurement nor a ratio")
    few = {name: value for name, value in given.items() if name not in ("workers", "gpus")}
    return f"{complaint.times * simulate(workload, workers=complaint.of_gpus, **few).iteration_s:.6f}s"


def run(plots: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Complaints:
    """Answer every complaint. There is no figure."""
    del plots
    rows, complaints = [], read()
    for place, complaint in enumerate(complaints):
        if progress is not None:
            progress(place, len(complaints))
        rows.append(named(complaint))
    return Complaints(rows)
