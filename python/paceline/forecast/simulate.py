"""Forecast one configuration: `paceline.simulate(trace, cluster, strategy) -> Result`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from paceline import _core
from paceline._core import Cluster, Trace
from paceline.catalog.devices import adjusted
from paceline.catalog.library import load_cluster, load_trace
from paceline.catalog.strategies import KNOBS, Strategy, find_strategy
from paceline.errors import InvalidArgumentError

Chunk = int | Literal["whole", "per-worker"]

# Settings of which a strategy says whether it looks at them.


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
    """What some of the critical path was spent for, in seconds per iteration."""

    part: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """A forecast. Times are seconds per iteration in the steady state; see docs/explanation/models.md."""

    trace: str
    strategy: str
    workers: int
    servers: int
    bandwidth_bps: float
    iteration_s: float
    samples_per_s: float | None
    scaling_efficiency: float | None
    exposed_communication_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    bytes_sent_per_worker: float
    messages: int
    batch: int
    gradient_bytes: int
    buckets: int
    links: tuple[LinkUse, ...]
    critical_path: tuple[PathPart, ...]
    queued_s: float | None
    notes: tuple[str, ...]
    algorithm_bandwidth_bps: float | None = None
    bus_bandwidth_bps: float | None = None
    compute_speedup: float = 1.0
    busy: tuple[Busy, ...] | None = None

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Make a result from the JSON of the native module.

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
        """As `--json` prints it; fields that do not apply are left out."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["links"] = [vars(link) for link in self.links]
        plain["critical_path"] = [vars(part) for part in self.critical_path]
        plain["notes"] = list(self.notes)
        plain["busy"] = None if self.busy is None else [vars(busy) for busy in self.busy]
        for name in ("algorithm_bandwidth_bps", "bus_bandwidth_bps", "busy"):
            if plain[name] is None:
                del plain[name]
        return plain

    @property
    def compute_s(self) -> float:
        """What one worker alone computes in an iteration, in seconds."""
        return self.forward_s + self.backward_s + self.optimizer_s


@dataclass(frozen=True)
class Run:
    """A forecast that is wanted: everything it depends on. `options` are those of the core, by its names.

    timeline: a file for Chrome trace JSON.
    """

    trace: Trace
    cluster: Cluster
    options: Mapping[str, Any] = field(default_factory=dict)
    timeline: Path | None = None

    @property
    def strategy(self) -> Strategy:
        """The strategy that is run."""
        return find_strategy(self.options["strategy"])

    @property
    def workers(self) -> int:
        """Ranks that train."""
        return int(self.options["workers"])

    def changed(self, *, cluster: Cluster | None = None, **options: object) -> Run:
        """The same run but for what is given."""
        return replace(self, cluster=cluster or self.cluster, options={**self.options, **options}, timeline=None)

    def under(self, strategy: Strategy) -> Run:
        """The same under another strategy, with those of the options that it uses."""
        own = {name: value for name, value in self.options.items() if name not in KNOBS or name in strategy.knobs}
        return replace(self, options={**own, "strategy": strategy.name}, timeline=None)

    def result(self) -> Result:
        """Simulate it, without the GIL. Raises InvalidArgumentError."""
        text = _core.simulate(self.trace, self.cluster, json.dumps(dict(self.options)), self.timeline)
        return replace(Result.from_json(text), compute_speedup=float(self.options.get("compute_speedup", 1.0)))


def traced(run: Run) -> tuple[Result, list[dict[str, Any]]]:
    """Simulate it, and give its timeline, too: events in Chrome's format. Raises InvalidArgumentError."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        path = Path(folder) / "timeline.json"
        result = replace(run, timeline=path).result()
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return result, events


def core_options(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, as the core takes them: sizes in bytes, none that is None.

    Raises InvalidArgumentError.
    """
    given = {name: value for name, value in wanted.items() if value is not None}
    chunk, bucket_size = given.get("chunk"), given.get("bucket_size")
    if isinstance(chunk, str) and chunk not in ("whole", "per-worker"):
        given["chunk"] = _size("chunk", chunk)
    if isinstance(bucket_size, str):
        given["bucket_size"] = _size("bucket_size", bucket_size)
    for name in ("workers", "servers", "chunk", "bucket_size", "iterations", "seed"):
        value = given.get(name)
        if value is None or (name == "chunk" and isinstance(value, str)):
            continue
        most = 2**64 - 1 if name in ("chunk", "bucket_size", "seed") else 2**32 - 1
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise InvalidArgumentError(f"{name}: {value!r} is not a whole number from 0 to {most}")
    speedup = given.get("compute_speedup", 1.0)
    if isinstance(speedup, bool) or not isinstance(speedup, int | float) or not 1e-6 <= speedup <= 1e6:
        raise InvalidArgumentError(f"compute_speedup: {speedup!r} is not between 0.000001 and 1000000")
    return given


def refuse_without_compute(trace: Trace, given: list[str]) -> None:
    """Raise InvalidArgumentError for options that are about computation if the trace has none."""
    summary = json.loads(trace.summary())
    if given and summary["forward_s"] + summary["backward_s"] + summary["optimizer_s"] == 0:
        raise InvalidArgumentError(
            f"{given[0]}: has no effect on {summary['name']}, which computes nothing; leave it out"
        )


def simulate(
    trace: str | Path | Trace,
    cluster: str | Path | Cluster | None = None,
    strategy: str = "ring",
    *,
    workers: int,
    servers: int | None = None,
    chunk: Chunk | str | None = None,
    placement: str | list[int] | None = None,
    distribution: str | None = None,
    barrier: bool | None = None,
    pull: str | None = None,
    inside: str | None = None,
    bucket_size: int | str | None = None,
    network: str | None = None,
    overlap: bool | None = None,
    compute_speedup: float | None = None,
    device: str | None = None,
    samples_per_s: float | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
    critical_path: bool | None = None,
    detail: bool | None = None,
    timeline: str | Path | None = None,
    **cluster_fields: object,
) -> Result:
    """Forecast one iteration of training.

    trace: a file, a built-in name, `allreduce:100MB` or a Trace. cluster: a file, a built-in name or a Cluster; its
    fields can be overridden by keyword (`bandwidth="10Gbps"`, `latency="10us"`, `gpus_per_node=4`, …). Sizes are bytes,
    or text with a unit. Options a strategy does not use are errors, None is the default of the command line.
    device: scale the trace to a published rate of this device; samples_per_s, batch: to one's own. dtype: of gradients.
    detail: list the busy time of every worker and link in `busy`. timeline: a file for Chrome trace JSON. The GIL is
    released while it runs. Raises InvalidArgumentError.
    """
    wanted: dict[str, Any] = {
        "servers": servers,
        "chunk": chunk,
        "placement": placement,
        "distribution": distribution,
        "barrier": barrier,
        "pull": pull,
        "inside": inside,
        "bucket_size": bucket_size,
        "network": network,
        "overlap": overlap,
        "compute_speedup": compute_speedup,
        "iterations": iterations,
        "seed": seed,
        "critical_path": critical_path,
        "detail": detail,
        "workers": workers,
    }
    entry = find_strategy(strategy)
    for knob in KNOBS:
        if wanted[knob] is not None and knob not in entry.knobs:
            raise InvalidArgumentError(f"{knob}: has no effect on {entry.name}; leave it out")
    options = {"strategy": entry.name, **core_options(wanted)}
    machine = load_cluster(cluster, **cluster_fields)
    step = adjusted(load_trace(trace), device=device, samples_per_s=samples_per_s, batch=batch, dtype=dtype)
    about_compute = [name for name in ("compute_speedup", "pull") if wanted[name] is not None]
    refuse_without_compute(step, about_compute + (["overlap"] if overlap is False else []))
    return Run(step, machine, options, None if timeline is None else Path(timeline)).result()


def _size(name: str, text: str) -> int:
    try:
        return _core.parse_size(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error}") from None
