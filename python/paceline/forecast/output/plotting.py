"""Plots of forecasts: lines if something was swept, bars for a single configuration. `style` says how they look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paceline._internal import units
from paceline._internal.extras import need
from paceline._internal.files import check_writable, replaced
from paceline.catalog.strategies import coordinator_place, registered_strategies
from paceline.errors import InvalidArgumentError
from paceline.forecast.output import style
from paceline.forecast.result import Result
from paceline.forecast.wording import rows
from paceline.forecast.wording.rows import distinct, varies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COORDINATED = ("coordinator", "copy", "collective")
_MOST_PANELS = 8
SUFFIXES = (".png", ".svg", ".pdf", ".html")

Value = Callable[[Result], float | None]


def _size(value: int | None) -> str:
    return "no fusion" if value is None else f"buckets of {units.size(value)}"


Axis = tuple[str, str, float, Callable[[Any], str]]
"""Of what may be swept: field, label, scale of its values, and the title of a panel."""
_AXES: tuple[Axis, ...] = (
    ("bandwidth_bps", "bandwidth per node (Gbps)", 1e9, units.rate),
    ("latency_s", "latency (us)", 1e-6, lambda value: f"latency {units.duration(value)}"),
    ("compute_speedup", "compute speed (x)", 1.0, lambda value: f"{value:g}x compute speed"),
    ("servers", "parameter servers", 1.0, lambda value: units.count(value, "server")),
    ("bucket_size", "bucket size (MB)", 1e6, _size),
    ("modules", "added modules", 1.0, lambda value: "no modules" if value is None else f"{value} modules"),
    ("gpus_per_node", "GPUs per node", 1.0, lambda value: f"{units.count(value, 'GPU')} per node"),
    ("kind_of_modules", "", 1.0, lambda value: f"{value} modules"),
    ("send_order", "", 1.0, lambda value: f"{value or 'recorded'} order"),
    ("gpu", "", 1.0, str),
    ("power_limit_w", "power limit (W)", 1.0, lambda value: f"{value:g} W"),
    ("library", "", 1.0, str),
    ("base_trace", "", 1.0, str),
)
_NAMES = ("library", "base_trace", "kind_of_modules", "send_order", "gpu")
"""Those whose values are no numbers."""


def _value(result: Result, name: str) -> Any:  # noqa: ANN401
    """Return a swept value of a result."""
    if name == "base_trace":
        return rows.base_trace(result)
    if name == "kind_of_modules":
        return "no" if result.add_module is None else Path(result.add_module.rpartition(":")[0]).stem
    return getattr(result, name)


def noun_of(results: Sequence[Result], noun: str = "") -> str:
    """Return what ranks are called: `noun`, or what the results are of: GPUs of a model, workers of a recording."""
    if any((result.gpus_per_worker or 1) > 1 for result in results):
        return "data-parallel rank"
    return noun or ("GPU" if any(result.mfu is not None for result in results) else "worker")


def _axes(noun: str) -> tuple[Axis, ...]:
    return ("workers", f"{noun}s", 1.0, lambda value: units.count(value, noun)), *_AXES


def need_matplotlib(what: str) -> None:
    """Raise InvalidArgumentError if matplotlib is not installed."""
    need(what, "plot", "matplotlib")


def check_plot(path: Path) -> None:
    """Raise InvalidArgumentError if no plot could be written to this file."""
    need_matplotlib("--plot")
    check_writable("--plot", path)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidArgumentError(
            f"--plot {path}: unknown kind of file",
            remedy=f"--plot {path.with_suffix('.svg')} (one of {units.listed([*SUFFIXES], 'or')})",
        )


def plot(results: Result | Sequence[Result], path: str | Path | None = None) -> Figure:
    """Plot forecasts: a line for each strategy over the swept values, or bars for a single configuration.

    Args:
        results: Results of `sweep`, or one of `simulate`.
        path: A file to write: `.png`, `.svg`, `.pdf`, or `.html` for a self-contained page.

    Returns:
        The matplotlib figure; as the last value of a notebook's cell it is shown. No window is opened.

    Raises:
        InvalidArgumentError: There are no results, the suffix is unknown, the file cannot be written, or matplotlib is
            not installed (the extra `plot`).

    Example:
        >>> results = paceline.sweep("resnet-50", workers=[2, 4, 8], strategy=["ring", "ps"])
        >>> figure = paceline.plot(results, "scaling.png")  # doctest: +SKIP
    """
    results = [results] if isinstance(results, Result) else results
    if not results:
        raise InvalidArgumentError("there are no results to plot", remedy="results of paceline.sweep")
    if path is None:
        need_matplotlib("a plot")
        return figure(results)
    return write(results, Path(path))


def write(results: Sequence[Result], target: Path, noun: str = "") -> Figure:
    """Draw results into a file, as `plot` does. `noun`: what ranks are called, as for `noun_of`."""
    check_plot(target)
    drawn = figure(results, noun)
    with replaced(target) as temporary:
        if target.suffix.lower() == ".html":
            from paceline.forecast.output.html import page

            temporary.write_text(page(results, drawn, noun), encoding="utf-8")
        else:
            save(drawn, temporary, target.suffix.lower().removeprefix("."))
    return drawn


def save(drawn: Figure, out: Path | IO[bytes], kind: str) -> None:
    """Write the figure; equal results give equal bytes."""
    import matplotlib as mpl

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": "paceline"}):
        drawn.savefig(out, format=kind, dpi=150, metadata=dates.get(kind))


def figure(results: Sequence[Result], noun: str = "") -> Figure:
    """Return the plot as a matplotlib figure; no window is opened. `noun`: as for `noun_of`."""
    noun = noun_of(results, noun)
    with style.context():
        swept = [axis for axis in _axes(noun) if varies([_value(it, axis[0]) for it in _relevant(results, axis)])]
        numbers = [axis for axis in swept if _is_axis(results, axis)]
        if not numbers:
            return _by_panels(results, noun, swept) if swept else bars(results, noun)
        return _lines(results, noun, numbers[0], [axis for axis in swept if axis is not numbers[0]])


def _is_axis(results: Sequence[Result], axis: Sequence[Any]) -> bool:
    """Return whether the values can be on a scale: not names, nor sizes of which one is "none"."""
    return axis[0] not in _NAMES and all(getattr(result, axis[0]) is not None for result in results)


def _relevant(results: Sequence[Result], axis: Sequence[Any]) -> list[Result]:
    """Return the results that vary; strategies without servers do not count for the number of servers."""
    return [result for result in results if axis[0] != "servers" or result.servers]


def bars(results: Sequence[Result], noun: str, width: float = 8.0) -> Figure:
    """Draw compute and exposed communication of each, fastest first; `width` in inches."""
    ordered = sorted(results, key=lambda result: result.iteration_s)
    drawn = style.new_figure(width, 1.7 + 0.36 * len(ordered))
    entries = _bars(drawn.add_subplot(), ordered)
    drawn.suptitle(f"Iteration time by strategy: {_where(results, noun)}")
    if len(entries) > 1:
        style.legend(drawn, entries, loc="outside lower center", ncols=2)
    return drawn


def _by_panels(results: Sequence[Result], noun: str, axes: Sequence[Any]) -> Figure:
    """Draw bars in a panel for each trace, library or bucket size."""
    panels = _panels(results, axes)
    _refuse_many(panels)
    drawn = style.new_figure(8.0, 0.8 + sum(1.1 + 0.36 * len(members) for members in panels.values()))
    heights = [1.1 + 0.36 * len(members) for members in panels.values()]
    grid: Any = drawn.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    entries: list[style.Entry] = []
    for part, (title, members) in zip(grid.flat, panels.items(), strict=True):
        entries = _bars(part, sorted(members, key=lambda result: result.iteration_s))
        part.set_title(title, fontsize="medium")
    drawn.suptitle(f"Iteration time by strategy: {_where(results, noun, with_trace=False)}")
    style.legend(drawn, entries, loc="outside lower center", ncols=2)
    return drawn


def _bars(axes: Axes, ordered: Sequence[Result]) -> list[style.Entry]:
    unit, word = units.time_unit(result.iteration_s for result in ordered)
    places = range(len(ordered))
    compute = [min(result.gpu_s, result.iteration_s) / unit for result in ordered]
    entries: list[style.Entry] = []
    if any(compute):
        entries.append((axes.barh(places, compute, color=style.PARTS["compute"]), "compute"))
    if any(offload := [(result.offload_s or 0.0) / unit for result in ordered]):
        entries.append((axes.barh(places, offload, left=compute, color=style.PARTS["offload"]), "offload"))
        compute = [low + high for low, high in zip(compute, offload, strict=True)]
    exposed = [max(0.0, result.iteration_s / unit - own) for result, own in zip(ordered, compute, strict=True)]
    if all(result.coordinator for result in ordered):
        left = compute
        for name in _COORDINATED:
            own = [(getattr(result, f"{name}_s") or 0.0) / unit for result in ordered]
            entries.append((axes.barh(places, own, left=left, color=style.PARTS[name]), name))
            left = [low + high for low, high in zip(left, own, strict=True)]
    else:
        words = "exposed communication"
        entries.append((axes.barh(places, exposed, left=compute, color=style.PARTS[words]), words))
    for place, result in zip(places, ordered, strict=True):
        axes.text(result.iteration_s / unit, place, f" {units.digits(result.iteration_s / unit, 3)}", va="center")
    axes.set_yticks(list(places), [distinct(result, ordered) for result in ordered])
    axes.invert_yaxis()
    axes.set_xlim(0, max(result.iteration_s for result in ordered) / unit * 1.1 or 1)
    axes.set_xlabel(f"iteration time ({word})")
    style.grid(axes, "x")
    return entries


def _where(results: Sequence[Result], noun: str, *, with_trace: bool = True) -> str:
    first = next((result for result in results if result.servers), results[0])
    where = [first.trace] if with_trace else []
    where += [units.count(first.workers, noun), units.rate(first.bandwidth_bps)]
    if first.servers:
        where.append(units.count(first.servers, "parameter server"))
    return ", ".join(where)


def _lines(results: Sequence[Result], noun: str, axis: Axis, others: Sequence[Any]) -> Figure:
    name, label, scale, _ = axis
    panels = _panels(results, others)
    _refuse_many(panels)
    computes = any(result.compute_s > 0 for result in results)
    baseline = next((result.baseline for result in results if result.baseline is not None), None)
    if baseline is not None:
        quantities: list[tuple[str, Value]] = [(f"speed-up over {baseline}", lambda result: result.speedup)]
    else:
        quantities = [iteration_time(results), _SAMPLES if computes else _BUS_BANDWIDTH]
    drawn = style.new_figure(11.5 if baseline is None else 8.0, 0.9 + 3.7 * len(panels))
    grid: Any = drawn.subplots(len(panels), len(quantities), squeeze=False, sharey="col")
    ideal = [rate for members in panels.values() for rate in _ideal(members, name, scale).values()]
    for row, (title, members) in zip(grid, panels.items(), strict=True):
        for axes, (words, value) in zip(row, quantities, strict=True):
            is_throughput = words == _SAMPLES[0]
            entries = draw_lines(axes, members, name, scale, value)
            if is_throughput:
                entries += draw_ideal(axes, members, name, scale)
            axes.set_ylabel(words)
            log = style.x_axis(axes, [getattr(result, name) / scale for result in _relevant(members, axis)], label)
            # Linear scaling is a line where both axes are of one kind.
            log_too = log if is_throughput and name == "workers" else None
            style.y_axis(axes, [*(value(it) for it in results), *(ideal if is_throughput else [])], log=log_too)
            if title:
                axes.set_title(title, fontsize="medium")
            if is_throughput or not computes or baseline is not None:
                style.legend(axes, entries, loc="center left", bbox_to_anchor=(1.0, 0.5))
    drawn.suptitle(_title(results, noun, axis, others))
    return drawn


def _refuse_many(panels: dict[str, list[Result]]) -> None:
    if len(panels) > _MOST_PANELS:
        raise InvalidArgumentError(f"--plot: {len(panels)} panels do not fit into one plot", remedy="fewer values")


def _panels(results: Sequence[Result], others: Sequence[Any]) -> dict[str, list[Result]]:
    """Group results by the swept values other than the x axis; strategies without servers are in every panel."""
    panels: dict[str, list[Result]] = {}
    servers = sorted({result.servers for result in results if result.servers})
    by_servers = any(other[0] == "servers" for other in others)
    for result in results:
        for count in [result.servers] if result.servers or not by_servers else servers:
            values = {"servers": count}
            words = [other[3](values[other[0]] if other[0] in values else _value(result, other[0])) for other in others]
            panels.setdefault(", ".join(words), []).append(result)
    return panels


def _title(results: Sequence[Result], noun: str, axis: Axis, others: Sequence[Any]) -> str:
    first = next((result for result in results if result.servers), results[0])
    varied = {axis[0], *(other[0] for other in others)}
    every = _axes(noun)
    fixed = [every[0], every[1], *([every[4]] if first.servers else [])]
    words = [words(getattr(first, name)) for name, _, _, words in fixed if name not in varied]
    trace = [] if "base_trace" in varied else [rows.base_trace(first)]
    what = "Iteration time and throughput" if first.baseline is None else f"Speed-up over {first.baseline}"
    return f"{what} by {axis[1].partition(' (')[0]}: {', '.join([*trace, *words])}"


def _series(results: Sequence[Result], name: str) -> dict[str, list[Result]]:
    series: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: float(getattr(result, name))):
        series.setdefault(distinct(result, results, servers=False), []).append(result)
    order: list[str] = [strategy.name for strategy in registered_strategies()]

    def place(name: str) -> tuple[int, int]:
        first = series[name][0]
        return order.index(first.strategy), coordinator_place(first.coordinator) if first.coordinator else -1

    return {name: series[name] for name in sorted(series, key=place)}


def draw_lines(axes: Axes, results: Sequence[Result], name: str, scale: float, value: Value) -> list[style.Entry]:
    """Draw one line for each way in which results differ; return legend entries."""
    lines, levels = [], []
    seen: list[style.Look] = []
    series = _series(results, name)
    several = len({result.coordinator for result in results}) > 1
    one_strategy = len({result.strategy for result in results}) == 1
    sharded = list(dict.fromkeys(result.sharded.sharding for result in results if result.sharded is not None))
    for series_name, members in series.items():
        points = [(getattr(result, name) / scale, value(result)) for result in members]
        known = [(x, y) for x, y in points if y is not None]
        look = style.strategy(members[0].strategy)
        if len(sharded) > 1 and members[0].sharded is not None:
            # Of one strategy, shardings have the colors; of several, they have the dashes.
            place = sharded.index(members[0].sharded.sharding)
            look = style.coordinator(place) if one_strategy else replace(look, line=(0.0, (2.0 + place, 1.0)))
        if several and (own := members[0].coordinator) is not None:
            # Of one strategy, coordinators have the colors; of several, they have the dashes.
            place = coordinator_place(own)
            dashes = (0.0, (2.0 + place, 1.0))
            look = style.coordinator(place) if one_strategy else replace(look, line=dashes)
        if look in seen:
            # What differs else: of one strategy it has the colors, of several the dashes.
            place = len(seen)
            look = style.coordinator(place) if one_strategy else replace(look, line=(0.0, (2.0 + place, 1.0)))
        seen.append(look)
        if name == "servers" and not members[0].servers and known:
            levels.append((axes.axhline(known[0][1], color=look.color, linewidth=1.8), series_name))
            continue
        lines.append(style.Line(series_name, [x for x, _ in known], [y for _, y in known], look))
    return [*style.draw_lines(axes, lines), *levels]


def iteration_time(results: Sequence[Result]) -> tuple[str, Value]:
    """Return the label and values of an axis."""
    unit, word = units.time_unit(result.iteration_s for result in results)
    return f"iteration time ({word})", lambda result: result.iteration_s / unit


def _bus_gigabits(result: Result) -> float | None:
    return None if result.bus_bandwidth_bps is None else result.bus_bandwidth_bps / 1e9


_SAMPLES: tuple[str, Value] = ("samples/s", lambda result: result.samples_per_s)
_BUS_BANDWIDTH: tuple[str, Value] = ("bus bandwidth (Gbps)", _bus_gigabits)


def draw_ideal(axes: Axes, results: Sequence[Result], name: str, scale: float) -> list[style.Entry]:
    """Draw the throughput of all workers without communication; return its legend entry."""
    ideal = _ideal(results, name, scale)
    [drawn] = axes.plot(sorted(ideal), [ideal[x] for x in sorted(ideal)], color=style.REFERENCE, linewidth=1)
    return [(drawn, "linear scaling" if name == "workers" else "no communication")]


def _ideal(results: Sequence[Result], name: str, scale: float) -> dict[float, float]:
    return {
        getattr(result, name) / scale: _linear(result) if name == "workers" else _uncommunicative(result)
        for result in results
        if result.compute_s > 0 and (name != "servers" or result.servers)
    }


def _uncommunicative(result: Result) -> float:
    """Return samples/s without communication."""
    return result.workers * result.batch / result.compute_s


def _linear(result: Result) -> float:
    """Return the samples/s that tables call linear scaling: those of a single worker, times the workers."""
    if result.samples_per_s is None or not result.scaling_efficiency:
        return _uncommunicative(result)
    return result.samples_per_s / result.scaling_efficiency
