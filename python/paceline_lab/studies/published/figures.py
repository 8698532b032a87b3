"""The study's figure: forecast against published, and the error against the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._internal.files import replaced
from paceline.forecast.output import style

from paceline_lab.studies.published.rows import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 100


def draw_all(rows: Sequence[Forecast], folder: Path) -> list[Path]:
    """Draw the rows with a published value into the folder; return the files."""
    known = [it for it in rows if it.row.measured is not None]
    return [_draw(known, folder / "published.png")] if known else []


def _draw(rows: Sequence[Forecast], path: Path) -> Path:
    engines = list(dict.fromkeys(it.engine for it in rows))
    with style.context():
        canvas = style.new_figure(9.5, 5.6)
        grid: Any = canvas.subplots(1, 2)
        _values(grid[0], rows, engines)
        _errors(grid[1], rows, engines)
        handles, labels = grid[1].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        canvas.suptitle("Published measurements and their forecasts; hollow: a row that is not well-posed")
        with replaced(path) as file:
            canvas.savefig(file, dpi=DPI, format="png")
    return path


def _style(engines: Sequence[str], it: Forecast) -> dict[str, Any]:
    look = style.systems(engines)[it.engine]
    face = look.color if it.row.well_posed else "none"
    return {"marker": look.marker, "s": 36, "facecolors": face, "edgecolors": look.color}


def _values(axes: Axes, rows: Sequence[Forecast], engines: Sequence[str]) -> None:
    """Draw all metrics on one axis: only the ratio of forecast to published matters."""
    for it in rows:
        axes.scatter([it.row.measured or it.value], [it.value], **_style(engines, it))
    values = [value for it in rows for value in (it.row.measured or it.value, it.value)]
    ends = [min(values) / 1.5, max(values) * 1.5]
    axes.plot(ends, ends, color=style.REFERENCE, linewidth=1, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="published, in the row's own metric", ylabel="forecast")


def _errors(axes: Axes, rows: Sequence[Forecast], engines: Sequence[str]) -> None:
    named: set[str] = set()
    for it in rows:
        label = None if it.engine in named else it.engine
        named.add(it.engine)
        assert it.error is not None
        axes.scatter([it.row.gpus], [100 * it.error], label=label, **_style(engines, it))
    axes.axhline(0, color=style.REFERENCE, linewidth=1, zorder=0)
    axes.axhspan(-8, 8, color=style.REFERENCE, alpha=0.15, linewidth=0, zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    most = max(20.0, *(105 * abs(it.error or 0.0) for it in rows))
    axes.set_ylim(-most, most)
    axes.set(xlabel="GPUs", ylabel="error, % (band: ±8 %)")
