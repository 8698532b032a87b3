"""Plots of forecasts: lines if something was swept, bars for a single configuration.

Colours are Paul Tol's "muted" scheme and black (SRON/EPS/TN/09-002), which colour-blind readers can distinguish. A
strategy has the same colour, line and marker in every plot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paceline._internal import units
from paceline._internal.files import check_writable, replaced
from paceline.catalog.strategies import all_coordinators, all_strategies
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import Result
from paceline.forecast.table import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = (
    *("#CC6677", "#DDCC77", "#AA4499", "#117733", "#332288"),
    *("#88CCEE", "#882255", "#44AA99", "#999933", "#000000", "#777777", "#0077BB"),
)
_LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")
_COMPUTE, _EXPOSED = "#88CCEE", "#CC6677"
_COORDINATED = (("coordinator", "#CC6677"), ("copy", "#117733"), ("collective", "#DDCC77"))
_MOST_PANELS = 8
SUFFIXES = (".png", ".svg", ".pdf", ".html")

Value = Callable[[Result], float | None]

# What may be swept: name, axis label, scale of its values, and the title of a panel.
_AXES: tuple[tuple[str, str, float, Callable[[Any], str]], ...] = (
    ("workers", "workers", 1.0, lambda value: units.count(value, "worker")),
    ("bandwidth_bps", "bandwidth of a node (Gbit/s)", 1e9, units.rate),
    ("compute_speedup", "compute speed-up", 1.0, lambda value: f"compute {value:g} times as fast"),
    ("servers", "parameter servers", 1.0, lambda value: units.count(value, "server")),
)


def need_matplotlib(what: str) -> None:
    """Raise InvalidArgumentError if matplotlib is not installed."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise InvalidArgumentError(f"{what} need matplotlib: pip install 'paceline[plot]'")


def check_plot(path: Path) -> None:
    """Raise InvalidArgumentError if no plot could be written to this file."""
    need_matplotlib("--plot: plots")
    check_writable("--plot", path)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidArgumentError(f"--plot {path}: name a file that ends with {units.listed([*SUFFIXES], 'or')}")


def plot(results: Sequence[Result], path: str | Path) -> None:
    """Plot forecasts: a line for each strategy over the swept values, or bars for a single configuration.

    Args:
        results: Results of `simulate` or `sweep`.
        path: The file to write: `.png`, `.svg`, `.pdf`, or `.html` for a self-contained page.

    Raises:
        InvalidArgumentError: There are no results, the suffix is unknown, the file cannot be written, or matplotlib is
            not installed (`pip install 'paceline[plot]'`).

    Example:
        >>> results = paceline.sweep("resnet-50", workers=[2, 4, 8], strategies="ring,ps".split(","))
        >>> paceline.plot(results, "scaling.png")  # doctest: +SKIP
    """
    target = Path(path)
    if not results:
        raise InvalidArgumentError("there are no results to plot")
    check_plot(target)
    drawn = figure(results)
    with replaced(target) as temporary:
        if target.suffix.lower() == ".html":
            from paceline.forecast.html import page

            temporary.write_text(page(results, drawn), encoding="utf-8")
        else:
            save(drawn, temporary, target.suffix.lower().removeprefix("."))


def save(drawn: Figure, out: Path | IO[bytes], kind: str) -> None:
    """Write the figure; equal results give equal bytes."""
    import matplotlib as mpl

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": "paceline"}):
        drawn.savefig(out, format=kind, dpi=150, metadata=dates.get(kind))


def colour_of(strategy: str) -> str:
    """Return the strategy's colour, the same in every plot."""
    return COLOURS[_number(strategy) % len(COLOURS)]


def marker_of(strategy: str) -> str:
    """Return the strategy's marker, the same in every plot."""
    return MARKERS[_number(strategy) % len(MARKERS)]


def _number(strategy: str) -> int:
    names: list[str] = [entry.name for entry in all_strategies()]
    return names.index(strategy)


def plain_ticks(*axes: Axis) -> None:
    """Set ticks of logarithmic axes at 1, 2 and 5, written as decimals."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def figure(results: Sequence[Result]) -> Figure:
    """Return the plot as a matplotlib figure; no window is opened."""
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False}):
        swept = [
            axis for axis in _AXES if len({getattr(result, axis[0]) for result in _relevant(results, axis[0])}) > 1
        ]
        return _lines(results, swept[0], swept[1:]) if swept else bars(results)


def _relevant(results: Sequence[Result], name: str) -> list[Result]:
    """Return the axes that vary; strategies without servers do not count for the number of servers."""
    return [result for result in results if name != "servers" or result.servers]


def bars(results: Sequence[Result], width: float = 8.0) -> Figure:
    """Draw computation and exposed communication of each, fastest first; `width` in inches."""
    from matplotlib.figure import Figure

    ordered = sorted(results, key=lambda result: result.iteration_s)
    unit, word = units.time_unit(result.iteration_s for result in ordered)
    drawn = Figure(figsize=(width, 1.7 + 0.36 * len(ordered)), layout="constrained")
    axes = drawn.add_subplot()
    places = range(len(ordered))
    compute = [min(result.compute_s, result.iteration_s) / unit for result in ordered]
    exposed = [max(0.0, result.iteration_s / unit - own) for result, own in zip(ordered, compute, strict=True)]
    if any(compute):
        axes.barh(places, compute, color=_COMPUTE, label="computation")
    if all(result.coordinator for result in ordered):
        left = compute
        for name, colour in _COORDINATED:
            own = [(getattr(result, f"{name}_s") or 0.0) / unit for result in ordered]
            axes.barh(places, own, left=left, color=colour, label=name)
            left = [low + high for low, high in zip(left, own, strict=True)]
    else:
        axes.barh(places, exposed, left=compute, color=_EXPOSED, label="exposed communication")
    for place, result in zip(places, ordered, strict=True):
        axes.text(result.iteration_s / unit, place, f" {units.digits(result.iteration_s / unit, 3)}", va="center")
    axes.set_yticks(list(places), [label(result, ordered) for result in ordered])
    axes.invert_yaxis()
    axes.set_xlim(0, max(result.iteration_s for result in ordered) / unit * 1.1 or 1)
    axes.set_xlabel(f"iteration time ({word})")
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    first = next((result for result in results if result.servers), results[0])
    where = [units.count(first.workers, "worker"), units.rate(first.bandwidth_bps)]
    if first.servers:
        where.append(units.count(first.servers, "parameter server"))
    drawn.suptitle(f"{first.trace}: {', '.join(where)}")
    if any(compute):
        drawn.legend(loc="outside lower center", ncols=4, frameon=False)
    return drawn


def _lines(
    results: Sequence[Result], axis: tuple[str, str, float, Callable[[Any], str]], others: Sequence[Any]
) -> Figure:
    from matplotlib.figure import Figure

    name, label, scale, _ = axis
    panels = _panels(results, others)
    if len(panels) > _MOST_PANELS:
        raise InvalidArgumentError(f"--plot: {len(panels)} panels do not fit into one plot; sweep fewer values")
    computes = any(result.compute_s > 0 for result in results)
    quantities = [iteration_time(results), _SAMPLES if computes else _BUS_BANDWIDTH]
    drawn = Figure(figsize=(11.5, 0.9 + 3.5 * len(panels)), layout="constrained")
    grid: Any = drawn.subplots(len(panels), 2, squeeze=False, sharey="col")
    for row, (title, members) in zip(grid, panels.items(), strict=True):
        for axes, (words, value) in zip(row, quantities, strict=True):
            draw_lines(axes, members, name, scale, value)
            if words == _SAMPLES[0]:
                draw_ideal(axes, members, name, scale)
            axes.set_ylabel(words)
            x_axis(axes, [getattr(result, name) / scale for result in _relevant(members, name)], label)
            axes.set_title(title, fontsize="medium")
    for column, (_, value) in enumerate(quantities):
        y_axis(grid[0][column], [value(result) for result in results])
    handles, labels = grid[0][1].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside right center", frameon=False)
    drawn.suptitle(_title(results, axis, others))
    return drawn


def _panels(results: Sequence[Result], others: Sequence[Any]) -> dict[str, list[Result]]:
    """Group results by the swept values other than the x axis; strategies without servers are in every panel."""
    panels: dict[str, list[Result]] = {}
    servers = sorted({result.servers for result in results if result.servers})
    by_servers = any(other[0] == "servers" for other in others)
    for result in results:
        for count in [result.servers] if result.servers or not by_servers else servers:
            values = {"servers": count}
            words = [other[3](values.get(other[0], getattr(result, other[0]))) for other in others]
            panels.setdefault(", ".join(words), []).append(result)
    return panels


def _title(results: Sequence[Result], axis: Sequence[Any], others: Sequence[Any]) -> str:
    first = next((result for result in results if result.servers), results[0])
    varied = {axis[0], *(other[0] for other in others)}
    fixed = [_AXES[0], _AXES[1], *([_AXES[3]] if first.servers else [])]
    words = [words(getattr(first, name)) for name, _, _, words in fixed if name not in varied]
    return ": ".join([first.trace, ", ".join(words)]) if words else first.trace


def _series(results: Sequence[Result], name: str) -> dict[str, list[Result]]:
    series: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: float(getattr(result, name))):
        series.setdefault(label(result, results), []).append(result)
    order: list[str] = [strategy.name for strategy in all_strategies()]
    coordinators: list[str] = [coordinator.name for coordinator in all_coordinators()]

    def place(name: str) -> tuple[int, int]:
        first = series[name][0]
        return order.index(first.strategy), coordinators.index(first.coordinator) if first.coordinator else -1

    return {name: series[name] for name in sorted(series, key=place)}


def draw_lines(axes: Axes, results: Sequence[Result], name: str, scale: float, value: Value) -> None:
    """Draw one line per strategy, each thinner than those before, so that coinciding lines are all visible."""
    series = _series(results, name)
    # Under several coordinators, or none, a colour is a line's, not a strategy's.
    several = len({result.coordinator for result in results}) > 1
    for place, (strategy, members) in enumerate(series.items()):
        number = place if several else _number(members[0].strategy)
        points = [(getattr(result, name) / scale, value(result)) for result in members]
        known = [(x, y) for x, y in points if y is not None]
        left = (len(series) - place) / len(series)
        style: dict[str, Any] = {
            "label": strategy,
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": _LINES[number % len(_LINES)],
            "linewidth": 1.2 + 1.4 * left if len(series) > 1 else 1.5,
        }
        if name == "servers" and not members[0].servers and known:
            axes.axhline(known[0][1], **style)
            continue
        marks: dict[str, Any] = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4 + 3 * left}
        axes.plot([x for x, _ in known], [y for _, y in known], **style, **marks)


def iteration_time(results: Sequence[Result]) -> tuple[str, Value]:
    """Return the label and values of an axis."""
    unit, word = units.time_unit(result.iteration_s for result in results)
    return f"iteration time ({word})", lambda result: result.iteration_s / unit


def _bus_gigabits(result: Result) -> float | None:
    return None if result.bus_bandwidth_bps is None else result.bus_bandwidth_bps / 1e9


_SAMPLES: tuple[str, Value] = ("samples/s, all workers", lambda result: result.samples_per_s)
_BUS_BANDWIDTH: tuple[str, Value] = ("bus bandwidth (Gbit/s)", _bus_gigabits)


def draw_ideal(axes: Axes, results: Sequence[Result], name: str, scale: float) -> None:
    """Draw the throughput of all workers without communication."""
    ideal = {
        getattr(result, name) / scale: result.workers * result.batch / result.compute_s
        for result in _relevant(results, name)
        if result.compute_s > 0
    }
    axes.plot(sorted(ideal), [ideal[x] for x in sorted(ideal)], color="0.6", linewidth=1, label="linear scaling")


def y_axis(axes: Axes, values: Sequence[float | None]) -> None:
    """Scale the axis from zero, or logarithmically where values differ tenfold."""
    positive = [value for value in values if value]
    if not positive or len(positive) < len(values) or max(positive) < 10 * min(positive):
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)


def x_axis(axes: Axes, values: Sequence[float], label: str) -> None:
    """Set a tick for each value, logarithmically where they differ fourfold."""
    from matplotlib.ticker import NullLocator

    ticks = sorted(set(values))
    if ticks[0] > 0 and ticks[-1] > 4 * ticks[0]:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    shown = ticks if len(ticks) <= 10 else ticks[:: -(-len(ticks) // 10)]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_xlabel(label)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
