"""Forecast one configuration: `paceline.simulate(trace, cluster, strategy) -> Result`."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from paceline import _core
from paceline._core import Cluster, Trace, UserError
from paceline.library import find_strategy, load_cluster, load_trace

Chunk = int | Literal["whole", "per-worker"]


@dataclass(frozen=True)
class LinkUse:
    """How busy the links of one kind were, in seconds per iteration."""

    kind: str
    links: int
    busiest_s: float
    mean_s: float


@dataclass(frozen=True)
class PathPart:
    """What some of the critical path was spent for, in seconds per iteration."""

    part: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """A forecast. Times are seconds per iteration in the steady state; see docs/models.md."""

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

    @classmethod
    def from_json(cls, text: str) -> Result:
        """From the core's JSON."""
        values: dict[str, Any] = json.loads(text)
        values["links"] = tuple(LinkUse(**link) for link in values["links"])
        values["critical_path"] = tuple(PathPart(**part) for part in values["critical_path"])
        values["notes"] = tuple(values["notes"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it; fields that do not apply are left out."""
        plain: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["links"] = [vars(link) for link in self.links]
        plain["critical_path"] = [vars(part) for part in self.critical_path]
        plain["notes"] = list(self.notes)
        for name in ("algorithm_bandwidth_bps", "bus_bandwidth_bps"):
            if plain[name] is None:
                del plain[name]
        return plain


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
    iterations: int | None = None,
    seed: int | None = None,
    critical_path: bool | None = None,
    timeline: str | Path | None = None,
    **cluster_fields: Any,
) -> Result:
    """Forecast one iteration of training.

    trace: a file, a built-in name, `allreduce:100MB` or a Trace. cluster: a file, a built-in name or a Cluster; its
    fields can be overridden by keyword (`bandwidth="10Gbps"`, `latency="10us"`, `gpus_per_node=4`, …). Sizes are bytes,
    or text with a unit. Options a strategy does not use are errors, None is the default of the command line.
    timeline: a file for Chrome trace JSON. The GIL is released while it runs. Raises UserError.
    """
    wanted: dict[str, Any] = {
        "servers": servers,
        "chunk": _size(chunk) if isinstance(chunk, str) and chunk not in ("whole", "per-worker") else chunk,
        "placement": placement,
        "distribution": distribution,
        "barrier": barrier,
        "pull": pull,
        "inside": inside,
        "bucket_size": _size(bucket_size) if isinstance(bucket_size, str) else bucket_size,
        "network": network,
        "overlap": overlap,
        "compute_speedup": compute_speedup,
        "iterations": iterations,
        "seed": seed,
        "critical_path": critical_path,
    }
    entry = find_strategy(strategy)
    for knob in ("servers", "chunk", "placement", "distribution", "pull", "inside"):
        if wanted[knob] is not None and knob not in entry.knobs:
            raise UserError(f"{knob}: has no effect on {entry.name}; leave it out")
    options = {key: value for key, value in wanted.items() if value is not None}
    options.update(strategy=entry.name, workers=workers)
    machine = load_cluster(cluster, **cluster_fields)
    return Result.from_json(_core.simulate(load_trace(trace), machine, json.dumps(options), timeline))


def _size(text: str) -> int:
    return _core.parse_size(text)
