"""A validation as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render

from paceline_lab.validate.cells import Cell, Skipped
from paceline_lab.validate.outcome import Errors, Row, Validation, mean

_HEADERS = ("strategy", "workers", "servers", "measured", "spread", "simulated", "error")
_OPTIONAL = ("sharding", "compression", "staleness")
"""Columns that stand after the strategy if a row has them."""
_SHARES = 3
"""Columns of shares, before that of all others."""


def text(result: Validation, width: int) -> list[str]:
    """Return lines: the errors in a headline, tables by trace, errors by strategy, what was skipped."""
    lines = [*block.headline(_headline(result)), ""]
    lines += [*block.block(_facts(result.rows), width), ""] if result.rows else []
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in result.rows:
        cell = row.cell
        groups.setdefault((cell.trace, cell.bandwidth_bps, cell.shrink, cell.scale), []).append(row)
    for rows in groups.values():
        lines += [_title(rows[0]), "", *_table(rows), "", *_updates(rows)]
    lines += _summary(result)
    if any(not row.undisturbed for row in result.rows):
        lines.append("* the machine disturbed every iteration of this cell")
    while lines and not lines[-1]:
        lines.pop()
    return [*lines, *block.notes([*_skipped(result.skipped), *result.notes], width)]


def _headline(result: Validation) -> str:
    if not result.rows:
        return "Nothing was compared"
    errors = Errors.of(result.rows)
    return f"Simulated times are {units.percent(errors.mean)} off on average, over {units.count(errors.rows, 'cell')}"


def _facts(rows: Sequence[Row]) -> list[Fact]:
    worst = max(rows, key=lambda row: abs(row.error))
    mark = "" if worst.undisturbed else " *"
    return [Fact("Worst", f"{worst.error:+.1%}{mark}, {worst.cell.title()}")]


def _title(row: Row) -> str:
    cell = row.cell
    words = [cell.trace, units.rate(cell.bandwidth_bps)]
    if cell.shrink != 1:
        words.append(f"bytes divided by {cell.shrink:g}")
    if cell.scale != 1:
        words.append(f"times multiplied by {cell.scale:g}")
    slower = cell.shrink * cell.scale
    return ", ".join(words) + (f": equivalent to {units.rate(cell.bandwidth_bps * slower)}" if slower != 1 else "")


def _table(rows: Sequence[Row]) -> list[str]:
    shown = [name for name in _OPTIONAL if any(getattr(row.cell, name) is not None for row in rows)]
    columns = [Column(name, left=name in ("strategy", *_OPTIONAL)) for name in (*_HEADERS[:1], *shown, *_HEADERS[1:])]
    return render(columns, [[_cells(row, shown) for row in rows]])


def _cells(row: Row, shown: Sequence[str]) -> list[str]:
    low, *_, high = row.observed.seconds * 2
    spread = (high - low) / 2 / row.measured_s
    several = f" ({row.cell.ranks_per_host} per host)" if row.cell.ranks_per_host > 1 else ""
    return [
        row.cell.strategy.name,
        *(_optional(row.cell, name) for name in shown),
        f"{row.cell.workers}{several}",
        str(row.cell.servers or "-"),
        units.duration(row.measured_s),
        f"±{spread:.1%}",
        units.duration(row.simulated_s),
        f"{row.error:+.1%}" + ("" if row.undisturbed else "*"),
    ]


def _optional(cell: Cell, name: str) -> str:
    value = getattr(cell, name)
    if name == "staleness" and value is None:
        return "-"
    return "none" if value is None else str(value)


def _updates(rows: Sequence[Row]) -> list[str]:
    """Return the table of staleness: of each cell its mean, its largest, and the share of each, both ways."""
    stale = [(row.cell, row.staleness) for row in rows if row.staleness is not None]
    if not stale:
        return []
    names = ("bound", "workers", "servers", "", "mean", "most", *map(str, range(_SHARES)), f"{_SHARES}+", "differs")
    columns = [Column(name, left=not name) for name in names]
    groups = []
    for cell, both in stale:
        bound = (str(cell.staleness), str(cell.workers), str(cell.servers))
        measured = [*bound, "measured", *_distribution(both.measured), f"{both.distance:.0%}"]
        groups.append([measured, ["", "", "", "simulated", *_distribution(both.simulated), ""]])
    title = "Staleness in updates of others, and the share of the gradients with each"
    return [title, "", *render(columns, groups), ""]


def _distribution(shares: Mapping[int, float]) -> list[str]:
    """Return mean and largest staleness, the shares of the least ones, and that of all others."""
    several = [shares.get(count, 0) for count in range(_SHARES)]
    several.append(sum(share for count, share in shares.items() if count >= _SHARES))
    return [f"{mean(shares):.2f}", str(max(shares, default=0)), *(f"{share:.0%}" for share in several)]


def _summary(result: Validation) -> list[str]:
    if not result.rows:
        return []
    columns = [Column("strategy", left=True), Column("cells"), Column("mean error"), Column("worst")]
    errors = [_errors(*item) for item in result.by_strategy().items()]
    groups = [errors, [_errors("all", result.rows)]]
    return [*render(columns, groups), ""]


def _errors(name: str, rows: Sequence[Row]) -> list[str]:
    errors, worst = Errors.of(rows), max(rows, key=lambda row: abs(row.error))
    return [name, str(errors.rows), f"{errors.mean:.1%}", f"{worst.error:+.1%}" + ("" if worst.undisturbed else "*")]


def _skipped(skipped: Sequence[Skipped]) -> list[str]:
    """Return a line for each reason, with the cells it applies to."""
    reasons: dict[str, list[Skipped]] = {}
    for one in skipped:
        reasons.setdefault(one.reason, []).append(one)
    return [f"Skipped {_named(cells)}: {reason}" for reason, cells in reasons.items()]


def _named(cells: Sequence[Skipped]) -> str:
    if len(cells) == 1:
        return cells[0].cell.title()
    names = dict.fromkeys(one.cell.strategy.name for one in cells)
    return f"{units.count(len(cells), 'cell')} of {units.listed([*names])}"
