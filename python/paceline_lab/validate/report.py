"""A validation as text."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render

from paceline_lab.validate.cells import Skipped
from paceline_lab.validate.outcome import Errors, Row, Validation

_HEADERS = ("strategy", "workers", "servers", "measured", "spread", "simulated", "error")
_OPTIONAL = ("sharding", "compression")
"""Columns that stand after the strategy if a row has them."""


def text(result: Validation, width: int) -> list[str]:
    """Return lines: the errors in a headline, tables by trace, errors by strategy, what was skipped."""
    lines = [*block.headline(_headline(result)), ""]
    lines += [*block.block(_facts(result.rows), width), ""] if result.rows else []
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in result.rows:
        cell = row.cell
        groups.setdefault((cell.trace, cell.bandwidth_bps, cell.shrink, cell.scale), []).append(row)
    for rows in groups.values():
        lines += [_title(rows[0]), "", *_table(rows), ""]
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
        *(getattr(row.cell, name) or "none" for name in shown),
        f"{row.cell.workers}{several}",
        str(row.cell.servers or "-"),
        units.duration(row.measured_s),
        f"±{spread:.1%}",
        units.duration(row.simulated_s),
        f"{row.error:+.1%}" + ("" if row.undisturbed else "*"),
    ]


def _summary(result: Validation) -> list[str]:
    if not result.rows:
        return []
    columns = [Column("strategy", left=True), Column("cells"), Column("mean error"), Column("worst")]
    found = [_errors(*item) for item in result.by_strategy().items()]
    groups = [found, [_errors("all", result.rows)]]
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
