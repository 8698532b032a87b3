"""Forecasts as Ray tasks: the sweeps of `--executor ray`.

Traces and clusters are put into the object store once; a task gets them and the other fields of its run, and returns
the same result as a local run. Ray repeats tasks that die with their node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline._core import Cluster as Machine
from paceline._core import Trace, __version__
from paceline.errors import InvalidArgumentError, JobError
from paceline.forecast.progress import SweepInterrupted
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.ray.cluster import check_version, connected

_LOOK_S = 0.2
_FIRST_S = 100.0
"""Time for Ray to run a first task, as for a placement group."""
_AHEAD = 4
"""Tasks submitted to Ray at a time, per CPU of the cluster."""
_STORE = 200_000_000  # Bytes of the object store of a cluster started for the sweep.


@dataclass(frozen=True)
class _Refused:
    """An InvalidArgumentError, as returned by a task."""

    error: InvalidArgumentError


def execute(
    runs: Sequence[Scenario],
    progress: Callable[[int, int], None] | None = None,
    named: Callable[[InvalidArgumentError, Scenario], InvalidArgumentError] = lambda error, _: error,
) -> list[Result]:
    """Simulate all runs on the cluster of RAY_ADDRESS, or on one started here, and return results in their order.

    Raises the InvalidArgumentError of the first run that fails, as `named` makes it; JobError if there is no cluster,
    no CPU of it within 100 s, or a task that dies repeatedly; MissingRayError.
    """
    with connected(output=False, object_store_bytes=_STORE) as cluster:
        sweep = _Sweep(cluster.ray, runs)
        sweep.check()
        return sweep.run(progress or (lambda *_: None), named)


class _Sweep:
    def __init__(self, ray: Any, runs: Sequence[Any]) -> None:  # noqa: ANN401
        self._ray, self._runs = ray, runs
        self._put: dict[int, Any] = {}
        self._task = ray.remote(_result)

    def check(self) -> None:
        """Check that there is a CPU, and the same Paceline. Raises JobError, InvalidArgumentError."""
        first = self._ray.remote(_version).remote()
        if not self._ray.wait([first], timeout=_FIRST_S)[0]:
            there, free = self._ray.cluster_resources(), self._ray.available_resources()
            raise JobError(
                f"no CPU of Ray within {_FIRST_S:g} s: {free.get('CPU', 0.0):g} of {there.get('CPU', 0.0):g} are free",
                remedy="ray status (shows what is running), or drop --executor ray",
            )
        try:
            version, python = self._ray.get(first)
        except self._ray.exceptions.RayTaskError as error:
            raise InvalidArgumentError(
                f"Ray's workers cannot import paceline ({error.cause})",
                remedy="paceline on Ray's nodes, or drop --executor ray",
            ) from None
        check_version(version, "Ray's cluster")
        if python != sys.version_info[:2]:
            raise InvalidArgumentError(
                f"Ray's workers run Python {python}, not {sys.version_info[:2]}",
                remedy=f"Python {sys.version_info[0]}.{sys.version_info[1]} on Ray's nodes",
            )

    def run(
        self, progress: Callable[[int, int], None], named: Callable[[InvalidArgumentError, Any], InvalidArgumentError]
    ) -> list[Any]:
        ray, runs = self._ray, self._runs
        # Many workers take longest: started first, they leave no core idle at the end.
        waiting = sorted(range(len(runs)), key=lambda index: runs[index].workers)
        most = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        under_way: dict[Any, int] = {}
        results: dict[int, Any] = {}
        refused: dict[int, InvalidArgumentError] = {}
        done = 0
        try:
            while waiting or under_way:
                while waiting and len(under_way) < most:
                    index = waiting.pop()
                    # After an error only the runs before it matter: the same mistake always gives the same message.
                    if refused and index > min(refused):
                        done += 1
                    else:
                        under_way[self._ask(runs[index])] = index
                for ref in ray.wait(list(under_way), num_returns=1, timeout=_LOOK_S)[0] if under_way else ():
                    index = under_way.pop(ref)
                    result = self._get(ref, runs[index])
                    if isinstance(result, _Refused):
                        refused[index] = result.error
                    else:
                        results[index] = result
                    done += 1
                progress(done, len(runs))
        except KeyboardInterrupt:
            raise SweepInterrupted(results, len(runs)) from None
        if refused:
            first = min(refused)
            raise named(refused[first], runs[first])
        return [results[index] for index in range(len(runs))]

    def _ask(self, run: Any) -> Any:  # noqa: ANN401
        rest = replace(run, trace=None, cluster=None)
        return self._task.remote(self._shared(run.trace), self._shared(run.cluster), rest)

    def _shared(self, value: Trace | Machine) -> Any:  # noqa: ANN401
        """Return a reference to the object; the runs keep the object alive, so its id stays unique."""
        if id(value) not in self._put:
            self._put[id(value)] = self._ray.put(value)
        return self._put[id(value)]

    def _get(self, ref: Any, run: Any) -> Any:  # noqa: ANN401
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            words = " ".join(str(error).split())[:300]
            raise JobError(
                f"a forecast with {run.workers} workers: its Ray task died repeatedly: {words}",
                remedy="drop --executor ray",
            ) from None


def _result(trace: Trace, cluster: Machine, rest: Any) -> Any:  # noqa: ANN401
    try:
        return result_of(replace(rest, trace=trace, cluster=cluster))
    except InvalidArgumentError as error:
        return _Refused(error)


def _version() -> tuple[str, tuple[int, int]]:
    return __version__, sys.version_info[:2]
