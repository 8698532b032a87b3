"""The chart of a timeline: a lane for what a process computes and for each link it uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline import human

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LANES = 16
_COLOURS = {
    "forward": "#88CCEE",
    "backward": "#332288",
    "optimizer": "#44AA99",
    "wait": "#DDDDDD",
    "message": "#CC6677",
}
_WORDS = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "wait": "waiting",
    "message": "message",
}


def draw(events: Sequence[dict[str, Any]], width: float) -> Figure:
    """The lanes of the first processes, `width` in inches. What is too short to be seen is not drawn."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes, spans = _lanes(events)
    shown = dict(list(lanes.items())[:_MOST_LANES])
    unit, word = human.time_unit([max((span["ts"] + span["dur"]) * 1e-6 for span in spans)] if spans else [1.0])
    drawn = Figure(figsize=(width, 1.2 + 0.24 * len(shown)), layout="constrained")
    axes = drawn.add_subplot()
    used: dict[str, None] = {}
    for place, lane in enumerate(shown):
        for category, colour in _COLOURS.items():
            own = [span for span in spans if (span["pid"], span["tid"]) == lane and span.get("cat") == category]
            if own:
                used[category] = None
                ranges = [(span["ts"] * 1e-6 / unit, span["dur"] * 1e-6 / unit) for span in _joined(own)]
                axes.broken_barh(ranges, (place - 0.4, 0.8), facecolors=colour, linewidth=0)
    axes.set_yticks(range(len(shown)), list(shown.values()), fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time ({word})")
    axes.legend(
        handles=[Patch(color=_COLOURS[category], label=_WORDS[category]) for category in _COLOURS if category in used],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
        fontsize="small",
    )
    return drawn


def _lanes(events: Sequence[dict[str, Any]]) -> tuple[dict[tuple[int, int], str], list[dict[str, Any]]]:
    """Lanes that something happens on, by process and thread; and what happens."""
    names: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    spans = [event for event in events if event["ph"] == "X" and event.get("cat") in _COLOURS]
    used = sorted({(span["pid"], span["tid"]) for span in spans})
    return {lane: _named(names.get(lane[0], ""), threads.get(lane, "")) for lane in used}, spans


def _named(process: str, thread: str) -> str:
    """A link bears its end's name already."""
    return thread if thread.endswith(("gress", "inside the node")) else f"{process}: {thread}"


def _joined(spans: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Those that touch or overlap as one: fewer shapes, the same picture."""
    made: list[dict[str, float]] = []
    for span in sorted(spans, key=lambda span: float(span["ts"])):
        begin, end = float(span["ts"]), float(span["ts"]) + float(span["dur"])
        if made and begin <= made[-1]["ts"] + made[-1]["dur"] + 1e-3:
            made[-1]["dur"] = max(made[-1]["dur"], end - made[-1]["ts"])
        else:
            made.append({"ts": begin, "dur": end - begin})
    return made
