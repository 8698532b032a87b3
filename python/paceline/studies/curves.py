"""A figure of forecasts: one panel per table, one line per row, GPUs along the x axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline._internal.files import replaced
from paceline.forecast import plotting
from paceline.studies.report import Prediction

DPI = 100


def draw(values: Sequence[Prediction], path: Path, title: str, label: str) -> Path:
    """Draw into the file. The column labels of `values` begin with a number: `16 GPUs`, `4 MiB`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    tables = list(dict.fromkeys(it.table for it in values))
    with mpl.rc_context({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Figure(figsize=(5.0 * len(tables), 5.4), layout="constrained")
        grid: Any = canvas.subplots(1, len(tables), squeeze=False)
        for axes, table in zip(grid.flat, tables, strict=True):
            own = [it for it in values if it.table == table]
            columns = list(dict.fromkeys(it.model for it in own))
            for place, row in enumerate(dict.fromkeys(it.row for it in own)):
                points = [(columns.index(it.model), it.simulated) for it in own if it.row == row]
                axes.plot(
                    *zip(*points, strict=True),
                    label=row,
                    color=plotting.COLOURS[place % len(plotting.COLOURS)],
                    marker=plotting.MARKERS[place % len(plotting.MARKERS)],
                    linestyle=("-", "--")[place * 2 // max(1, len({it.row for it in own}))],
                    markersize=5,
                )
            axes.set_xticks(range(len(columns)), columns, rotation=30 if len(columns) > 6 else 0)
            axes.set(yscale="log", ylabel=label, title=table)
            axes.grid(color="0.92")
            axes.set_axisbelow(True)
            axes.legend(frameon=False, fontsize="small")
        canvas.suptitle(title)
        with replaced(path) as file:
            canvas.savefig(file, dpi=DPI, format="png")
    return path
