"""All cells, one cluster after the other: the largest first, so that impossible ones fail early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline._internal import units

from paceline_lab.validate.cells import Cell, Skipped
from paceline_lab.validate.forecasts import Costs, Forecast, emulated, forecast
from paceline_lab.validate.outcome import Row, Validation, mean
from paceline_lab.validate.real import CellFailedError, CellRun, Cluster, Emulator, InterruptedRunError, observe
from paceline_lab.validate.timeline import record

LONGEST_S = 30.0
"""Cells whose iterations would take longer are skipped."""
_CHECKS = 2

Progress = Callable[[int, int, str], None]
"""Called with the number of finished cells, the total, and the result of the last one."""


@dataclass(frozen=True)
class ComparisonOptions:
    """How cells are compared."""

    repeats: int = 5
    network: str = "fifo"
    costs: Costs = field(default_factory=Costs)
    realtime: bool = True
    check: bool = True
    """Measure how well each cluster's network keeps its rate."""
    timeline: Path | None = None
    """File for both timelines of the cell; requires a single cell."""


def compare(cells: Iterable[Cell], emulator: Emulator, options: ComparisonOptions, progress: Progress) -> Validation:
    """Run and simulate each cell. Raises InvalidArgumentError, ClickException if no cluster can be brought up."""
    return _Comparison(emulator, options, progress).of(cells)


class _Comparison:
    def __init__(self, emulator: Emulator, options: ComparisonOptions, progress: Progress) -> None:
        self.emulator, self.options, self.progress = emulator, options, progress
        self.result = Validation()
        self.forecasts: dict[Cell, Forecast] = {}
        self.done = 0

    def of(self, cells: Iterable[Cell]) -> Validation:
        """Compare all cells."""
        self._forecast(cells)
        try:
            for group in _groups(list(self.forecasts)):
                self._group(group)
        except InterruptedRunError as error:  # Keep what has been measured.
            self._end(error)
        order = {cell: place for place, cell in enumerate(self.forecasts)}
        self.result.rows.sort(key=lambda row: order[row.cell])
        return self.result

    def _end(self, error: InterruptedRunError) -> None:
        reported = {row.cell for row in self.result.rows} | {one.cell for one in self.result.skipped}
        reason = f"not run: {error.format_message()}"
        self.result.skipped += [Skipped(cell, reason) for cell in self.forecasts if cell not in reported]
        self.result.interrupted = error.exit_code

    def _forecast(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            simulated = forecast(cell, emulated(cell, self.options.costs))
            if reason := too_long(simulated.of(self.options.network)):
                self.result.skipped.append(Skipped(cell, f"{reason}, or more --bandwidth"))
            else:
                self.forecasts[cell] = simulated

    def _group(self, group: Sequence[Cell]) -> None:
        """Compare the cells on one cluster."""
        wanted = self.emulator.cluster(
            workers=group[0].hosts,
            servers=max(cell.servers for cell in group),
            switch=any(cell.needs_switch for cell in group),
            **({"racks": group[0].racks} if group[0].racks > 1 else {}),
            bandwidth_bps=group[0].bandwidth_bps,
            realtime=self.options.realtime,
        )
        with wanted as cluster:
            for cells in _by_rate(group):
                fidelity = self._prepare(cluster, cells[0])
                for cell in cells:
                    message = self._cell(cluster, cell, fidelity)
                    self.done += 1
                    self.progress(self.done, len(self.forecasts), message)

    def _prepare(self, cluster: Cluster, cell: Cell) -> float | None:
        """Set the rate; return the network's largest error at it, as measured by the cluster itself."""
        cluster.set_bandwidth(cell.bandwidth_bps)
        if not self.options.check or cell.hosts < 2:
            return None
        errors = [float(pattern.error) for pattern in cluster.check(repeats=_CHECKS).patterns]
        return max(errors, key=abs)

    def _cell(self, cluster: Cluster, cell: Cell, fidelity: float | None) -> str:
        simulated = self.forecasts[cell]
        run = CellRun(cell, simulated.of(self.options.network), self.options.repeats)
        try:
            observed = observe(cluster, self.emulator, run)
            if self.options.timeline is not None:
                record(cluster, self.emulator, run, (self.options.network, self.options.costs), self.options.timeline)
        except CellFailedError as error:
            self.result.skipped.append(Skipped(cell, f"failed: {error}", failed=True))
            return f"{cell.title()}: failed: {error}"
        row = Row(cell, observed, simulated, self.options.network, cluster.realtime, fidelity)
        self.result.rows.append(row)
        return in_short(row)


def too_long(expected_s: float) -> str | None:
    """Return why a cell with such long iterations is not run; empty if it is run."""
    if expected_s <= LONGEST_S:
        return None
    return f"an iteration would take {expected_s:.0f} s, more than {LONGEST_S:.0f} s; give a larger --shrink"


def in_short(row: Row) -> str:
    """Return a short name for the progress display."""
    times = f"measured {units.duration(row.measured_s)}, simulated {units.duration(row.simulated_s)}"
    stale = row.staleness
    updates = f", staleness {mean(stale.measured):.2f} and {mean(stale.simulated):.2f}" if stale else ""
    return f"{row.cell.title()}: {times}, {row.error:+.1%}{updates}"


def _groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Group the cells that run on the same hosts, those with the most workers first."""
    groups: dict[int, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.hosts, []).append(cell)
    return [groups[hosts] for hosts in sorted(groups, reverse=True)]


def _by_rate(cells: Sequence[Cell]) -> list[list[Cell]]:
    rates: dict[float, list[Cell]] = {}
    for cell in cells:
        rates.setdefault(cell.bandwidth_bps, []).append(cell)
    return list(rates.values())
