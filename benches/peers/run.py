"""The runtime's all-reduce of float32, in place, beside its peers', and beside the machine's limit.

Systems take turns, each turn a fresh short job, because waiting MPI ranks spin. Training beside DDP over gloo, Horovod
and TensorFlow is compared by `paceline bench`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import limits
import summary
import systems
from paceline._internal import console
from paceline._internal.console import Column, render
from paceline_lab.bench.processes import EngineFailedError
from systems import System

SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
QUICK_SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
# Title, ours, its peers, what is only shown, and the name of the better peer.
COMPARISONS = (
    ("Through torch", "torch-paceline", ("gloo",), (), "gloo"),
    ("Without torch", "paceline", ("openmpi", "mpich"), ("openmpi-ucx", "mpich-single"), "the better MPI"),
    ("On TCP, through torch", "torch-paceline-tcp", ("gloo",), (), "gloo"),
    ("On TCP, without torch", "paceline-tcp", ("openmpi-tcp",), (), "Open MPI"),
)
LIMITS = {"paceline": "limit", "paceline-tcp": "limit_tcp", "torch-paceline-tcp": "limit_tcp"}
Times = dict[str, dict[int, list[float | None]]]
"""Seconds of a call by system and size, one for each round, None for a job that failed."""


def say(text: str) -> None:
    console.say([text], err=True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds, fewer sizes")
    parser.add_argument("--rounds", type=int, help="turns per system (default: 5)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each size in each turn")
    parser.add_argument("--ranks", type=lambda text: list(map(int, text.split(","))), default=[2, 4], help="as 2,4")
    parser.add_argument("--systems", type=_words(systems.SYSTEMS), help=f"some of {','.join(systems.SYSTEMS)}")
    parser.add_argument("--transport", choices=["shm", "tcp", "mpi", "grpc"], help="only systems on it")
    parser.add_argument("--json", type=Path, help="save the results to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    return parser.parse_args()


def _words(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}' is none of {', '.join(known)}")
        return words

    return parse


def available(names: Sequence[str]) -> list[System]:
    """The systems that can be measured here; says why the others cannot."""
    values = []
    for name in names:
        try:
            systems.prepare(systems.SYSTEMS[name])
            values.append(systems.SYSTEMS[name])
        except systems.SkippedError as reason:
            say(f"skipped: {reason}")
    return values


def measure(chosen: Sequence[System], ranks: int, sizes: Sequence[int], rounds: int, seconds: float) -> dict[str, Any]:
    """Return the times, and the machine's limits, likewise one for each round."""
    chosen = [system for system in chosen if system.yields or ranks <= systems.cores()]
    times: Times = {system.name: {size: [] for size in sizes} for system in chosen}
    least: dict[str, dict[int, list[float | None]]] = {name: {size: [] for size in sizes} for name in LIMITS.values()}
    busy, abouts = [], {}
    words = ["--sizes", ",".join(map(str, sizes)), "--seconds", str(seconds)]
    for number in range(rounds):
        for size, limit in limits.measure(sizes, ranks).items():
            least["limit"][size].append(limit)
        if any(system.transport == "tcp" for system in chosen):
            for size, limit in limits.tcp_seconds(sizes, ranks).items():
                least["limit_tcp"][size].append(limit)
        busy.append(systems.busy())
        if busy[-1] > 0.1:
            say(f"other work keeps {100 * busy[-1]:.0f} % of the cores' time busy: these figures are indicative only")
        turn = number % len(chosen)  # no system always runs first
        for system in [*chosen[turn:], *chosen[:turn]]:
            start = time.monotonic()
            results: list[Any] = []
            try:
                results = systems.measure(system, ranks, words, 60 + len(sizes) * (20 * seconds + 10))
                abouts[system.name] = results[0]["about"]
            except EngineFailedError as error:
                say(f"failed: {system.name}, {ranks} ranks: {error}")
            for size in sizes:
                slowest = summary.slowest([each["seconds"][str(size)] for each in results]) if results else None
                times[system.name][size].append(slowest)
            say(f"{ranks} ranks, round {number + 1}/{rounds}: {system.name} {time.monotonic() - start:.1f} s")
    return {"times": times, "about": abouts, "busy": busy, **least}


def table(comparison: tuple[Any, ...], measured: Mapping[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """Microseconds by size, speed relative to the better peer, and time relative to the limit; None without peers."""
    _, name, all_peers, others, versus = comparison
    times: Times = measured["times"]
    shown = [each for each in (*all_peers, *others, name) if each in times]
    peers = [times[each] for each in all_peers if each in times]
    if not peers:
        return None
    ours, least = times.get(name), measured.get(LIMITS.get(name, ""), {})
    header = ["size", *(systems.SYSTEMS[each].title for each in shown)]
    header += [f"times as fast as {versus}"] * bool(ours)
    header += [*["limit"] * bool(least), *["ours / limit"] * bool(least and ours)]
    rows = []
    for size in sorted({size for each in shown for size in times[each]}):
        row = [summary.size_text(size), *(summary.microseconds(summary.middle(times[each][size])) for each in shown)]
        if ours:
            row.append(str(summary.faster(summary.better([peer[size] for peer in peers]), ours[size]) or "–"))
        if least:
            row.append(summary.microseconds(summary.middle(least[size])))
            row += [str(summary.faster(ours[size], least[size]) or "–")] if ours else []
        rows.append(row)
    return header, rows


def show(measured: Mapping[int, Mapping[str, Any]], named: Sequence[str] = (), *, markdown: bool) -> None:
    """Print a table for each comparison and number of ranks, and one of the systems that were named."""
    for comparison in (*COMPARISONS, ("All-reduce", "", named, (), "")):
        for ranks, of_ranks in measured.items():
            if (result := table(comparison, of_ranks)) is None:
                continue
            header, rows = result
            lines = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]
            if not markdown:
                columns = [Column(name, left=not place) for place, name in enumerate(header)]
                lines = render(columns, [rows], highlight_first=False)
            console.say([f"{comparison[0]}, {ranks} ranks, microseconds:", "", *lines, ""])


def main() -> None:
    """Measure and show."""
    given = options()
    rounds = given.rounds or (2 if given.quick else 5)
    names = given.systems or (list(systems.SYSTEMS) if given.transport else systems.DEFAULT)
    chosen = available([name for name in names if given.transport in (None, systems.SYSTEMS[name].transport)])
    measured = {}
    for ranks in given.ranks:
        measured[ranks] = measure(chosen, ranks, QUICK_SIZES if given.quick else SIZES, rounds, given.seconds)
        if given.json is not None:
            given.json.write_text(json.dumps({"rounds": rounds, "all_reduce": measured}, indent=1) + "\n")
    show(measured, given.systems or (), markdown=given.markdown)


if __name__ == "__main__":
    main()
