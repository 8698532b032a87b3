"""Many forecasts: the product of the values to sweep, on all cores, in the order of the values."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar, Unpack

from paceline._core import Cluster, Trace
from paceline._internal.system import cores
from paceline.catalog import names
from paceline.errors import InvalidArgumentError
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.settings.keywords import ScenarioOptions, SweepOptions
from paceline.settings.table import SETTINGS, SWEEP

E = TypeVar("E", bound=BaseException)
Progress = Callable[[int, int], None]

LOCAL: Literal["local"] = "local"
RAY: Literal["ray"] = "ray"


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep. It carries what was done.

    Args:
        results: Results by the place of their scenario in the sweep.
        scenarios: The number of scenarios that were asked for.

    Example:
        >>> try:
        ...     results = paceline.sweep("resnet-50", workers=[2, 4], strategy="ring")
        ... except paceline.SweepInterrupted as interrupted:
        ...     results = list(interrupted.results.values())
    """

    def __init__(self, results: Mapping[int, Any], scenarios: int) -> None:
        """See the class."""
        super().__init__(f"interrupted after {len(results)} of {scenarios} forecasts")
        self.results = dict(sorted(results.items()))
        self.scenarios = scenarios


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


def sweep(
    trace: str | Path | Trace | Sequence[str | Path | Trace],
    cluster: str | Path | Cluster | None = None,
    strategy: names.Strategy | Literal["all"] | Sequence[names.Strategy] = "all",
    *,
    workers: int | Sequence[int] | None = None,
    gpus: int | Sequence[int] | None = None,
    progress: Progress | None = None,
    executor: names.Executor = LOCAL,
    options: ScenarioOptions | None = None,
    strategies: names.Strategy | Literal["all"] | Sequence[names.Strategy] | None = None,
    **fields: Unpack[SweepOptions],
) -> list[Result]:
    """Forecast all combinations of the given values, on all cores.

    Args:
        trace: A file, a built-in name, `allreduce:100MB`, or a `Trace`; or a list of these.
        cluster: A file, a built-in name, or a `Cluster`; by default `flat`.
        strategy: One or several strategies; `"all"` stands for those that the cluster's switch supports, parameter
            servers last unless `servers` is given.
        workers: Numbers of ranks that train; required, unless `gpus` is given.
        gpus: The same, as one counts those of models.
        progress: Called from time to time with the number of finished scenarios and the total.
        executor: `"local"`, or `"ray"`: as tasks of a Ray cluster (docs/how-to/ray.md), with the same results.
        options: Other settings of a forecast by name (docs/reference/settings.md); each is passed to the strategies
            that use it.
        strategies: The former name of `strategy`.
        **fields: `library`, `bandwidth`, `latency`, `bucket_size`, `servers` and `compute_speedup`, each a value or a
            list of values to sweep; changes to the traces and options of models, such as `batch`, `gpu` and
            `checkpointing`; and fields of the cluster, such as `gpus_per_node=8`.

    Returns:
        A result for each scenario, ordered by trace, library, workers, bandwidth, latency, compute speed-up, bucket
        size, strategy and servers.

    Raises:
        InvalidArgumentError: A name is unknown, a value invalid, or an option has no effect on any of the strategies.
        JobError: The Ray cluster failed.
        SweepInterrupted: Ctrl-C; it holds the results so far.

    Example:
        >>> results = paceline.sweep("resnet-50", strategy=["ring", "ps"], workers=[2, 4], servers=2)
        >>> [(result.workers, result.strategy) for result in results]
        [(2, 'ring'), (2, 'ps'), (4, 'ring'), (4, 'ps')]
    """
    if strategies is not None:
        if strategy != "all":
            raise InvalidArgumentError("sweep(strategies=): is the former name of strategy=; give one of them")
        warnings.warn("sweep(strategies=) is now called strategy=", FutureWarning, stacklevel=2)
        strategy = strategies
    from paceline.forecast.prepare import prepare
    from paceline.forecast.request import Sweep

    if workers is None and gpus is None:
        raise InvalidArgumentError("give the numbers of ranks that train, such as workers=[2, 4]", setting="workers")
    given: dict[str, object] = {**(options or {}), **fields, "cluster": cluster, "strategy": strategy}
    given |= {"workers": workers, "gpus": gpus}
    request = Sweep.of(trace, given, SWEEP)
    return execute(prepare(request).scenarios, progress, executor)
