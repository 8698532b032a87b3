"""How every picture and page looks: one palette, one meaning per color, and marks that say where a value comes from.

- A color says what: a strategy, a system, a coordinator, or what time is spent on. No color means two things.
- A mark says where from: lines and filled marks are simulated; hollow marks are published or measured.
- Lines that coincide are drawn as one, in the colors of all of them, with all their names.
- Throughput over workers has either linear or logarithmic axes, both of them, so that linear scaling is a line.

Colors are from Paul Tol's schemes (SRON/EPS/TN/09-002), which color-blind readers can distinguish: strategies from
"muted", systems from "bright" and "dark", coordinators from "vibrant", parts of an iteration from "light".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p", "d", "8", "H")
STRATEGIES = {
    "ps": "#CC6677",
    "ps-multicast": "#DDCC77",
    "ps-aggregation": "#AA4499",
    "ps-multicast-aggregation": "#117733",
    "async-ps": "#4400AA",
    "ring": "#332288",
    "ring-multicast": "#88CCEE",
    "recursive-doubling": "#882255",
    "halving-doubling": "#44AA99",
    "tree": "#999933",
    "hierarchical": "#000000",
    "sharded-ps": "#777777",
    "native": "#0077BB",
    "sharp": "#997700",
}
_MORE_STRATEGIES = ("#994455", "#004488", "#EE99AA")
SYSTEMS = {
    "Paceline": "#4477AA",
    "Horovod": "#EE6677",
    "DDP": "#228833",
    "Distributed TensorFlow": "#CCBB44",
    "Ray": "#66CCEE",
    "CUDA-aware MPI": "#AA3377",
    "NCCL": "#225522",
    "DDL": "#663333",
}
_MORE_SYSTEMS = ("#222255", "#666633", "#225555", "#555555", "#6699CC", "#AA7755", "#557799", "#775588")
COORDINATORS = ("#EE7733", "#33BBEE", "#009988", "#CC3311", "#EE3377")
"""By place in the registry."""
_COMMUNICATION = "#EE8866"
PARTS = {
    "forward": "#99DDFF",
    "backward": "#77AADD",
    "optimizer": "#44BB99",
    "compute": "#99DDFF",
    "exposed communication": _COMMUNICATION,
    "message": _COMMUNICATION,
    "collective": _COMMUNICATION,
    "all-reduce": _COMMUNICATION,
    "all-gather": "#DD9944",
    "reduce-scatter": "#8F5A2B",
    "compression": "#CCBBAA",
    "wait": "#DDDDDD",
    "input": "#EEDD88",
    "coordinator": "#FFAABB",
    "copy": "#AAAA00",
    "worker egress": _COMMUNICATION,
    "worker ingress": "#F4C4B3",
    "server egress": "#B2492D",
    "server ingress": "#7A2E1A",
    "inside the node": "#BBCC33",
    "rack uplink": "#4A1A0D",
    "leaf-spine link": "#4A1A0D",
    "edge-aggregation link": "#4A1A0D",
    "aggregation-core link": "#9E5B3C",
    "local link": "#4A1A0D",
    "global link": "#9E5B3C",
    "torus link": "#4A1A0D",
    "network": _COMMUNICATION,
    "host copies": "#AAAA00",
    "additions": "#CCBBAA",
    "latency": "#BBBBBB",
    "fusion buffer": "#AAAA00",
    "late ranks": "#DDDDDD",
    "framework overhead": "#C0A0D0",
    "slowed by NCCL kernels": "#6688AA",
    "offload": "#AA8855",
    "offload (GPU-host copies)": "#AA8855",
    "offload (CPU optimizer step)": "#88AA66",
    "offload (NVMe drive)": "#667744",
}
"""Colors of the parts of an iteration; shades of orange and brown are the network's."""
MEMORY = {
    "parameters": "#364B9A",
    "gradients": "#6EA6CD",
    "optimizer states": "#C2E4EF",
    "gathered FSDP units": "#FEDA8B",
    "communication buffers": "#F67E4B",
    "activations": "#A50026",
}
"""Colors of the parts of memory, from the scheme "sunset"."""
REFERENCE = "#999999"
"""Lines to compare with: linear scaling, the diagonal, zero."""
_COINCIDING = 0.01
"""Lines whose values differ by less at every point are drawn as one."""
_DASH = 5.0


@dataclass(frozen=True)
class Look:
    """The color, line and marker of a series."""

    color: str
    line: Any = "-"
    marker: str = "o"


@dataclass(frozen=True)
class Line:
    """A simulated series."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    look: Look


Entry = tuple[Any, str]
"""A legend's handle and label."""


def strategy(name: str) -> Look:
    """Return the look of a strategy, the same in every picture."""
    names = list(STRATEGIES)
    if name in STRATEGIES:
        return Look(STRATEGIES[name], marker=_MARKERS[names.index(name) % len(_MARKERS)])
    place = sum(map(ord, name))  # A new strategy has its own color once it is in the table.
    return Look(_MORE_STRATEGIES[place % len(_MORE_STRATEGIES)], marker=_MARKERS[place % len(_MARKERS)])


def systems(names: Iterable[str]) -> dict[str, Look]:
    """Return the looks of systems: their own, or the next free color for names that are not in the table."""
    looks: dict[str, Look] = {}
    known, more = [name.lower() for name in SYSTEMS], list(_MORE_SYSTEMS)
    colors = list(SYSTEMS.values())
    for place, name in enumerate(dict.fromkeys(names)):
        if name.lower() in known:
            own = known.index(name.lower())
            looks[name] = Look(colors[own], marker=_MARKERS[own])
        else:
            looks[name] = Look(more[place % len(more)], marker=_MARKERS[(len(known) + place) % len(_MARKERS)])
    return looks


def coordinator(place: int) -> Look:
    """Return the look of a coordinator, by its place in the registry."""
    return Look(COORDINATORS[place % len(COORDINATORS)], marker=_MARKERS[place % len(_MARKERS)])


def context() -> AbstractContextManager[None]:
    """Return a context in which figures have the common style."""
    import matplotlib as mpl

    return mpl.rc_context({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False})


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, which a notebook shows."""
    from paceline.forecast.output.drawing import Drawing

    return Drawing(figsize=(width, height), layout="constrained")


def draw_lines(axes: Axes, lines: Sequence[Line], *, width: float = 1.8, size: float = 5.0) -> list[Entry]:
    """Draw simulated series; return legend entries. Lines that coincide are one, dashed in the colors of all."""
    entries: list[Entry] = []
    groups = _coinciding(lines)
    for number, group in enumerate(groups):
        below = next((other[0] for other in groups[:number] if _is_part(group[0], other[0])), None)
        if below is not None and len(group) == 1:
            look = replace(group[0].look, line=(0.0, (_DASH, _DASH)))
            group = [replace(group[0], look=look, label=f"{group[0].label} (on {below.label})")]  # noqa: PLW2901
        handles = []
        for place, line in enumerate(group):
            own: dict[str, Any] = {"color": line.look.color, "linewidth": width}
            dashes = line.look.line if len(group) == 1 else (_DASH * place, (_DASH, _DASH * (len(group) - 1)))
            marks: dict[str, Any] = {"marker": line.look.marker, "markersize": size}
            every = (place % max(1, len(line.x)), len(group)) if len(line.x) > len(group) else None
            [drawn] = axes.plot(line.x, line.y, linestyle=dashes, markevery=every, **own, **marks)
            handles.append(drawn if len(group) == 1 else _key(line.look, size))
        entries.append((handles[0] if len(group) == 1 else tuple(handles), " = ".join(line.label for line in group)))
    return entries


def _coinciding(lines: Sequence[Line]) -> list[list[Line]]:
    groups: list[list[Line]] = []
    for line in lines:
        for group in groups:
            first = group[0]
            if list(first.x) == list(line.x) and all(
                abs(own - other) <= _COINCIDING * max(abs(own), abs(other))
                for own, other in zip(first.y, line.y, strict=True)
            ):
                group.append(line)
                break
        else:
            groups.append([line])
    return groups


def _is_part(line: Line, longer: Line) -> bool:
    """Return whether a line lies on a part of another one, which has more points."""
    there = dict(zip(longer.x, longer.y, strict=True))
    own = dict(zip(line.x, line.y, strict=True))
    return (
        1 < len(own) < len(there)
        and own.keys() <= there.keys()
        and all(abs(y - there[x]) <= _COINCIDING * max(abs(y), abs(there[x])) for x, y in own.items())
    )


def _key(look: Look, size: float) -> Any:  # noqa: ANN401
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look.color, marker=look.marker, markersize=size)


def draw_published(axes: Axes, x: Sequence[float], y: Sequence[float], look: Look) -> None:
    """Draw published or measured values: hollow marks without a line."""
    axes.plot(x, y, linestyle="", zorder=5, **hollow(look))


def hollow(look: Look) -> dict[str, Any]:
    """Return the keywords of a published or measured mark."""
    return {
        "marker": look.marker,
        "markersize": 9,
        "markerfacecolor": "white",
        "markeredgecolor": look.color,
        "markeredgewidth": 1.8,
        "color": look.color,
    }


def hollow_key(look: Look) -> Any:  # noqa: ANN401
    """Return the legend's handle of published or measured marks."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", **hollow(look))


def sources(published: str = "published") -> list[Entry]:
    """Return legend entries that say which marks are published and which are simulated."""
    gray = Look("#555555")
    return [(hollow_key(gray), published), (_key(gray, 5.0), "simulated")]


def legend(on: Any, entries: Sequence[Entry], **settings: Any) -> None:  # noqa: ANN401
    """Draw a legend of axes or of a figure; coinciding lines show the marks of all."""
    from matplotlib.legend_handler import HandlerTuple

    handles, labels = [handle for handle, _ in entries], [label for _, label in entries]
    given = {"frameon": False, "fontsize": "small", **settings}
    on.legend(handles, labels, handler_map={tuple: HandlerTuple(ndivide=None, pad=0.4)}, handlelength=2.4, **given)


def plain_ticks(*axes: Axis) -> None:
    """Set ticks of logarithmic axes at 1, 2 and 5, written as decimals."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def is_wide(values: Sequence[float | None], ratio: float = 4.0) -> bool:
    """Return whether positive values span more than a ratio, so that an axis is logarithmic."""
    positive = [value for value in values if value is not None]
    return bool(positive) and min(positive) > 0 and max(positive) > ratio * min(positive)


def x_axis(axes: Axes, values: Iterable[float], label: str, names: Sequence[str] | None = None) -> bool:
    """Set a tick for each value, true to scale; logarithmic, which is returned, where they differ fourfold."""
    from matplotlib.ticker import NullLocator

    ticks = sorted(set(values))
    log = is_wide(ticks)
    if log:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    written = list(names) if names is not None else [f"{tick:,.10g}" for tick in ticks]
    every = -(-len(ticks) // 10)
    axes.set_xticks(ticks[::every], written[::every])
    axes.set_xlabel(label)
    grid(axes)
    return log


def y_axis(axes: Axes, values: Sequence[float | None], *, log: bool | None = None) -> None:
    """Scale the axis from zero, or logarithmically: if asked to, or by default where values differ tenfold."""
    if (is_wide(values, 10.0) if log is None else log) and all(value is None or value > 0 for value in values):
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
    else:
        axes.set_ylim(0, 1.08 * max((value for value in values if value is not None), default=1.0) or 1.0)


def grid(axes: Axes, axis: str = "both") -> None:
    """Draw a light grid below everything."""
    axes.grid(axis=axis, color="0.92")  # type: ignore[arg-type]
    axes.set_axisbelow(True)
