"""The plot of several jobs: the slowdown of each, and who causes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paceline._internal import units
from paceline.errors import InvalidArgumentError
from paceline.forecast.jobs.model import JobsResult
from paceline.forecast.output.plotting import check_plot, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALONE, _MORE = "#88CCEE", "#CC6677"


def check(path: Path) -> None:
    """Raise InvalidArgumentError if no plot could be written to this file."""
    check_plot(path)
    if path.suffix.lower() == ".html":
        raise InvalidArgumentError(
            f"--plot {path}: several jobs are drawn as .png, .svg or .pdf", remedy=f"--plot {path.with_suffix('.svg')}"
        )


def draw(result: JobsResult, path: Path) -> None:
    """Write the plot."""
    from paceline._internal.files import replaced

    drawn = figure(result)
    with replaced(path) as temporary:
        save(drawn, temporary, path.suffix.lower().removeprefix("."))


def figure(result: JobsResult) -> Figure:
    """Return bars of the iteration time, alone and together, and the matrix of slowdowns."""
    from matplotlib.figure import Figure

    names = [job.name for job in result.jobs]
    several = len(names) > 1
    drawn = Figure(figsize=(10.5 if several else 6, 1.6 + 0.55 * max(len(names), 3)), layout="constrained")
    axes = drawn.subplots(1, 2 if several else 1, squeeze=False)[0]
    bars = axes[0]
    places = range(len(names))
    # What was stopped before it was known has no bar.
    alone = [1e3 * (job.alone_s or 0.0) for job in result.jobs]
    whole = [1e3 * (job.iteration_s or 0.0) for job in result.jobs]
    more = [together - base for together, base in zip(whole, alone, strict=True)]
    bars.barh(places, alone, color=_ALONE, label="alone")
    if several:
        bars.barh(places, more, left=alone, color=_MORE, label="because of the others")
        bars.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)
    longest = max(*whole, *alone)
    for place, job in enumerate(result.jobs):
        text = _times(job.slowdown) if several else units.duration(1e-3 * whole[place])
        bars.text(max(whole[place], alone[place]) + 0.015 * longest, place, text, va="center")
    bars.set_xlim(0, 1.15 * longest)
    bars.set_yticks(places, names)
    bars.invert_yaxis()
    bars.set_xlabel("iteration time (ms)")
    bars.set_title("Each job on the shared network")
    bars.spines[["top", "right"]].set_visible(False)
    if several:
        matrix = axes[1]
        shown = [[slowdown or 1.0 for slowdown in row] for row in result.pairs]
        highest = max(map(max, shown))
        matrix.imshow(shown, cmap="Reds", vmin=1, vmax=max(highest * 1.3, 1.2), aspect="auto")
        for row, values in enumerate(result.pairs):
            for column, value in enumerate(values):
                text = "–" if row == column else _times(value)
                matrix.text(column, row, text, ha="center", va="center")
        matrix.set_xticks(places, names, rotation=20, ha="right", rotation_mode="anchor")
        matrix.set_yticks(places, names)
        matrix.set_xlabel("next to this job alone")
        matrix.set_title("Slowdown next to one other job")
    return drawn


def _times(slowdown: float | None) -> str:
    return "?" if slowdown is None else f"{slowdown:.2f}x"
