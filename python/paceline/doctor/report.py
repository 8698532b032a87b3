"""The report of `paceline doctor`: a headline, facts, a table of ranks, and the diagnoses; or all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render, wrapped
from paceline.async_ps.report import Staleness
from paceline.catalog.causes import all_causes, title_of
from paceline.doctor.analysis import Analysis, analyze
from paceline.doctor.causes import COMPUTE_BOUND, SLOW_STEPS, diagnoses
from paceline.doctor.diagnosis import Diagnosis, percent
from paceline.doctor.reading import read
from paceline.doctor.step_breakdown import NAMES, Parts, median, quantile

_MOST_ROWS = 16
UNTOLD = ("input", "forward", "backward", "optimizer")
"""Columns that are unknown without steps."""
_HEADERS = {
    "forward": "fwd",
    "backward": "bwd",
    "optimizer": "opt",
    "exposed": "exposed =",
    "straggler": "straggler +",
    "negotiation": "negot. +",
}
_SHOWN = 0.005
"""Smallest share of a step for which the column `other` is shown."""


@dataclass(frozen=True, slots=True)
class Report:
    """The diagnosis of a recording."""

    analysis: Analysis
    diagnoses: Sequence[Diagnosis]

    @property
    def headline(self) -> str:
        """The cause that dominates a step: `96% of a step is waiting for rank 1 (80.3 of 83.9 ms)`."""
        step = self.analysis.mean.step / 1e9
        what = "a step" if self.analysis.has_steps else "the recording"
        first = next((it for it in self.diagnoses if it.name != SLOW_STEPS), None)
        if first is None:
            return f"Nothing dominates {what} ({units.duration(step)})"
        factor, unit = units.time_unit([step])
        part, whole = units.digits(first.seconds / factor, 3), units.digits(step / factor, 3)
        return f"{percent(first.share)} of {what} is {first.headline} ({part} of {whole} {unit})"

    @property
    def facts(self) -> list[Fact]:
        """The run, and other causes of lost time."""
        analysis, mean = self.analysis, self.analysis.mean
        exposed = mean.exposed / mean.step
        first = next((it for it in self.diagnoses if it.name != SLOW_STEPS), None)
        slow = next((it for it in self.diagnoses if it.name == SLOW_STEPS), None)
        every = [Fact("Run", *self._run())]
        is_more = first is None or exposed > first.share * 1.1
        if len(analysis.ranks) > 1 and is_more and not (first and first.name == COMPUTE_BOUND):
            every.append(Fact("Exposed", f"{percent(exposed)} of the time is exposed communication"))
        stale = self._staleness()
        if stale is not None:
            updates = f"mean {units.short(stale.mean)}, largest {stale.most:,}"
            every.append(Fact("Staleness", updates, "others' updates since a gradient's pull"))
        window = self._window_share()
        if window is not None:
            every.append(
                Fact("LIS window", f"{percent(window)} of a step: input and scheduling at work, nothing moved")
            )
        if slow:
            every.append(Fact("Slow steps", f"{percent(slow.share)} of the time is a few slow steps"))
        return every

    def _staleness(self) -> Staleness | None:
        """Return how stale the gradients of asynchronous training were; None if no server says it."""
        counts = self.analysis.recording.staleness
        return Staleness(counts, {}) if counts else None

    def _window_share(self) -> float | None:
        """Return the share of a step that is susceptible to load imbalance, if the input pipeline was watched."""
        shares = self.analysis.susceptible
        step = sum(self.analysis.means[rank].step for rank in shares)
        return sum(shares.values()) / step if shares else None

    @property
    def verdict(self) -> str:
        """The headline, and what else takes time, in one line for `--json`."""
        others = [fact.sentence for fact in self.facts if fact.label not in {"Run", "LIS window", "Staleness"}]
        first = next((it for it in self.diagnoses if it.name == COMPUTE_BOUND), None)
        return "; ".join([self.headline, *(first.facts if first else ()), *others])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as `--json` prints it; times in seconds."""
        analysis = self.analysis
        middle, low, high = analysis.spread()
        stale = self._staleness()
        return {
            "verdict": self.verdict,
            "world_size": analysis.recording.world_size,
            "steps": analysis.count if analysis.has_steps else 0,
            "warm_up_steps": analysis.warm_up,
            "slow_steps": len(next(iter(analysis.slow.values()))),
            "step_s": middle / 1e9 if analysis.has_steps else None,
            "step_quartiles_s": [low / 1e9, high / 1e9] if analysis.has_steps else None,
            "lis_window_share": self._window_share(),
            "staleness": stale and {"mean": stale.mean, "most": stale.most, "counts": dict(stale.counts)},
            "ranks": [self._rank(rank) for rank in analysis.ranks],
            "diagnoses": [
                {
                    "name": it.name,
                    "share": it.share,
                    "seconds": it.seconds,
                    "says": it.says,
                    "evidence": dict(it.evidence),
                    "check": all_causes()[it.name].check,
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
            "lis_window_s": None if (window := analysis.susceptible.get(rank)) is None else window / 1e9,
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
        lines = [*block.headline(self.headline, columns=width), "", *block.block(self.facts, width), "", *self._table()]
        for number, it in enumerate(self.diagnoses, 1):
            per = "per step" if self.analysis.has_steps else "in all"
            subject = f"{it.subject}, " if it.subject else ""
            lines += [
                "",
                f"{number}. {title_of(it.name)}: {subject}{units.duration(it.seconds)} {per} ({percent(it.share)})",
            ]
            for fact in it.facts:
                lines += wrapped(f"   {fact}", width, "     ")
            for remedy in it.tries:
                lines += wrapped(f"   try: {remedy}", width, "        ")
        return [*lines, *block.notes(self.analysis.notes, width)]

    def _run(self) -> list[str]:
        analysis = self.analysis
        who = units.count(analysis.recording.world_size, "rank")
        if analysis.recording.servers:
            who += f", {units.count(len(analysis.recording.servers), 'server')}"
        if not analysis.has_steps:
            return [f"{who}, no steps"]
        slow = len(next(iter(analysis.slow.values())))
        apart = [f"{analysis.warm_up} warm-up"] if analysis.warm_up else []
        apart += [f"{slow} slow"] if slow else []
        skipped = f", without {' and '.join(apart)}" if apart else ""
        middle, low, high = (value / 1e9 for value in analysis.spread())
        steps = f"{who}, {units.count(analysis.count, 'step')}{skipped}"
        return [steps, f"median {units.duration(middle)}, IQR {units.durations(low, high)}"]

    def _table(self) -> list[str]:
        analysis, means = self.analysis, self.analysis.means
        factor, unit = units.time_unit([analysis.mean.step / 1e9])
        names = [name for name in NAMES if analysis.has_steps or name not in UNTOLD]
        if analysis.has_steps and all(parts.other < _SHOWN * parts.step for parts in means.values()):
            names.remove("other")
        place = names.index("straggler")
        own, exposed = names[:place], names[place:]
        headers = ["step" if analysis.has_steps else "recording", *own, "exposed", *exposed]
        columns = [Column(f"mean {unit}", left=True), *(Column(_HEADERS.get(name, name)) for name in headers)]

        def row(rank: int, parts: Parts) -> list[str]:
            values = [parts.step, *(getattr(parts, name) for name in own)]
            values += [parts.exposed, *(getattr(parts, name) for name in exposed)]
            # With as many decimals as the step, so that the printed parts add up.
            decimals = len(units.digits(parts.step / 1e9 / factor).partition(".")[2])
            return [f"rank {rank}", *(f"{value / 1e9 / factor:.{decimals}f}" for value in values)]

        shown = self._rows()
        lines = render(columns, [[row(rank, means[rank]) for rank in shown]])
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
