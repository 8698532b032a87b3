"""Plain-text tables that keep to a width.

Where a table is too wide, headers are wrapped first. Then columns that can be spared are left out, the least needed
first. What is still too wide has its texts wrapped, and is continued below. No cell is cut off.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from paceline._internal.units import printable

_GAP = 2
"""Spaces between columns."""

Groups = Sequence[Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Column:
    """A header of one or more lines, and whether cells are aligned left; cells that are may be wrapped."""

    header: str
    left: bool = False
    spare: int = 0
    """Which columns are left out first where a table is too wide: those with the highest number; 0: never."""


def render(columns: Sequence[Column], groups: Groups, width: int) -> list[str]:
    """Return the lines of a table, with an empty line between groups.

    Args:
        columns: Their headers.
        groups: Rows of cells.
        width: Of the lines, in characters.

    Control characters of cells are escaped.
    """
    groups = [[[printable(cell) for cell in row] for row in group] for group in groups]
    rows = [row for group in groups for row in group]
    natural = [_natural(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
    if _total(natural) <= width:
        return _lines(columns, groups, natural)
    unbroken = [_unbroken(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
    if _total(unbroken) <= width:
        return _lines(columns, groups, _widened(unbroken, natural, width))
    if most := max(column.spare for column in columns):
        spared = max(index for index, column in enumerate(columns) if column.spare == most)
        kept = [index for index in range(len(columns)) if index != spared]
        some = [[[row[index] for index in kept] for row in group] for group in groups]
        return render([columns[index] for index in kept], some, width=width)
    most = width if len(columns) == 1 else width // 2 - _GAP
    least = [_least(column, [row[index] for row in rows], most) for index, column in enumerate(columns)]
    if _total(least) <= width or len(columns) == 1:
        return _lines(columns, groups, _widened(least, natural, width))
    lines: list[str] = []
    for part in _parts(columns, least, width):
        some = [[[row[index] for index in part] for row in group] for group in groups]
        own = [columns[index] for index in part]
        lines += [*([""] if lines else []), *render(own, some, width=width)]
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _natural(column: Column, cells: Sequence[str]) -> int:
    return max(map(len, [*column.header.split("\n"), *cells]))


def _unbroken(column: Column, cells: Sequence[str]) -> int:
    """Return the width below which a cell would be broken; headers may be."""
    return max(map(len, [*column.header.split(), *cells, ""]))


def _least(column: Column, cells: Sequence[str], most: int) -> int:
    """Return the width below which a word would be broken, but `most`; numbers stay in a line with their units."""
    words = [word for cell in cells for word in (cell.split() if column.left else [cell])]
    return min(most, max(map(len, [*column.header.split(), *words, ""])))


def _widened(least: Sequence[int], natural: Sequence[int], width: int) -> list[int]:
    """Return the widths with what is left given to the columns that lack most."""
    widths = list(least)
    for _ in range(width - _total(least)):
        lacking = max(range(len(widths)), key=lambda index: natural[index] - widths[index])
        if natural[lacking] <= widths[lacking]:
            break
        widths[lacking] += 1
    return widths


def _parts(columns: Sequence[Column], least: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each table; the ones that name a row begin all of them."""
    first = next((index for index, column in enumerate(columns[:3]) if column.left), 0)
    names = list(range(first + 1))
    if _total([least[index] for index in names]) > width // 2:
        names = [0] if least[0] <= width // 2 else []
    parts: list[list[int]] = [[*names]]
    for index in range(len(columns)):
        if index in names:
            continue
        if len(parts[-1]) > len(names) and _total([least[it] for it in [*parts[-1], index]]) > width:
            parts.append([*names])
        parts[-1].append(index)
    return parts


def _lines(columns: Sequence[Column], groups: Groups, widths: Sequence[int]) -> list[str]:
    import click

    headers = [_wrapped_header(column.header, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, headers))
    top = [[*[""] * (height - len(lines)), *lines] for lines in headers]

    def placed(cells: Sequence[str]) -> str:
        each = zip(cells, widths, columns, strict=True)
        aligned = (f"{cell:<{width}}" if column.left else f"{cell:>{width}}" for cell, width, column in each)
        return (" " * _GAP).join(aligned).rstrip()

    def line(row: Sequence[str]) -> list[str]:
        cells = [
            _wrapped(cell, width) if len(cell) > width else [cell] for cell, width in zip(row, widths, strict=True)
        ]
        tall = max(map(len, cells), default=1)
        return [placed([part[index] if index < len(part) else "" for part in cells]) for index in range(tall)]

    lines = [click.style(placed([cells[row] for cells in top]), bold=True) for row in range(height)]
    lines.append("─" * _total(widths))
    rows = sum(map(len, groups))
    for number, group in enumerate(groups):
        if number and rows > len(groups):
            lines.append("")
        for row in group:
            lines += line(row)
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _wrapped_header(header: str, width: int) -> list[str]:
    """Return the lines of a header as they are given, or as they fit."""
    lines = header.split("\n")
    if max(map(len, lines)) <= width:
        return lines
    return [part for line in lines for part in _wrapped(line, width)]
