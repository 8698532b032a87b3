"""From the options of `paceline simulate --coordinator …` to runs; what has no effect there is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._core import Trace, parse_size
from paceline._internal import units
from paceline.catalog.devices import device_rate
from paceline.catalog.library import built_in_trace, load_cluster
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.coordination.constants import all_constants, read_constants
from paceline.forecast.coordination.model import ITERATIONS, CoordinatedRun, find_coordinators
from paceline.forecast.coordination.networks import contention_share
from paceline.forecast.options import DEFAULT_WORKERS, trace_of

if TYPE_CHECKING:
    from paceline.forecast.options import Request

# Options of the event simulation, which this model does not do.
_WITHOUT_EFFECT = {
    "timeline": "a timeline shows messages, and none is simulated",
    "plot": "print --json and draw that",
    "servers": "a coordinator decides on all-reduces, which have no servers",
    "compute_speedup": "scale the trace with --samples-per-s",
    "network": "collectives are closed forms",
    "chunk": "collectives are closed forms of the strategies' own pieces",
    "placement": "there are no servers",
    "distribution": "there are no servers",
    "pull": "there are no servers",
    "inside": "the closed form is that of rings",
    "barrier": "iterations always start everywhere at once",
    "detail": "the breakdown is always printed",
}
_MIB = 1 << 20


@dataclass(frozen=True)
class PreparedCoordination:
    """The runs, and what is assumed."""

    runs: list[CoordinatedRun]
    notes: list[str] = field(default_factory=list)


def prepare(request: Request) -> PreparedCoordination:
    """Check everything that can be checked without simulating. Raises InvalidArgumentError."""
    for option, reason in _WITHOUT_EFFECT.items():
        if getattr(request, option) is not None:
            raise InvalidArgumentError(
                f"--{option.replace('_', '-')}: has no effect with --coordinator: {reason}; leave it out"
            )
    coordinators = find_coordinators(request.coordinator)
    trace = trace_of(request)
    constants, notes = _constants(request, trace)
    cluster = load_cluster(
        request.cluster,
        latency=request.latency,
        gpus_per_node=request.gpus_per_node,
        intra_bandwidth=request.intra_bandwidth,
    )
    if request.intra_bandwidth is not None and json.loads(cluster.to_json())["gpus_per_node"] == 1:
        raise InvalidArgumentError(
            "--intra-bandwidth: has no effect with one GPU per node; add --gpus-per-node or leave it out"
        )
    if request.strategy == []:
        raise InvalidArgumentError("--strategy: names none; give one or several")
    strategies = list(dict.fromkeys(find_strategy(word).name for word in request.strategy or ["native"]))
    if json.loads(trace.summary())["recorded_workers"] > 1 or "variation" in json.loads(trace.to_json()):
        notes.append(
            "the trace's workers differ; here all compute what the first does, and are late by the model's draws"
        )
    overlap = bool(request.overlap)
    notes += [f"collectives are {units.listed(strategies)}, by its closed form where it has one"]
    notes += [] if overlap else ["no overlap: gradients are handed over at the end of the backward pass; see --overlap"]
    if json.loads(cluster.to_json())["name"] != "summit":
        notes.append("lateness, congestion and agreement are Summit's; --coordinator-constants sets others")
    rates = request.bandwidth or (None,)
    clusters = [load_cluster(cluster, bandwidth=rate) for rate in rates]
    runs = [
        CoordinatedRun(
            trace,
            machine,
            coordinator,
            workers,
            strategy=strategy,
            iterations=ITERATIONS if request.iterations is None else request.iterations,
            seed=request.seed or 0,
            overlap=overlap,
            constants=constants,
        )
        for workers, machine, strategy, coordinator in product(
            request.workers or DEFAULT_WORKERS, clusters, strategies, coordinators
        )
    ]
    return PreparedCoordination(runs, notes)


def _constants(request: Request, trace: Trace) -> tuple[dict[str, float], list[str]]:
    """Those that differ from the defaults, and notes on what is assumed."""
    given = {} if request.coordinator_constants is None else read_constants(Path(request.coordinator_constants))
    notes = []
    if request.device is not None:
        notes.append(f"--device: {device_rate(trace, request.device).cited}")
    if request.bucket_size is not None:
        if "fusion_mib" in given:
            raise InvalidArgumentError(
                "--bucket-size: fusion_mib of --coordinator-constants says the same; give one of them"
            )
        none = request.bucket_size == "none"
        given["fusion_mib"] = 0.0 if none else parse_size(request.bucket_size) / _MIB
    if "contention_share" not in given:
        share = contention_share(built_in_trace(request.trace))
        if share is not None:
            given["contention_share"] = share
        share_text = f"{share if share is not None else all_constants()['contention_share'].default:.0%}"
        source = "published for this network" if share is not None else "the median of published networks"
        notes.append(f"input pipeline and graph scheduling are both active in {share_text} of an iteration ({source})")
    return given, notes
