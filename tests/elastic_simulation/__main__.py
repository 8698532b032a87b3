"""Searches for schedules that violate an invariant: `python -m elastic_simulation --seconds 60`, in tests/.

Prints schedules a second, states reached, and violations. A violation is shrunk and printed as a scenario that
`corpus.py` takes. Exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from elastic_simulation import exhaustive
from elastic_simulation.scenario import Result, Scenario, draw, run, shrink
from elastic_simulation.systematic import two_ranks

_MOST_SHOWN = 5


class SearchResult:
    """What a search has found."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.schedules = 0
        self.turns = 0
        self.states: set[Any] = set()
        self.texts: set[str] = set()
        self.codes: dict[str, int] = {}
        self.bad: list[Scenario] = []

    def add(self, result: Result) -> None:
        """Count a schedule."""
        self.schedules += 1
        self.turns += int(result.log[-1].split()[0]) if result.log else 0
        self.states |= result.states
        self.texts |= result.texts
        self.codes[str(result.code)] = self.codes.get(str(result.code), 0) + 1
        if result.violations:
            self.bad.append(result.scenario)

    def merge(self, other: SearchResult) -> None:
        """Add what another search has found."""
        self.schedules += other.schedules
        self.turns += other.turns
        self.states |= other.states
        self.texts |= other.texts
        for code, number in other.codes.items():
            self.codes[code] = self.codes.get(code, 0) + number
        self.bad += other.bad


def search(scenarios: Iterable[Scenario], seconds: float = float("inf"), most: int | None = None) -> SearchResult:
    """Run scenarios until the time is over, or so many have violated an invariant."""
    result, until = SearchResult(), time.monotonic() + seconds
    for scenario in scenarios:
        result.add(run(scenario))
        if time.monotonic() >= until or (most is not None and len(result.bad) >= most):
            break
    return result


def seeds(first: int, step: int = 1) -> Iterator[Scenario]:
    """Return random scenarios from a seed on."""
    return (draw(seed) for seed in count(first, step))


def _part(arguments: tuple[int, int, float]) -> SearchResult:
    first, step, seconds = arguments
    return search(seeds(first, step), seconds, most=_MOST_SHOWN)


def main() -> int:
    """Search; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m elastic_simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to search at random")
    parser.add_argument("--seed", type=int, help="the first seed; else one from the clock")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed and print its log")
    parser.add_argument("--systematic", action="store_true", help="the small worlds instead, all of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    given = parser.parse_args()
    if given.replay is not None:
        result = run(draw(given.replay))
        print("\n".join([repr(result.scenario), *result.log, f"exit code {result.code}", *result.violations]))
        return int(bool(result.violations))
    begin = time.monotonic()
    if given.systematic:
        reached = exhaustive.explore()
        print(f"exhaustive: {reached.states} states, {reached.steps} steps, {len(reached.violations)} violations")
        for violation in reached.violations[:_MOST_SHOWN]:
            print("\n".join(["", *violation]))
        answer = search(two_ranks())
        wrong = len(reached.violations)
    else:
        first = int(time.time()) * 1000 if given.seed is None else given.seed
        print(f"elastic: seeds from {first} on, {given.seconds:g} s, {given.jobs} at a time")
        parts = [(first + part, given.jobs, given.seconds) for part in range(given.jobs)]
        answer, wrong = SearchResult(), 0
        if given.jobs == 1:
            answer = _part(parts[0])
        else:
            with multiprocessing.Pool(given.jobs) as pool:
                for each in pool.map(_part, parts):
                    answer.merge(each)
    took = time.monotonic() - begin
    figures = {
        "schedules": answer.schedules,
        "schedules_per_s": round(answer.schedules / took, 1),
        "turns": answer.turns,
        "states": len(answer.states),
        "texts": len(answer.texts),
        "exit_codes": answer.codes,
        "violations": len(answer.bad) + wrong,
        "seconds": round(took, 1),
    }
    print(
        f"elastic: {answer.schedules} schedules, {figures['schedules_per_s']} a second, {answer.turns} events, "
        f"{len(answer.states)} states of the driver, {len(answer.texts)} messages, {figures['violations']} violations"
    )
    for scenario in answer.bad[:_MOST_SHOWN]:
        _show(scenario)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    return int(bool(figures["violations"]))


def _show(scenario: Scenario) -> None:
    small = shrink(scenario)
    print(f"\nseed {scenario.seed}: {'; '.join(run(scenario).violations[:3])}\nshrunk to {small.scenario!r}")
    print("\n".join(small.log[-40:]))
    print("; ".join(small.violations))


if __name__ == "__main__":
    sys.exit(main())
