"""All-reduce of float32, in place: systems take turns, each turn a fresh short job, because waiting MPI ranks spin."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jobs
import limits
import summary
import systems
from environments import SkippedError
from systems import System

SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
QUICK_SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
MPI = ("openmpi", "mpich")
TUNED = ("openmpi-ucx", "mpich-single")
COMPARISONS = [
    summary.Comparison("Through torch", "torch-paceline", ("gloo",), (), "gloo"),
    summary.Comparison("Without torch", "paceline", MPI, TUNED, "the better MPI"),
    summary.Comparison("On TCP, through torch", "torch-paceline-tcp", ("gloo",), (), "gloo"),
    summary.Comparison("On TCP, without torch", "paceline-tcp", ("openmpi-tcp",), (), "Open MPI"),
]
Say = Callable[[str], None]


def available(names: Sequence[str], say: Say) -> tuple[list[System], dict[str, str]]:
    """The systems that can be measured here; says why the others cannot."""
    found, skipped = [], {}
    for name in names:
        try:
            systems.prepare(systems.SYSTEMS[name])
            found.append(systems.SYSTEMS[name])
        except SkippedError as reason:
            skipped[name] = str(reason)
            say(f"skipped: {reason}")
    return found, skipped


def measure(
    chosen: Sequence[System], ranks: int, sizes: Sequence[int], *, rounds: int, seconds: float, say: Say
) -> dict[str, Any]:
    """Seconds per call by system and size, one for each round, None for a job that failed; and the machine's limit."""
    chosen = [system for system in chosen if system.yields or ranks <= systems.cores()]
    result: dict[str, dict[str, list[float | None]]] = {
        system.name: {str(size): [] for size in sizes} for system in chosen
    }
    busy: list[float] = []
    abouts: dict[str, str] = {}
    rates: dict[str, list[float]] = {str(size): [] for size in sizes}
    least: dict[str, list[float | None]] = {str(size): [] for size in sizes}
    over_tcp: dict[str, list[float | None]] = {str(size): [] for size in sizes}
    words = ["--sizes", ",".join(map(str, sizes)), "--seconds", str(seconds)]
    patience_s = 60 + len(sizes) * (20 * seconds + 10)
    for number in range(rounds):
        for size, (rate, limit) in limits.measure(sizes, ranks).items():
            rates[str(size)].append(rate)
            least[str(size)].append(limit)
        if any(system.transport == "tcp" for system in chosen):
            for size, limit in limits.tcp_seconds(sizes, ranks).items():
                over_tcp[str(size)].append(limit)
        busy.append(systems.busy())
        if busy[-1] > 0.1:
            say(f"other work keeps {100 * busy[-1]:.0f} % of the cores' time busy: these figures are indicative only")
        turn = number % len(chosen)  # no system always runs first
        for system in [*chosen[turn:], *chosen[:turn]]:
            start = time.monotonic()
            try:
                results = jobs.run(system, ranks, words, patience_s)
            except jobs.JobError as error:
                print(f"failed: {error}", file=sys.stderr)
                results = None
            for size in sizes:
                measured = summary.slowest([each["seconds"][str(size)] for each in results]) if results else None
                result[system.name][str(size)].append(measured)
            if results:
                abouts[system.name] = results[0]["about"]
            say(f"{ranks} ranks, round {number + 1}/{rounds}: {system.name} {time.monotonic() - start:.1f} s")
    return {
        "times": result,
        "about": abouts,
        "limit": least,
        "limit_tcp": over_tcp,
        "copied_per_core": rates,
        "busy": busy,
    }


def by_size(rounds: dict[str, list[float | None]]) -> dict[int, list[float | None]]:
    """With integer keys, which JSON turned into strings."""
    return {int(size): times for size, times in rounds.items()}


def times(measured: dict[str, Any]) -> dict[str, dict[int, list[float | None]]]:
    """Seconds by system, size and round."""
    return {name: by_size(rounds) for name, rounds in measured["times"].items()}


def tables(measured: dict[str, dict[str, Any]]) -> list[summary.Table]:
    """One table per comparison and number of ranks."""
    titles = {name: system.title for name, system in systems.SYSTEMS.items()}
    result = []
    for comparison in COMPARISONS:
        for ranks, of_ranks in measured.items():
            of_transport = {"paceline": "limit", "paceline-tcp": "limit_tcp", "torch-paceline-tcp": "limit_tcp"}
            limit = by_size(of_ranks.get(of_transport.get(comparison.ours, ""), {}))
            table = summary.all_reduce_table(comparison, int(ranks), times(of_ranks), titles, limit)
            result += [table] if table else []
    return result
