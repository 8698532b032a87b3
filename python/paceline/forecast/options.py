"""From the options of `paceline simulate` to runs: names become traces, clusters and strategies.

Options that are invalid or would have no effect are refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from paceline._core import Cluster, Trace, parse_size
from paceline._internal import units
from paceline._internal.files import check_writable
from paceline.catalog.devices import adjusted, device_rate
from paceline.catalog.library import load_cluster, load_trace
from paceline.catalog.placement import read_placement
from paceline.catalog.strategies import KNOBS, Strategy, all_strategies, check_knobs, feasible, find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import Run, refuse_without_compute
from paceline.forecast.sweep import plan

DEFAULT_WORKERS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Request:
    """The options as typed; None is not given."""

    trace: str
    timeline: Path | None = None
    plot: Path | None = None
    workers: list[int] | None = None
    strategy: list[str] | None = None
    servers: list[int] | None = None
    compute_speedup: list[float] | None = None
    device: str | None = None
    samples_per_s: float | None = None
    batch: int | None = None
    dtype: str | None = None
    add_module: str | None = None
    cluster: str | None = None
    bandwidth: list[str] | None = None
    latency: str | None = None
    gpus_per_node: int | None = None
    intra_bandwidth: str | None = None
    network: str | None = None
    bucket_size: str | None = None
    chunk: str | int | None = None
    placement: str | None = None
    distribution: str | None = None
    pull: str | None = None
    inside: str | None = None
    coordinator: str = "none"
    coordinator_constants: str | None = None
    barrier: bool | None = None
    overlap: bool | None = None
    iterations: int | None = None
    seed: int | None = None
    detail: bool | None = None
    executor: str = "local"


@dataclass(frozen=True)
class Prepared:
    """The runs, and what to tell the user about them beforehand."""

    runs: list[Run]
    notes: list[str] = field(default_factory=list)


def prepare(request: Request) -> Prepared:
    """Check everything that can be checked without simulating. Raises InvalidArgumentError."""
    _refuse_constants(request)
    _check_outputs(request)
    asked, by_name = _strategies(request.strategy)
    trace = trace_of(request)
    cluster = load_cluster(
        request.cluster,
        latency=request.latency,
        gpus_per_node=request.gpus_per_node,
        intra_bandwidth=request.intra_bandwidth,
    )
    asked, notes = _only_feasible(asked, by_name, cluster)
    check_knobs(asked, [knob for knob in KNOBS if getattr(request, knob) is not None], "--")
    _refuse_without_effect(request, asked, trace, cluster)
    bucket_size = None if request.bucket_size in (None, "none") else parse_size(str(request.bucket_size))
    runs = plan(
        trace,
        [load_cluster(cluster, bandwidth=rate) for rate in request.bandwidth or (None,)],
        asked,
        workers=request.workers or DEFAULT_WORKERS,
        servers=request.servers or [None],
        compute_speedups=request.compute_speedup or [None],
        options={
            "bucket_size": bucket_size,
            "placement": _placement(request, trace, bucket_size),
            "chunk": request.chunk,
            **{name: getattr(request, name) for name in ("distribution", "pull", "inside", "network", "barrier")},
            **{name: getattr(request, name) for name in ("overlap", "iterations", "seed", "detail")},
        },
    )
    if request.timeline is not None and len(runs) != 1:
        raise InvalidArgumentError(
            f"--timeline: shows one run, and {len(runs)} are asked for: give one value of {_several(request, asked)}"
        )
    notes += _unmeasured(request, cluster)
    if request.device is not None:
        notes.append(f"--device: {device_rate(trace, request.device).cited}")
    return Prepared(runs, notes)


def _unmeasured(request: Request, cluster: Cluster) -> list[str]:
    """Of a probe of one host, whose file has to say something of the network."""
    if request.cluster is None or request.bandwidth is not None:
        return []
    from paceline.catalog.library import NO_NETWORK

    described = json.loads(cluster.to_json())
    several = max(request.workers or DEFAULT_WORKERS) > described.get("gpus_per_node", 1)
    if not several or NO_NETWORK not in described.get("provenance", ""):
        return []
    return [f"--cluster {request.cluster}: {NO_NETWORK}; its rate stands in for it between nodes: give --bandwidth"]


def _refuse_constants(request: Request) -> None:
    if request.coordinator_constants is not None:
        raise InvalidArgumentError(
            "--coordinator-constants: has no effect without --coordinator; add --coordinator all or leave it out"
        )


def _check_outputs(request: Request) -> None:
    if request.timeline is not None:
        check_writable("--timeline", request.timeline)
    if request.plot is None:
        return
    if request.plot == request.timeline:
        raise InvalidArgumentError("--plot and --timeline name the same file")
    from paceline.forecast.plotting import check_plot

    check_plot(request.plot)


def _strategies(words: list[str] | None) -> tuple[list[Strategy], set[Strategy]]:
    """The strategies asked for, each once, and those asked for by name."""
    words = words if words is not None else ["all"]
    if not words:
        raise InvalidArgumentError("--strategy: names none; give one, several, or all")
    by_name = {find_strategy(word): None for word in words if word != "all"}
    every = all_strategies() if "all" in words else ()
    return list(dict.fromkeys([*by_name, *every])), set(by_name)


def trace_of(request: Request) -> Trace:
    """The trace as the options change it. Raises InvalidArgumentError."""
    trace = load_trace(request.trace)
    if request.add_module is not None:
        trace = trace.with_modules(request.add_module)
    return adjusted(
        trace,
        device=request.device,
        samples_per_s=request.samples_per_s,
        batch=request.batch,
        dtype=request.dtype,
        prefix="--",
    )


def _only_feasible(asked: list[Strategy], by_name: set[Strategy], cluster: Cluster) -> tuple[list[Strategy], list[str]]:
    able, unable = feasible(asked, cluster)
    name = json.loads(cluster.to_json())["name"]
    for strategy in unable:
        if strategy in by_name:
            needs = " and ".join(sorted({"multicast", "aggregation"} & strategy.knobs))
            raise InvalidArgumentError(
                f"--strategy: {strategy.name} needs {needs} in the switch, which cluster '{name}' does not have "
                f"(switch in its file)"
            )
    if not unable:
        return able, []
    names = units.listed([strategy.name for strategy in unable])
    return able, [f"left out {names}: the switch of cluster '{name}' does not do what they need"]


def _refuse_without_effect(request: Request, asked: list[Strategy], trace: Trace, cluster: Cluster) -> None:
    fields_of = json.loads(cluster.to_json())
    colocated = fields_of["servers"] == "colocated" and any("servers" in strategy.knobs for strategy in asked)
    if request.intra_bandwidth is not None and fields_of["gpus_per_node"] == 1 and not colocated:
        raise InvalidArgumentError(
            "--intra-bandwidth: has no effect with one GPU per node; add --gpus-per-node or leave it out"
        )
    if request.inside is not None and fields_of["gpus_per_node"] == 1:
        raise InvalidArgumentError("--inside: has no effect with one GPU per node; add --gpus-per-node or leave it out")
    if request.seed is not None and "jitter" not in fields_of:
        raise InvalidArgumentError(
            "--seed: has no effect on a cluster without jitter; leave it out, or add jitter to its file"
        )
    given = {
        "--no-overlap": request.overlap is False,
        "--compute-speedup": request.compute_speedup is not None,
        "--pull": request.pull is not None,
    }
    refuse_without_compute(trace, [option for option, is_given in given.items() if is_given])


def _placement(request: Request, trace: Trace, bucket_size: int | None) -> str | list[int] | None:
    if request.placement is None or request.placement in ("round-robin", "even"):
        return request.placement
    fewest = min(request.servers or [1])
    return read_placement(Path(request.placement), trace, bucket_size, fewest)


def _several(request: Request, asked: list[Strategy]) -> str:
    lengths = {
        "--workers": len(request.workers or DEFAULT_WORKERS),
        "--bandwidth": len(request.bandwidth or ()),
        "--strategy": len(asked),
        "--servers": len(request.servers or ()),
        "--compute-speedup": len(request.compute_speedup or ()),
    }
    return units.listed([option for option, length in lengths.items() if length > 1])
