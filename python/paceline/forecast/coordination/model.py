"""Forecasts of training under a coordinator, at any scale: docs/explanation/coordinator-model.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline import _core
from paceline._core import Cluster, Trace
from paceline._internal.system import cores
from paceline.catalog.strategies import all_coordinators, find_coordinator
from paceline.forecast.sweep import LOCAL, RAY, find_executor
from paceline.settings.table import naming_core_errors

ITERATIONS = 500


def find_coordinators(words: Sequence[str]) -> list[str]:
    """Return the names of the coordinators that these words mean, each once; `all` stands for all.

    Raises InvalidArgumentError, which suggests a similar name.
    """
    found: dict[str, None] = {}
    for word in words:
        found |= {it.name: None for it in all_coordinators()} if word == "all" else {find_coordinator(word): None}
    return list(found)


@dataclass(frozen=True)
class CoordinatedRun:
    """A forecast to make. `contention_s`: how long input pipeline and graph scheduling are both active."""

    trace: Trace
    cluster: Cluster
    coordinator: str
    workers: int
    strategy: str = "native"
    iterations: int = ITERATIONS
    seed: int = 0
    overlap: bool = False
    contention_s: float | None = None
    graph_nodes: float | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    def result(self) -> CoordinatedResult:
        """Simulate it, without the GIL. Raises InvalidArgumentError."""
        options = {
            "coordinator": self.coordinator,
            "strategy": self.strategy,
            "workers": self.workers,
            "iterations": self.iterations,
            "seed": self.seed,
            "overlap": self.overlap,
            "contention_s": self.contention_s,
            "graph_nodes": self.graph_nodes,
            "constants": dict(self.constants),
        }
        with naming_core_errors():
            forecast = json.loads(_core.coordinate(self.trace, self.cluster, json.dumps(options)))
        step = json.loads(self.trace.summary())
        alone = step["forward_s"] + step["backward_s"] + step["optimizer_s"]
        iteration_s = forecast["iteration_s"]
        return CoordinatedResult(
            trace=step["name"],
            strategy=self.strategy,
            coordinator=forecast["coordinator"],
            workers=self.workers,
            bandwidth_bps=_core.parse_rate(json.loads(self.cluster.to_json())["bandwidth"]),
            iteration_s=iteration_s,
            samples_per_s=self.workers * step["batch"] / iteration_s if alone else None,
            scaling_efficiency=alone / iteration_s if alone else None,
            **forecast["breakdown"],
            latest_s=forecast["latest_s"],
            contention_s=forecast["contention_s"],
            exposed_communication_s=iteration_s - alone,
            forward_s=step["forward_s"],
            backward_s=step["backward_s"],
            optimizer_s=step["optimizer_s"],
            bytes_sent_per_worker=forecast["bytes_sent_per_worker"],
            messages=forecast["messages"],
            batch=step["batch"],
            gradient_bytes=step["gradient_bytes"],
            buckets=forecast["buckets"],
        )


@dataclass(frozen=True)
class CoordinatedResult:
    """A forecast; times are seconds per iteration, means over processes and iterations.

    compute_s, coordinator_s, copy_s and collective_s are exclusive and add up to iteration_s. latest_s is the lateness
    of the latest process; one of the parts contains it as waiting.
    """

    trace: str
    strategy: str
    coordinator: str
    workers: int
    bandwidth_bps: float
    iteration_s: float
    samples_per_s: float | None
    scaling_efficiency: float | None
    compute_s: float
    coordinator_s: float
    copy_s: float
    collective_s: float
    latest_s: float
    contention_s: float
    exposed_communication_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    bytes_sent_per_worker: float
    messages: int
    batch: int
    gradient_bytes: int
    buckets: int

    def to_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it; a coordinator has no servers."""
        return {**asdict(self), "servers": 0}


def execute(
    runs: Sequence[CoordinatedRun], progress: Callable[[int, int], None] | None = None, executor: str = LOCAL
) -> list[CoordinatedResult]:
    """Simulate all runs on all cores, or as tasks of a Ray cluster (executor="ray"), and return results in their order.

    Raises the InvalidArgumentError of the first run that failed.
    """
    if find_executor(executor) == RAY:
        from paceline.forecast.ray_executor import execute as execute_by_ray

        return execute_by_ray(runs, progress)
    with ThreadPoolExecutor(max_workers=min(cores(), max(1, len(runs)))) as pool:
        waiting = [pool.submit(run.result) for run in runs]
        try:
            for done, _ in enumerate(as_completed(waiting), 1):
                if progress is not None:
                    progress(done, len(runs))
            return [future.result() for future in waiting]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
