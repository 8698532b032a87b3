"""The result of a validation: rows, what was skipped, errors by strategy."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._internal.system import cores

from paceline_lab.validate.cells import Cell, Skipped
from paceline_lab.validate.forecasts import Forecast
from paceline_lab.validate.real import MOST_RUNS, Observed

BAND = 0.08
"""The plot's band of good forecasts."""
_CSV = (
    *("trace", "strategy", "sharding", "compression", "workers", "servers", "staleness", "ranks_per_host"),
    *("rate_bps", "shrink", "scale"),
    *("measured_s", "measured_min_s", "measured_max_s", "simulated_s", "error", "repeats", "disturbed", "runs"),
)
_STALE = ("measured_mean", "measured_most", "simulated_mean", "simulated_most", "distance")
"""Of the staleness, columns `staleness_measured_mean`, …."""


@dataclass(frozen=True)
class Row:
    """One cell, measured and simulated."""

    cell: Cell
    observed: Observed
    forecast: Forecast
    network: str
    """The network model whose forecast counts."""
    realtime: bool
    fidelity: float | None = None
    """The largest error of the cluster's own check of the network."""

    @property
    def measured_s(self) -> float:
        """Median of the iterations that count."""
        return self.observed.median_s

    @property
    def simulated_s(self) -> float:
        """Forecast of the network model that counts, or of the only one available."""
        return self.forecast.of(self.network)

    @property
    def error(self) -> float:
        """Simulated divided by measured, minus 1."""
        return self.simulated_s / self.measured_s - 1

    @property
    def staleness(self) -> StalenessErrors | None:
        """The distributions of staleness; None if workers wait for each other."""
        simulated = self.forecast.staleness.get(self.forecast.network(self.network))
        if simulated is None:
            return None
        return StalenessErrors(shares(self.observed.staleness), shares(dict(simulated.staleness)))

    @property
    def undisturbed(self) -> bool:
        """Whether it is based on undisturbed iterations."""
        return bool(self.observed.good)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; times in seconds."""
        used = self.observed.used
        cpu_s = sum(one.cpu_s for one in used) / len(used)
        return {
            **self.cell.to_dict(),
            "measured_s": self.measured_s,
            "measured_min_s": self.observed.seconds[0],
            "measured_max_s": self.observed.seconds[-1],
            "simulated_s": self.simulated_s,
            "error": self.error,
            "updates": None if self.staleness is None else self.staleness.to_dict(),
            "network": self.forecast.network(self.network),
            "simulated_fifo_s": self.forecast.fifo_s,
            "simulated_fluid_s": self.forecast.fluid_s,
            "repeats": len(used),
            "disturbed": len(self.observed.disturbed),
            "undisturbed": self.undisturbed,
            "runs": self.observed.runs,
            "late_s": max(one.late_s for one in used),
            "cpu_s": cpu_s,
            "cpu_share": cpu_s / self.measured_s / cores(),
            "steal_s": sum(one.steal_s for one in used) / len(used),
            "involuntary_switches": sum(one.involuntary_switches for one in used) / len(used),
            "realtime": self.realtime,
            "fidelity": self.fidelity,
        }


@dataclass(frozen=True)
class StalenessErrors:
    """Shares of the gradients by staleness: the number of others' updates between its worker's pull and its own."""

    measured: Mapping[int, float]
    simulated: Mapping[int, float]

    @property
    def distance(self) -> float:
        """The share of the gradients that would need another staleness for both to be the same (total variation)."""
        every = {*self.measured, *self.simulated}
        return sum(abs(self.measured.get(it, 0) - self.simulated.get(it, 0)) for it in every) / 2

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; shares as pairs of a staleness and the share of gradients with it."""
        each = {"measured": self.measured, "simulated": self.simulated}
        figures: dict[str, Any] = {}
        for name, own in each.items():
            figures |= {f"{name}_mean": mean(own), f"{name}_most": max(own, default=0)}
            figures[f"{name}_shares"] = [list(pair) for pair in own.items()]
        return figures | {"distance": self.distance}


def shares(counts: Mapping[int, int]) -> dict[int, float]:
    """Return the share of the gradients by staleness, ascending."""
    total = sum(counts.values())
    return {staleness: count / total for staleness, count in sorted(counts.items())}


def mean(of: Mapping[int, float]) -> float:
    """Return the mean staleness."""
    return sum(staleness * share for staleness, share in of.items())


@dataclass(frozen=True)
class Errors:
    """Absolute errors of some rows."""

    rows: int
    mean: float
    worst: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Errors:
        """Return the errors of at least one row."""
        sizes = [abs(row.error) for row in rows]
        return cls(len(sizes), sum(sizes) / len(sizes), max(sizes))


@dataclass
class Validation:
    """All results."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: int | None = None
    """The exit code, if the user ended it before all cells were run."""
    cluster: dict[str, Any] | None = None
    """The cluster file, if all rows share one."""

    @property
    def failed(self) -> bool:
        """Whether a run failed."""
        return any(one.failed for one in self.skipped)

    def by_strategy(self) -> dict[str, list[Row]]:
        """Errors by strategy, in the order of the rows."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.cell.strategy.name, []).append(row)
        return groups

    def to_dict(self) -> dict[str, Any]:
        """Return the results as `--json` prints them."""
        summary = {name: vars(Errors.of(rows)) for name, rows in self.by_strategy().items()}
        return {
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [one.to_dict() for one in self.skipped],
            "summary": summary,
            "overall": vars(Errors.of(self.rows)) if self.rows else None,
            "most_runs": MOST_RUNS,
            "notes": self.notes,
            **({} if self.cluster is None else {"cluster": self.cluster}),
        }

    def to_csv(self) -> str:
        """Return the rows as CSV; times in seconds."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        stale = _STALE if any(row.staleness is not None for row in self.rows) else ()
        writer.writerow([*_CSV, *(f"staleness_{name}" for name in stale)])
        for row in self.rows:
            values = row.to_dict()
            updates = values["updates"] or dict.fromkeys(stale)
            writer.writerow([*(_text(values[name]) for name in _CSV), *(_text(updates[name]) for name in stale)])
        return out.getvalue()


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
