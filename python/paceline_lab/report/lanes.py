"""A timeline as lanes, one for a process's computation and one for each link it uses, and their chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline._internal import units
from paceline.forecast.output import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LANES = 16
_KINDS = ("forward", "backward", "optimizer", "wait", "message", "collective", "compression")
COLORS = {kind: style.PARTS[kind] for kind in _KINDS}
_WORDS = {"wait": "waiting"}


@dataclass(frozen=True)
class Lane:
    """One lane: category, beginning and duration in seconds of each span. Adjacent spans are merged."""

    name: str
    spans: Sequence[tuple[str, float, float]]


def lanes_of(events: Sequence[dict[str, Any]]) -> list[Lane]:
    """Return the lanes of a timeline in Chrome's format, by process and thread, without empty ones."""
    names: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X" and event.get("cat") in COLORS:
            spans.setdefault((event["pid"], event["tid"]), []).append(event)
    return [
        Lane(_named(names.get(pid, ""), threads.get((pid, tid), "")), _joined(spans[pid, tid]))
        for pid, tid in sorted(spans)
    ]


def _named(process: str, thread: str) -> str:
    """Return a lane's name; that of a link already contains the name of its end."""
    return thread if thread.endswith(("gress", "inside the node")) else f"{process}: {thread}"


def _joined(events: Sequence[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Merge spans of a category that touch or overlap: fewer shapes, the same picture."""
    made: list[tuple[str, float, float]] = []
    for category in COLORS:
        last: tuple[float, float] | None = None
        for event in sorted((it for it in events if it["cat"] == category), key=lambda it: float(it["ts"])):
            begin, end = float(event["ts"]) * 1e-6, (float(event["ts"]) + float(event["dur"])) * 1e-6
            if last is not None and begin <= last[1] + 1e-9:
                last = (last[0], max(last[1], end))
                made[-1] = (category, last[0], last[1] - last[0])
            else:
                last = (begin, end)
                made.append((category, begin, end - begin))
    return made


def draw(events: Sequence[dict[str, Any]], width: float) -> Figure:
    """Draw the first lanes, `width` in inches."""
    from matplotlib.patches import Patch

    lanes = lanes_of(events)[:MOST_LANES]
    ends = [begin + duration for lane in lanes for _, begin, duration in lane.spans]
    unit, word = units.time_unit([max(ends, default=1.0)])
    drawn = style.new_figure(width, 1.2 + 0.24 * len(lanes))
    axes = drawn.add_subplot()
    for place, lane in enumerate(lanes):
        for category, color in COLORS.items():
            ranges = [(begin / unit, duration / unit) for kind, begin, duration in lane.spans if kind == category]
            if ranges:
                axes.broken_barh(ranges, (place - 0.4, 0.8), facecolors=color, linewidth=0)
    used = {kind for lane in lanes for kind, _, _ in lane.spans}
    axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time ({word})")
    axes.legend(
        handles=[Patch(color=color, label=_WORDS.get(kind, kind)) for kind, color in COLORS.items() if kind in used],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
        fontsize="small",
    )
    return drawn
