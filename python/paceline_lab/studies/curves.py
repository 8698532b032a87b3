"""A figure of a study's forecasts: one panel per table, one line per row, and the published values among them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal.files import replaced
from paceline.forecast.output import style

from paceline_lab.studies.report import Prediction

DPI = 100
_COLUMN = re.compile(r"(?:batch )?([\d.]+) ?(B|KiB|MiB|GPUs)?")
_UNITS = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20}
# Rows that differ only in this have one color and different lines.
_VARIANT = re.compile(r"(.*), (\d+) a node")


@dataclass(frozen=True)
class Panel:
    """A panel: its curves, its axes, and whether linear scaling is a line in it."""

    title: str
    x_label: str
    y_label: str
    published: Sequence[tuple[str, float, float]] = ()
    """Row, x and y of published values."""


def draw(values: Sequence[Prediction], path: Path, title: str, panels: Mapping[str, Panel]) -> Path:
    """Draw into the file: a panel for each table of `values`. Column labels contain a number: `16 GPUs`, `4 MiB`."""
    with style.context():
        canvas = style.new_figure(5.4 * len(panels), 5.4)
        grid: Any = canvas.subplots(1, len(panels), squeeze=False)
        looks = style.systems(_system(it.row) for it in values)
        for axes, (table, panel) in zip(grid.flat, panels.items(), strict=True):
            own = [it for it in values if it.table == table]
            columns = {it.model: _number(it.model) for it in own}
            rows = list(dict.fromkeys(it.row for it in own))
            lines = [_line(row, [it for it in own if it.row == row], looks) for row in rows]
            entries = style.draw_lines(axes, lines)
            for row, x, y in panel.published:
                style.draw_published(axes, [x], [y], looks[_system(row)])
            names = list(columns) if any("B" in name for name in columns) else None
            log = style.x_axis(axes, columns.values(), panel.x_label, names)
            style.y_axis(axes, [*(it.simulated for it in own), *(y for _, _, y in panel.published)], log=log)
            axes.set_ylabel(panel.y_label)
            axes.set_title(panel.title, fontsize="medium")
            style.legend(axes, [*entries, *(style.sources() if panel.published else [])])
        canvas.suptitle(title)
        with replaced(path) as file:
            canvas.savefig(file, dpi=DPI, format="png")
    return path


def _number(column: str) -> float:
    match = _COLUMN.fullmatch(column)
    assert match is not None, column
    return float(match[1]) * _UNITS.get(match[2] or "", 1.0)


def _system(row: str) -> str:
    match = _VARIANT.fullmatch(row)
    return match[1] if match else row


def _line(row: str, values: Sequence[Prediction], looks: Mapping[str, style.Look]) -> style.Line:
    match, look = _VARIANT.fullmatch(row), looks[_system(row)]
    dashes = "--" if match and match[2] == "8" else "-"
    numbers = [_number(it.model) for it in values]
    return style.Line(row, numbers, [it.simulated for it in values], style.Look(look.color, dashes, look.marker))
