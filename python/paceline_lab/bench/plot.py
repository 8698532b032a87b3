"""The plot of a benchmark: images/s as bars, or over ranks with regression lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._internal.files import replaced
from paceline._internal.units import digits, listed
from paceline.errors import InvalidArgumentError
from paceline.forecast.output import style
from paceline.forecast.output.plotting import need_matplotlib, save
from paceline.interop.logs import Read

from paceline_lab.bench.log_fits import Fit, fits
from paceline_lab.bench.plan import Plan
from paceline_lab.bench.result import Result, Row
from paceline_lab.bench.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg", ".pdf")
_PARTS = tuple((part, style.PARTS[part]) for part in ("forward", "backward", "input", "exposed communication"))


def check(path: Path) -> None:
    """Raise InvalidArgumentError if no plot can be written to this file."""
    need_matplotlib("--plot")
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidArgumentError(
            f"--plot {path}: unknown kind of file",
            remedy=f"--plot {path.with_suffix('.svg')} (one of {listed([*_SUFFIXES], 'or')})",
        )


def draw(plan: Plan, result: Result, read: Sequence[Read], path: Path) -> None:
    """Write the file. Raises OSError."""
    drawn = figure(plan, result, read)
    with replaced(path) as new:
        save(drawn, new, path.suffix.lower().removeprefix("."))


def figure(plan: Plan, result: Result, read: Sequence[Read]) -> Figure:
    """Return the plot without opening a window."""
    with style.context():
        several = len(plan.workers) > 1
        drawn = style.new_figure(10, 4.2 if several else 1.6 + 0.55 * len(result.rows))
        left, right = drawn.subplots(1, 2)
        if several:
            _rates_over_ranks(left, result, fits(read))
            _efficiencies(right, result)
        else:
            _rates(left, result, read)
            _parts(right, result)
        ranks = " and ".join(map(str, plan.workers))
        drawn.suptitle(f"Measured throughput: {plan.model}, {plan.batch_in_words}, {ranks} ranks", fontsize=10)
        return drawn


def draw_logs(fits: Sequence[Fit], path: Path) -> None:
    """Write the plot of logs: images/s over GPUs with lines, and images/s per GPU. Raises OSError."""
    drawn = logs_figure(fits)
    with replaced(path) as new:
        save(drawn, new, path.suffix.lower().removeprefix("."))


def logs_figure(fits: Sequence[Fit]) -> Figure:
    """Return the plot of logs without opening a window."""
    with style.context():
        drawn = style.new_figure(10, 4.2)
        left, right = drawn.subplots(1, 2)
        entries = _points_of_logs(left, fits)
        looks = style.systems(fit.name for fit in fits)
        for fit in fits:
            look = looks[fit.name]
            gpus = [point for point, _ in fit.points]
            right.plot(gpus, [rate / point for point, rate in fit.points], linestyle="", **style.hollow(look))
            right.axhline(fit.line.slope, color=look.color, linewidth=1)
            if (interval := fit.line.slope_interval) is not None:
                right.axhspan(interval.low, interval.high, color=look.color, alpha=0.15, linewidth=0)
        ticks = sorted({gpus for fit in fits for gpus, _ in fit.points})
        for axes, words in ((left, "images/s; line: regression"), (right, "images/s per GPU; band: slope, 95 %")):
            axes.set_xlabel("GPUs")
            axes.set_xticks(ticks)
            axes.set_ylabel(words)
        left.set_ylim(bottom=0)
        style.legend(left, entries)
        drawn.suptitle("Throughput in logs", fontsize=10)
        return drawn


def _points_of_logs(axes: Axes, fits: Sequence[Fit]) -> list[style.Entry]:
    """Draw the points and lines of logs; return legend entries."""
    looks, entries = style.systems(fit.name for fit in fits), []
    for fit in fits:
        look, gpus = looks[fit.name], [point for point, _ in fit.points]
        [drawn] = axes.plot(gpus, [rate for _, rate in fit.points], linestyle="", **style.hollow(look))
        ends = [gpus[0], gpus[-1]]
        axes.plot(ends, [fit.line.intercept + fit.line.slope * end for end in ends], color=look.color, linewidth=1)
        entries.append((drawn, f"{fit.name}: {digits(fit.line.slope)} per GPU"))
    return entries


def _around(value: float, interval: Interval) -> tuple[list[float], list[float]]:
    """Return the error for `errorbar`; a round's total may be outside the interval of all steps."""
    return [max(0.0, value - interval.low)], [max(0.0, interval.high - value)]


def _rates(axes: Axes, result: Result, read: Sequence[Read]) -> None:
    names = [row.engine for row in result.rows]
    logs = [one for one in read if one.total_images_per_s is not None]
    looks = style.systems(names)
    measured: dict[str, Any] = {"color": "white", "linewidth": 1.8, "height": 0.6}
    entries: list[style.Entry] = []
    for place, row in enumerate(result.rows):
        bar = axes.barh(place, row.total, edgecolor=looks[row.engine].color, **measured)
        axes.errorbar(row.total, place, xerr=_around(row.total, row.interval), color="black", capsize=3)
        if row.forecast_images_per_s is not None:
            [point] = axes.plot(row.forecast_images_per_s, place, "D", color=looks[row.engine].color)
            entries = entries or [(bar, "measured"), (point, "simulated")]
    for place, one in enumerate(logs, len(names)):
        axes.barh(place, one.total_images_per_s or 0.0, edgecolor=style.REFERENCE, **measured)
    axes.set_yticks(range(len(names) + len(logs)), [*names, *(one.name for one in logs)])
    axes.invert_yaxis()
    axes.set_xlabel("images/s, with 95 % interval")
    if entries:
        style.legend(axes, entries, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _parts(axes: Axes, result: Result) -> None:
    """Draw the parts of a step, in ms."""
    for place, row in enumerate(result.rows):
        begin = 0.0
        parts = (row.forward_s, row.backward_s, row.input_s, row.exposed_s)
        for (name, color), seconds in zip(_PARTS, parts, strict=True):
            width = max(0.0, (seconds or 0.0) * 1e3)
            axes.barh(place, width, left=begin, color=color, height=0.6, label=name if place == 0 else None)
            begin += width
    axes.set_yticks(range(len(result.rows)), [""] * len(result.rows))
    axes.invert_yaxis()
    axes.set_xlabel("ms of a step")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _by_engine(result: Result) -> dict[str, list[Row]]:
    by_engine: dict[str, list[Row]] = {}
    for row in sorted(result.rows, key=lambda row: row.workers):
        by_engine.setdefault(row.engine, []).append(row)
    return by_engine


def _rates_over_ranks(axes: Axes, result: Result, logs: Sequence[Fit]) -> None:
    by_engine = _by_engine(result)
    looks, entries, forecasts = style.systems(by_engine), [], False
    for engine, rows in by_engine.items():
        look = looks[engine]
        for row in rows:
            error = _around(row.total, row.interval)
            drawn = axes.errorbar(row.workers, row.total, yerr=error, capsize=3, linestyle="", **style.hollow(look))
            if row is rows[0]:
                entries.append((drawn, engine))
        line = result.lines.get(engine)
        if line is not None:
            ends = [rows[0].workers, rows[-1].workers]
            axes.plot(ends, [line.intercept + line.slope * end for end in ends], color=look.color, linewidth=1)
        forecast = [(row.workers, row.forecast_images_per_s) for row in rows if row.forecast_images_per_s is not None]
        if forecast:
            forecasts = True
            axes.plot(*zip(*forecast, strict=True), color=look.color, linestyle=":", marker=look.marker, markersize=5)
    entries += _points_of_logs(axes, logs)
    axes.set_xlabel("ranks")
    axes.set_ylabel("images/s, with 95 % interval; line: regression")
    axes.set_xticks(sorted({*(row.workers for row in result.rows), *(gpus for log in logs for gpus, _ in log.points)}))
    axes.set_ylim(bottom=0)
    style.legend(axes, [*entries, *(style.sources("measured") if forecasts else [])])


def _efficiencies(axes: Axes, result: Result) -> None:
    by_engine = _by_engine(result)
    looks = style.systems(by_engine)
    for engine, rows in by_engine.items():
        look = looks[engine]
        xs = [row.workers for row in rows]
        ys = [100 * (row.efficiency or 0.0) for row in rows]
        lows = [100 * (row.efficiency_interval.low if row.efficiency_interval else row.efficiency or 0) for row in rows]
        highs = [
            100 * (row.efficiency_interval.high if row.efficiency_interval else row.efficiency or 0) for row in rows
        ]
        axes.plot(xs, ys, **style.hollow(look))
        axes.fill_between(xs, lows, highs, color=look.color, alpha=0.2, linewidth=0)
    axes.axhline(100, color=style.REFERENCE, linewidth=0.8, linestyle=":")
    axes.set_xlabel("ranks")
    axes.set_ylabel("scaling efficiency, %, with 95 % band")
    axes.set_xticks(sorted({row.workers for row in result.rows}))
    axes.set_ylim(bottom=0)
