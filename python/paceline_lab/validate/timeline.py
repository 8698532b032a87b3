"""The timelines of one cell, measured and simulated, side by side in one file for Perfetto.

Both start with an iteration: the simulation's first is aligned with the first measured one or, with parameter servers,
whose iterations overlap, with the very first. Earlier events of the run are left out.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline._internal.files import replaced
from paceline.forecast.run import result_of

from paceline_lab.replay.player import MARK
from paceline_lab.validate.cells import Cell
from paceline_lab.validate.forecasts import Costs, emulated, run_of
from paceline_lab.validate.real import CellFailedError, CellRun, Cluster, Emulator, play

_SIMULATED = 10_000_000
"""Added to the numbers of simulated processes; the numbers of simulated racks stay below it."""
_ITERATIONS = 2

Event = dict[str, Any]


def record(cluster: Cluster, emulator: Emulator, run: CellRun, model: tuple[str, Costs], path: Path) -> None:
    """Run and simulate the cell once more, and write the file. `model`: network and costs. Raises CellFailedError."""
    network, costs = model
    network = "fifo" if run.cell.needs_switch else network
    with tempfile.TemporaryDirectory(prefix="paceline-validate-") as name:
        real, simulated = Path(name) / "measured.json", Path(name) / "simulated.json"
        play(cluster, emulator, replace(run, timeline=real, iterations=_ITERATIONS, warmup=1))
        modeled = emulated(run.cell, costs)
        result_of(run_of(run.cell, run.cell.loaded(), network, modeled, iterations=_ITERATIONS, timeline=simulated))
        with replaced(path) as temporary:
            temporary.write_text(_text(both(_events(real), _events(simulated), first(run.cell))), encoding="utf-8")


def first(cell: Cell) -> int:
    """Return the measured iteration that is aligned with the simulation's first."""
    return 0 if cell.servers else 1


def both(real: Sequence[Event], simulated: Sequence[Event], number: int) -> list[Event]:
    """Return all events, the measured ones from that iteration on. Raises CellFailedError if it is missing."""
    start = _start(real, number)
    shifted = [{**event, "ts": event["ts"] - start} for event in _from(real, start)]
    other = [{**event, "pid": event["pid"] + _SIMULATED} for event in simulated]
    other = [{**event, "id": f"simulated.{event['id']}"} if "id" in event else event for event in other]
    return [*_named("measured", real, shifted, 0), *_named("simulated", simulated, other, 1)]


def _named(word: str, events: Sequence[Event], shown: Sequence[Event], place: int) -> Iterator[Event]:
    """Label processes as measured or simulated, and place them next to their counterpart."""
    for event in shown:
        if event["ph"] != "M" or event["name"] != "process_name":
            yield event
            continue
        name = event["args"]["name"]
        yield {**event, "args": {"name": f"{name}, {word}"}}
        order = {"sort_index": 2 * _place(name) + place}
        yield {"ph": "M", "pid": event["pid"], "tid": 0, "name": "process_sort_index", "args": order}


def _place(name: str) -> int:
    kind, _, number = name.partition(" ")
    kinds = ("worker", "server", "switch")
    return (kinds.index(kind) if kind in kinds else len(kinds)) * 100_000 + (int(number) if number.isdigit() else 0)


def _start(events: Sequence[Event], number: int) -> float:
    wanted = f"{MARK} {number}"
    begins = [float(event["ts"]) for event in events if event.get("cat") == MARK and event["name"] == wanted]
    if not begins:
        raise CellFailedError(f"the measured timeline has no '{wanted}'")
    return max(begins)


def _from(events: Sequence[Event], start: float) -> Iterator[Event]:
    """Return events from this time on, and the names of tracks; the end of an event stays with its beginning."""
    begun = {event["id"] for event in events if event["ph"] == "b" and event["ts"] >= start}
    for event in events:
        if event["ph"] == "M":
            yield {**event, "ts": start}
        elif event["id"] in begun if event["ph"] in "be" else event["ts"] >= start:
            yield event


def _events(path: Path) -> list[Event]:
    events: list[Event] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def _text(events: Sequence[Event]) -> str:
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'
