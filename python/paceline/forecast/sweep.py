"""Many forecasts: the product of the values to sweep, on all cores, in the order of the values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from paceline._core import Cluster, Trace
from paceline._internal.system import cores
from paceline.catalog.library import load_cluster, load_trace
from paceline.catalog.strategies import KNOBS, Strategy, all_strategies, check_knobs, feasible, find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import Result, Run, core_options

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Progress = Callable[[int, int], None]

LOCAL, RAY = EXECUTORS = ("local", "ray")


def plan(
    trace: Trace,
    clusters: Sequence[Cluster],
    strategies: Sequence[Strategy],
    *,
    workers: Sequence[int],
    servers: Sequence[int | None],
    compute_speedups: Sequence[float | None],
    options: dict[str, Any],
) -> list[Run]:
    """The runs of a sweep, ordered by workers, cluster, compute speed-up, strategy and servers.

    A knob reaches those strategies that use it: one without servers is run once, whatever their number.
    """
    runs = []
    for count, cluster, speedup, strategy in product(workers, clusters, compute_speedups, strategies):
        own = {name: value for name, value in options.items() if name not in KNOBS or name in strategy.knobs}
        for server_count in servers if "servers" in strategy.knobs else [None]:
            settings = {**own, "workers": count, "servers": server_count, "compute_speedup": speedup}
            runs.append(Run(trace, cluster, {"strategy": strategy.name, **core_options(settings)}))
    return runs


def execute(runs: Sequence[Run], progress: Progress | None = None, executor: str = LOCAL) -> list[Result]:
    """Simulate all runs on all cores; results stand in the order of the runs.

    Raises the first failed run's InvalidArgumentError.

    progress is called with how many are done and their number, now and then. On Ctrl-C no further run starts. executor:
    local, or ray: as tasks of a Ray cluster (docs/how-to/ray.md), with the same results.
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
        with suppress(IndexError):  # nothing is waiting any more
            while True:
                index = waiting.pop()
                # After an error only the runs before it matter: the same mistake gives the same message every time.
                if not errors or index < min(errors.copy()):
                    try:
                        results[index] = runs[index].result()
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
    finally:
        waiting.clear()
    if errors:
        first = min(errors)
        raise _named(errors[first], runs[first], len(runs))
    return [results[index] for index in range(len(runs))]


def find_executor(name: str) -> str:
    """Where sweeps run. Raises InvalidArgumentError for what is none of them."""
    if name not in EXECUTORS:
        raise InvalidArgumentError(f"executor: '{name[:80]}' is unknown; it is one of {', '.join(EXECUTORS)}")
    return name


def _named(error: E, run: Run, runs: int) -> E | InvalidArgumentError:
    """Say which run of several the user's mistake stopped."""
    if isinstance(error, InvalidArgumentError) and runs > 1:
        return InvalidArgumentError(f"{run.strategy.name} with {run.workers} workers: {error}")
    return error


def sweep(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster | None = None,
    strategies: str | Sequence[str] = "all",
    *,
    workers: int | Sequence[int],
    bandwidth: str | Sequence[str] | None = None,
    servers: int | Sequence[int] | None = None,
    compute_speedup: float | Sequence[float] | None = None,
    progress: Progress | None = None,
    executor: str = LOCAL,
    options: dict[str, Any] | None = None,
    **cluster_fields: object,
) -> list[Result]:
    """Forecast the product of all values given, on all cores.

    Results are ordered by workers, bandwidth, compute speed-up, strategy and servers. `strategies="all"`: those that
    the cluster's switch can do. options: any other option of `paceline.simulate`, by its name; it reaches the
    strategies that use it. progress is called with the number of runs done and of all.
    executor: local or ray. Raises InvalidArgumentError.
    """
    if "strategy" in cluster_fields:
        raise InvalidArgumentError("sweep(strategy=): it takes several; write strategies=")
    machine = load_cluster(cluster, **cluster_fields)
    if strategies == "all":
        asked = feasible(all_strategies(), machine)[0]
    else:
        words = [strategies] if isinstance(strategies, str) else strategies
        asked = list(dict.fromkeys(find_strategy(word) for word in words))
    extra = {name: value for name, value in (options or {}).items() if value is not None}
    server_counts = _several(servers)
    check_knobs(asked, [*extra, *(["servers"] if server_counts != [None] else [])])
    rates: list[str | None] = [None]
    if bandwidth is not None:
        rates = [bandwidth] if isinstance(bandwidth, str) else [*bandwidth]
    runs = plan(
        load_trace(trace),
        [load_cluster(machine, bandwidth=rate) for rate in rates],
        asked,
        workers=_several(workers),
        servers=server_counts,
        compute_speedups=_several(compute_speedup),
        options=extra,
    )
    return execute(runs, progress, executor)


def _several(values: T | Sequence[T]) -> list[T]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        return [values]
    if not values:
        raise InvalidArgumentError("an empty list of values to sweep; leave it out or give some")
    return list(values)
