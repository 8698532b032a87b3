"""Measured against simulated: a color and marker for each strategy, the diagonal, and the band of good forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._internal import units
from paceline._internal.files import replaced
from paceline.catalog.strategies import registered_strategies
from paceline.errors import InvalidArgumentError
from paceline.forecast.output import plotting, style

from paceline_lab.validate.outcome import BAND, Errors, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_MARGIN = 1.4


def check(path: Path) -> None:
    """Raise InvalidArgumentError if no plot could be written to this file."""
    plotting.check_plot(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidArgumentError(
            f"--plot {path}: unknown kind of file",
            remedy=f"--plot {path.with_suffix('.svg')} (one of .png, .svg or .pdf)",
        )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows. Raises InvalidArgumentError if there are none."""
    if not rows:
        raise InvalidArgumentError("--plot: nothing was compared, so there is nothing to draw", remedy="drop --plot")
    drawn = figure(rows)
    with replaced(path) as temporary:
        plotting.save(drawn, temporary, path.suffix.lower().removeprefix("."))


def figure(rows: Sequence[Row]) -> Figure:
    """Return the plot as a matplotlib figure; no window is opened."""
    errors = Errors.of(rows)
    with style.context():
        drawn = style.new_figure(8.8, 5.8)
        axes = drawn.add_subplot()
        values = [value for row in rows for value in (row.measured_s, row.simulated_s)]
        ends = [min(values) / _MARGIN, max(values) * _MARGIN]
        axes.fill_between(
            ends,
            [end * (1 - BAND) for end in ends],
            [end * (1 + BAND) for end in ends],
            color="0.9",
            label=f"±{BAND:.0%}".replace("%", " %"),
        )
        axes.plot(ends, ends, color=style.REFERENCE, linewidth=1)
        order = [strategy.name for strategy in registered_strategies()]
        for name in [name for name in order if any(row.cell.strategy.name == name for row in rows)]:
            own = [row for row in rows if row.cell.strategy.name == name]
            axes.scatter(
                [row.measured_s for row in own],
                [row.simulated_s for row in own],
                s=34,
                alpha=0.85,
                label=name,
                zorder=3,
                color=style.strategy(name).color,
                marker=style.strategy(name).marker,
            )
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        style.plain_ticks(axes.xaxis, axes.yaxis)
        axes.set(xlabel="iteration time measured (s)", ylabel="iteration time simulated (s)")
        style.grid(axes)
        drawn.legend(loc="outside right center", frameon=False)
        mean, worst = units.percent(errors.mean), units.percent(errors.worst)
        drawn.suptitle(f"Simulated against measured: {errors.rows} cells, mean error {mean}, worst {worst}")
    return drawn
