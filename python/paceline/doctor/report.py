"""The report of `paceline doctor`: one sentence, a table of ranks, and the diagnoses; or all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal import units
from paceline._internal.console import Column, render, wrapped
from paceline.doctor.analysis import Analysis, analyze
from paceline.doctor.causes import COMPUTE_BOUND, SLOW_STEPS, diagnoses
from paceline.doctor.diagnosis import Diagnosis, nanoseconds, percent
from paceline.doctor.reading import read
from paceline.doctor.step_breakdown import NAMES, Parts, median, quantile

_MOST_ROWS = 16
UNTOLD = ("input", "forward", "backward", "optimizer")
"""Columns that are unknown without steps."""
_HEADERS = {"exposed": "exposed =", "straggler": "straggler +", "negotiation": "negotiation +"}
_SHOWN = 0.005
"""Smallest share of a step for which the column `other` is shown."""


@dataclass(frozen=True, slots=True)
class Report:
    """The diagnosis of a recording."""

    analysis: Analysis
    diagnoses: Sequence[Diagnosis]

    @property
    def verdict(self) -> str:
        """One sentence: what dominates a step."""
        analysis, mean = self.analysis, self.analysis.mean
        what = "A step takes" if analysis.has_steps else "The recording lasts"
        summary = f"{what} {nanoseconds(mean.step)}{' on average' if analysis.count > 1 and analysis.has_steps else ''}"
        exposed = mean.exposed / mean.step
        first = next((it for it in self.diagnoses if it.name != SLOW_STEPS), None)
        summary += (
            f", {percent(first.share)} of it {first.headline}" if first else "; nothing in particular dominates it"
        )
        if first and first.name == COMPUTE_BOUND:
            summary += f"; {first.says}"
        elif len(analysis.ranks) > 1 and (first is None or exposed > first.share * 1.1):
            summary += f"; exposed communication is {percent(exposed)} in all"
        slow = next((it for it in self.diagnoses if it.name == SLOW_STEPS), None)
        return f"{summary}{f'; besides, {percent(slow.share)} of the time goes to a few slow steps' if slow else ''}."

    def to_dict(self) -> dict[str, Any]:
        """Return the report as `--json` prints it; times in seconds."""
        analysis = self.analysis
        middle, low, high = analysis.spread()
        return {
            "verdict": self.verdict,
            "world_size": analysis.recording.world_size,
            "steps": analysis.count if analysis.has_steps else 0,
            "warm_up_steps": analysis.warm_up,
            "slow_steps": len(next(iter(analysis.slow.values()))),
            "step_s": middle / 1e9 if analysis.has_steps else None,
            "step_quartiles_s": [low / 1e9, high / 1e9] if analysis.has_steps else None,
            "ranks": [self._rank(rank) for rank in analysis.ranks],
            "diagnoses": [
                {
                    "name": it.name,
                    "share": it.share,
                    "seconds": it.seconds,
                    "says": it.says,
                    "evidence": dict(it.evidence),
                    "try": list(it.tries),
                }
                for it in self.diagnoses
            ],
            "notes": list(analysis.notes),
        }

    def _rank(self, rank: int) -> dict[str, Any]:
        analysis, parts = self.analysis, self.analysis.means[rank]
        known = [name for name in NAMES if analysis.has_steps or name not in UNTOLD]
        columns = {name: [getattr(breakdown.parts, name) for breakdown in analysis.breakdowns[rank]] for name in known}
        return {
            "rank": rank,
            "step_s": parts.step / 1e9,
            **{f"{name}_s": getattr(parts, name) / 1e9 if name in known else None for name in NAMES},
            "exposed_communication_s": parts.exposed / 1e9,
            "medians_s": {name: median(values) / 1e9 for name, values in columns.items()},
            "quartiles_s": {
                name: [quantile(values, 0.25) / 1e9, quantile(values, 0.75) / 1e9] for name, values in columns.items()
            },
        }

    def text(self, width: int) -> list[str]:
        """Return the report as lines for people.

        Args:
            width: Columns of the terminal.
        """
        import click

        lines = [
            *wrapped(self._title(), width),
            *(click.style(line, bold=True) for line in wrapped(self.verdict, width)),
        ]
        lines += ["", *self._table()]
        for number, it in enumerate(self.diagnoses, 1):
            cost = f"{nanoseconds(it.seconds * 1e9)}, {percent(it.share)}"
            heading = f"{number}. {it.name} ({cost}): {it.says}."
            lines += ["", *wrapped(heading, width, "   ")]
            for remedy in it.tries:
                lines += wrapped(f"   try: {remedy}", width, "        ")
        notes = [line for note in self.analysis.notes for line in wrapped(f"note: {note}", width)]
        return [*lines, *([""] if notes else []), *notes]

    def _title(self) -> str:
        analysis = self.analysis
        title = f"{analysis.recording.path}: {units.count(analysis.recording.world_size, 'rank')}"
        if analysis.recording.servers:
            title += f", {units.count(len(analysis.recording.servers), 'server')}"
        if not analysis.has_steps:
            return f"{title}, no steps"
        middle, low, high = map(nanoseconds, analysis.spread())
        title += f", {units.count(analysis.count, 'step')}"
        title += f" after {analysis.warm_up} of warm-up" if analysis.warm_up else ""
        slow = len(next(iter(analysis.slow.values())))
        title += f", {slow} slow {'one' if slow == 1 else 'ones'} apart" if slow else ""
        return f"{title}; a step: median {middle}, the middle half {low} to {high}"

    def _table(self) -> list[str]:
        analysis, means = self.analysis, self.analysis.means
        factor, unit = units.time_unit([analysis.mean.step / 1e9])
        names = [name for name in NAMES if analysis.has_steps or name not in UNTOLD]
        if analysis.has_steps and all(parts.other < _SHOWN * parts.step for parts in means.values()):
            names.remove("other")
        place = names.index("straggler")
        own, exposed = names[:place], names[place:]
        headers = ["step" if analysis.has_steps else "recording", *own, "exposed", *exposed]
        columns = [Column("rank"), *(Column(f"{_HEADERS.get(name, name)}\n{unit}") for name in headers)]

        def row(rank: int, parts: Parts) -> list[str]:
            values = [parts.step, *(getattr(parts, name) for name in own)]
            values += [parts.exposed, *(getattr(parts, name) for name in exposed)]
            # With as many decimals as the step, so that the printed parts add up.
            decimals = len(units.digits(parts.step / 1e9 / factor).partition(".")[2])
            return [str(rank), *(f"{value / 1e9 / factor:.{decimals}f}" for value in values)]

        shown = self._rows()
        lines = render(columns, [[row(rank, means[rank]) for rank in shown]], highlight_first=False)
        more = len(means) - len(shown)
        return [*lines, *([f"… {more} ranks nearer to the median: --json"] if more else [])]

    def _rows(self) -> list[int]:
        """Return all ranks or, if there are many, those whose own time differs most from the median."""
        own = {rank: parts.step - parts.exposed for rank, parts in self.analysis.means.items()}
        middle = median(own.values())
        apart = sorted(own, key=lambda rank: (-abs(own[rank] - middle), rank))
        return sorted(apart[:_MOST_ROWS])


def diagnose(path: str | Path) -> Report:
    """Diagnose a recorded run: what dominates its steps.

    Args:
        path: A timeline that `paceline run --timeline` or PACELINE_TIMELINE wrote (docs/reference/timeline.md).

    Returns:
        The report.

    Raises:
        InvalidArgumentError: The file is missing or malformed, or contains nothing to diagnose; the message says what
            to do.

    Example:
        >>> print(paceline.doctor.diagnose("run.json").verdict)  # doctest: +SKIP
    """
    analysis = analyze(read(Path(path)))
    return Report(analysis, diagnoses(analysis))
