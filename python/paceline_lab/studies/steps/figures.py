"""The figure of a study of steps: forecast against measured, of time and of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._internal.files import replaced
from paceline.forecast.output import style

from paceline_lab.studies.steps.forecast import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 100
_BAND = 0.1
"""The error of the gray band."""


def draw(rows: Sequence[Forecast], groups: Mapping[str, str], path: Path) -> Path:
    """Draw the rows of time and of memory, by titled groups, into a file; return it."""
    with style.context():
        canvas = style.new_figure(9.5, 5.2)
        grid: Any = canvas.subplots(1, 2)
        _panel(grid[0], groups, [it for it in rows if it.row.metric.is_time], "step, s", in_steps=True)
        _panel(grid[1], groups, [it for it in rows if it.row.metric.is_memory], "memory, GB", in_steps=False)
        shown = {label: one for axes in grid for one, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        canvas.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=2, frameon=False)
        canvas.suptitle(f"Forecast against measured; band: ±{_BAND:.0%}")
        with replaced(path) as file:
            canvas.savefig(file, dpi=_DPI, format="png")
    return path


def _panel(axes: Axes, groups: Mapping[str, str], rows: Sequence[Forecast], title: str, *, in_steps: bool) -> None:
    ends = [float("inf"), 0.0]
    for group, words in groups.items():
        own = [it for it in rows if it.row.group == group]
        if not own:
            continue
        # A rate becomes the time of the step that the forecast is of.
        values = [it.answer.result.iteration_s if in_steps else it.value / 1e9 for it in own]
        measured = [value / (1 + it.error) for it, value in zip(own, values, strict=True)]
        look = style.systems(list(groups))[group]
        axes.scatter(measured, values, label=words, marker=look.marker, s=26, color=look.color)
        ends = [min(ends[0], *values, *measured), max(ends[1], *values, *measured)]
    ends = [ends[0] / 1.5, ends[1] * 1.5]
    axes.plot(ends, ends, color=style.REFERENCE, linewidth=1, zorder=0)
    low, high = ([end * factor for end in ends] for factor in (1 - _BAND, 1 + _BAND))
    axes.fill_between(ends, low, high, color=style.REFERENCE, alpha=0.15, linewidth=0, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel=f"measured {title}", ylabel=f"forecast {title}")
