"""Plain-text tables: aligned columns, a rule under the header, colour where it is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A header of one or two lines, and whether cells stand at the left."""

    header: str
    left: bool = False


def render(columns: Sequence[Column], groups: Sequence[Sequence[Sequence[str]]], *, highlight_first: bool) -> list[str]:
    """Lines of a table, with an empty line between groups. The first row of each group is highlighted if wanted."""
    import click

    headers = [column.header.split("\n") for column in columns]
    height = max(len(lines) for lines in headers)
    top = [[*[""] * (height - len(lines)), *lines] for lines in headers]
    rows = [row for group in groups for row in group]
    widths = [max(map(len, [*lines, *(row[index] for row in rows)])) for index, lines in enumerate(top)]

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, columns, strict=True)
        return "  ".join(
            f"{cell:<{width}}" if column.left else f"{cell:>{width}}" for cell, width, column in placed
        ).rstrip()

    lines = [click.style(line([cells[row] for cells in top]), bold=True) for row in range(height)]
    lines.append("─" * (sum(widths) + 2 * (len(widths) - 1)))
    for number, group in enumerate(groups):
        if number and len(rows) > len(groups):
            lines.append("")
        for place, row in enumerate(group):
            text = line(row)
            lines.append(click.style(text, fg="green") if highlight_first and place == 0 else text)
    return lines


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The text broken into lines."""
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
