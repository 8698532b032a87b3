"""Forecast one configuration: `paceline.simulate(trace, cluster, strategy) -> Result`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Unpack

from paceline import _core
from paceline._core import Cluster, Trace
from paceline.catalog import names
from paceline.catalog.strategies import KNOBS, Strategy, find_strategy
from paceline.forecast.coordination.model import Coordination
from paceline.settings.keywords import CoreOptions, SimulateOptions
from paceline.settings.table import SETTINGS, SIMULATE, naming_core_errors

COORDINATED = ("coordinator", "coordinator_s", "copy_s", "collective_s", "latest_s", "contention_s")
"""Fields of a result that it has under a coordinator."""


@dataclass(frozen=True)
class LinkUse:
    """How busy the links of one kind were, in seconds per iteration."""

    kind: str
    links: int
    busiest_s: float
    mean_s: float


@dataclass(frozen=True)
class Busy:
    """How long one worker computed, or one link was occupied, in seconds per iteration."""

    name: str
    kind: str
    busy_s: float


@dataclass(frozen=True)
class PathPart:
    """One part of the critical path, in seconds per iteration."""

    part: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """A forecast. Times are seconds per iteration in the steady state; see docs/explanation/models.md."""

    trace: str
    strategy: str
    workers: int
    """Ranks that train."""
    servers: int
    """Parameter servers; 0 for a strategy without servers."""
    bandwidth_bps: float
    """Rate of a node in bits per second, each way."""
    iteration_s: float
    """Duration of an iteration."""
    samples_per_s: float | None
    """Samples of all workers per second; None if the trace does not know its batch."""
    scaling_efficiency: float | None
    """Samples per second, divided by workers times the rate of one worker alone."""
    exposed_communication_s: float
    """Iteration time beyond the computation of one worker alone."""
    forward_s: float
    backward_s: float
    optimizer_s: float
    bytes_sent_per_worker: float
    """Bytes that a worker sends in an iteration."""
    messages: int
    """Messages of all ranks in an iteration."""
    batch: int
    """Samples of a worker in an iteration."""
    gradient_bytes: int
    buckets: int
    links: tuple[LinkUse, ...]
    """Use of links by kind."""
    critical_path: tuple[PathPart, ...]
    """Parts of the critical path, largest first."""
    queued_s: float | None
    """Time that messages waited for a link; None if the network model has no queues."""
    notes: tuple[str, ...]
    """Notes, such as what a degenerate case was reduced to."""
    algorithm_bandwidth_bps: float | None = None
    """Bytes over time, for traces without computation."""
    bus_bandwidth_bps: float | None = None
    """Bus bandwidth as nccl-tests defines it, for traces without computation."""
    compute_speedup: float = 1.0
    """Factor by which computation was sped up."""
    busy: tuple[Busy, ...] | None = None
    """Busy time of every worker and link, if `detail` was requested."""
    coordinator: str | None = None
    """The coordinator's policy; None: without one. Otherwise computation and the next three add up to an iteration."""
    coordinator_s: float | None = None
    """Waiting until a bucket's exchange begins: ranks that are not ready, late wake-ups, cycles, agreement."""
    copy_s: float | None = None
    """Copies into and out of the fusion buffer."""
    collective_s: float | None = None
    """Inside the exchange: the network, and waiting for ranks that arrive later."""
    latest_s: float | None = None
    """Mean lateness of the latest rank, which the other parts include as waiting."""
    contention_s: float | None = None
    """How long a rank's input pipeline and graph scheduling are both active."""

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Return the result from the native module's JSON.

        Args:
            text: The JSON.
        """
        values: dict[str, Any] = json.loads(text)
        values["links"] = tuple(LinkUse(**link) for link in values["links"])
        values["critical_path"] = tuple(PathPart(**part) for part in values["critical_path"])
        values["notes"] = tuple(values["notes"])
        if "busy" in values:
            values["busy"] = tuple(Busy(**busy) for busy in values["busy"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it, without fields that do not apply."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["links"] = [vars(link) for link in self.links]
        plain["critical_path"] = [vars(part) for part in self.critical_path]
        plain["notes"] = list(self.notes)
        plain["busy"] = None if self.busy is None else [vars(busy) for busy in self.busy]
        for name in ("algorithm_bandwidth_bps", "bus_bandwidth_bps", "busy", *COORDINATED):
            if plain[name] is None:
                del plain[name]
        if self.coordinator is not None:
            plain["compute_s"] = self.compute_s
        return plain

    @property
    def compute_s(self) -> float:
        """Seconds that one worker alone computes in an iteration."""
        return self.forward_s + self.backward_s + self.optimizer_s


@dataclass(frozen=True)
class Scenario:
    """A forecast to make: everything that its result depends on. Made by `of`, which checks every option."""

    trace: Trace
    cluster: Cluster
    strategy: Strategy
    workers: int
    """Ranks that train."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The given options, by their names in `paceline.settings.table`, in the form of the native module."""
    timeline: Path | None = None
    """A file for Chrome trace JSON."""
    coordination: Coordination | None = None
    """How ready tensors are coordinated; None: a bucket starts on a rank when it is complete there."""

    @classmethod
    def of(
        cls,
        trace: Trace,
        cluster: Cluster,
        strategy: str | Strategy,
        workers: int,
        *,
        timeline: Path | None = None,
        coordination: Coordination | None = None,
        **options: Unpack[CoreOptions],
    ) -> Scenario:
        """Check every option, and leave out those that are None. Raises InvalidArgumentError."""
        entry = strategy if isinstance(strategy, Strategy) else find_strategy(SETTINGS["strategy"].check(strategy))
        count = SETTINGS["workers"].check(workers, None, SIMULATE)
        return cls(trace, cluster, entry, count, _checked(options), timeline, coordination)

    def changed(
        self,
        *,
        trace: Trace | None = None,
        cluster: Cluster | None = None,
        workers: int | None = None,
        **options: Unpack[CoreOptions],
    ) -> Scenario:
        """Return the same scenario with these changes."""
        given = {name: value for name, value in self.options.items() if name not in options}
        return replace(
            self,
            trace=trace or self.trace,
            cluster=cluster or self.cluster,
            workers=self.workers if workers is None else workers,
            options=given | _checked(options),
            timeline=None,
        )

    def under(self, strategy: Strategy) -> Scenario:
        """Return the same scenario under another strategy, with the options that it uses."""
        return replace(self, strategy=strategy, options=used_by(strategy, self.options), timeline=None)

    def core_options(self) -> dict[str, Any]:
        """Return strategy, workers and options in the form of the native module."""
        core = {"strategy": self.strategy.name, "workers": self.workers, **self.options}
        return core if self.coordination is None else {**core, "coordination": self.coordination.to_core()}

    def unreachable(self) -> str | None:
        """Return why its exchanges cannot be simulated, if they cannot be. Raises InvalidArgumentError."""
        with naming_core_errors():
            return _core.unreachable(self.trace, self.cluster, json.dumps(self.core_options()))

    def result(self) -> Result:
        """Simulate it, without the GIL. Raises InvalidArgumentError."""
        with naming_core_errors():
            text = _core.simulate(self.trace, self.cluster, json.dumps(self.core_options()), self.timeline)
        return replace(Result.from_json(text), compute_speedup=float(self.options.get("compute_speedup", 1.0)))


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    checked = {
        name: SETTINGS[name].check(value, None, SIMULATE) for name, value in options.items() if value is not None
    }
    if checked.get("bucket_size") == "none":
        del checked["bucket_size"]
    return checked


def used_by(strategy: Strategy, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a strategy uses."""
    return {name: value for name, value in options.items() if name not in KNOBS or name in strategy.knobs}


def traced(scenario: Scenario) -> tuple[Result, list[dict[str, Any]]]:
    """Return the result and the timeline: events in Chrome's format. Raises InvalidArgumentError."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        path = Path(folder) / "timeline.json"
        result = replace(scenario, timeline=path).result()
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return result, events


def simulate(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster | None = None,
    strategy: names.Strategy = "ring",
    *,
    workers: int,
    timeline: str | Path | None = None,
    **options: Unpack[SimulateOptions],
) -> Result:
    """Forecast one iteration of training. The GIL is released while it runs.

    Args:
        trace: A file, a built-in name, `allreduce:100MB`, or a `Trace`.
        cluster: A file, a built-in name, or a `Cluster`; by default `flat`, 25 Gbit/s between single-GPU nodes.
        strategy: How gradients are synchronised; `paceline strategies` lists the names.
        workers: Ranks that train, one per GPU.
        timeline: A file to which the run is written as a Chrome trace.
        **options: Settings of a forecast (docs/reference/settings.md), such as `servers=2`, `bucket_size="25MB"` or
            `pull="step"`; changes to the trace (`device`, `samples_per_s`, `batch`, `dtype`); and fields of the
            cluster, such as `bandwidth="10Gbps"`, `latency="10us"` or `gpus_per_node=4`. Sizes are bytes, or text with
            a unit. None stands for the default.

    Returns:
        The forecast; times are seconds per iteration in the steady state.

    Raises:
        InvalidArgumentError: A name is unknown, a value invalid, or an option has no effect on this strategy.
        OSError: The timeline cannot be written.

    Example:
        >>> result = paceline.simulate("resnet-50", strategy="ring", workers=8, bandwidth="10Gbps")
        >>> result.workers, result.iteration_s > result.forward_s + result.backward_s
        (8, True)
    """
    from paceline.forecast.options import Sweep, prepare

    given: dict[str, object] = {**options, "cluster": cluster, "strategy": strategy or "ring"}
    given["workers"] = SETTINGS["workers"].check(workers, None, SIMULATE)
    [scenario] = prepare(Sweep.of(trace, given, SIMULATE)).scenarios
    return replace(scenario, timeline=None if timeline is None else Path(timeline)).result()
