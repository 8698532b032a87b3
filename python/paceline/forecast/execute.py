"""Executes scenarios on all cores, in the order in which they are given."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Literal, TypeVar

from paceline._internal.system import cores
from paceline.errors import InvalidArgumentError
from paceline.forecast.progress import Progress, SweepInterrupted
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.settings.table import SETTINGS

E = TypeVar("E", bound=BaseException)

LOCAL: Literal["local"] = "local"
RAY: Literal["ray"] = "ray"


def execute(runs: Sequence[Scenario], progress: Progress | None = None, executor: str = LOCAL) -> list[Result]:
    """Simulate all runs on all cores. On Ctrl-C no further run starts, and those that run are not waited for.

    Args:
        runs: What to simulate.
        progress: Called from time to time with the number of finished runs and the total.
        executor: `"local"`, or `"ray"`: as tasks of a Ray cluster (docs/how-to/ray.md), with the same results.

    Returns:
        The results, in the order of the runs.

    Raises:
        InvalidArgumentError: That of the first run that failed.
        JobError: The Ray cluster failed.
        SweepInterrupted: Ctrl-C.
    """
    if find_executor(executor) == RAY:
        from paceline.forecast.ray_executor import execute as execute_by_ray

        return execute_by_ray(runs, progress, lambda error, run: _named(error, run, len(runs)))
    finished: SimpleQueue[int] = SimpleQueue()
    # Many workers take longest: started first, they leave no core idle at the end.
    waiting = sorted(range(len(runs)), key=lambda index: runs[index].workers)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        with suppress(IndexError):  # Nothing is waiting any more.
            while True:
                index = waiting.pop()
                # After an error only the runs before it matter, so that the same mistake always gives the same message.
                if not errors or index < min(errors.copy()):
                    try:
                        results[index] = result_of(runs[index])
                    except BaseException as error:  # handed to the caller's thread
                        errors[index] = error
                finished.put(index)

    for _ in range(min(cores(), len(runs))):
        threading.Thread(target=work, name="paceline simulation").start()
    done = 0
    try:
        while done < len(runs):
            with suppress(Empty):
                finished.get(timeout=0.2)
                done += 1
            if progress is not None:
                progress(done, len(runs))
    except KeyboardInterrupt:
        raise SweepInterrupted(results.copy(), len(runs)) from None
    finally:
        waiting.clear()
    if errors:
        first = min(errors)
        named = _named(errors[first], runs[first], len(runs))
        raise named
    return [results[index] for index in range(len(runs))]


def find_executor(name: str) -> str:
    """Return the executor of this name. Raises InvalidArgumentError if there is none."""
    return str(SETTINGS["executor"].check(name))


def _named(error: E, scenario: Scenario, scenarios: int) -> E | InvalidArgumentError:
    """If there are several scenarios, name the one with the invalid argument."""
    if isinstance(error, InvalidArgumentError) and scenarios > 1:
        return error.within(f"{scenario.strategy.name} with {scenario.workers} workers")
    return error
