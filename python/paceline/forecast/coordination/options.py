"""From the options of `paceline simulate --coordinator …` to runs; options without effect there are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._core import Trace
from paceline._internal import units
from paceline.catalog.library import built_in_trace
from paceline.catalog.strategies import all_strategies
from paceline.errors import InvalidArgumentError, naming
from paceline.forecast.coordination.constants import all_constants, read_constants
from paceline.forecast.coordination.model import ITERATIONS, CoordinatedRun, find_coordinators
from paceline.forecast.coordination.networks import contention_share

if TYPE_CHECKING:
    from paceline.forecast.options import Sweep

# Options of the event simulation, which this model does not use.
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
    """The runs and their assumptions."""

    runs: list[CoordinatedRun]
    notes: list[str] = field(default_factory=list)


def prepare(sweep: Sweep) -> PreparedCoordination:
    """Check everything that can be checked without simulating. Raises InvalidArgumentError."""
    with naming(sweep.sources):
        return _prepared(sweep)


def _prepared(sweep: Sweep) -> PreparedCoordination:
    given = {"timeline": sweep.timeline, "plot": sweep.plot, **sweep.values}
    for name, reason in _WITHOUT_EFFECT.items():
        if given.get(name) is not None:
            option = str(sweep.sources.get(name, f"--{name}"))
            raise InvalidArgumentError(f"{option}: has no effect with --coordinator: {reason}; leave it out")
    _refuse_several(sweep)
    coordinators = find_coordinators(sweep.get("coordinator"))
    trace = sweep.step()
    constants, notes = _constants(sweep, trace)
    cluster = sweep.machine()
    sweep.refuse_idle_links(cluster)
    words = sweep.get("strategy") or ["native"]
    named = [name for word in words for name in ([one.name for one in all_strategies()] if word == "all" else [word])]
    strategies = list(dict.fromkeys(named))
    if json.loads(trace.summary())["recorded_workers"] > 1 or "variation" in json.loads(trace.to_json()):
        notes.append(
            "the trace's workers differ; here all compute what the first does, and their lateness is drawn by the model"
        )
    overlap = bool(sweep.get("overlap"))
    notes += [f"collectives are {units.listed(strategies)}, by its closed form where it has one"]
    notes += [] if overlap else ["no overlap: gradients are handed over at the end of the backward pass; see --overlap"]
    if json.loads(cluster.to_json())["name"] != "summit":
        notes.append("lateness, congestion and agreement are Summit's; --coordinator-constants sets others")
    runs = [
        CoordinatedRun(
            trace,
            machine,
            coordinator,
            workers,
            strategy=strategy,
            iterations=sweep.get("iterations") or ITERATIONS,
            seed=sweep.get("seed") or 0,
            overlap=overlap,
            constants=constants,
        )
        for workers, machine, strategy, coordinator in product(
            sweep.workers, sweep.machines(cluster, sweep.library_of(trace)), strategies, coordinators
        )
    ]
    return PreparedCoordination(runs, notes)


def _refuse_several(sweep: Sweep) -> None:
    """Refuse lists that the table of coordinators has no column for."""
    for name in ("bucket_size", "latency"):
        if len(sweep.get(name) or ()) > 1:
            raise InvalidArgumentError("takes one value with --coordinator", setting=name)
    if len(sweep.traces) > 1:
        raise InvalidArgumentError("--coordinator: takes one trace")


def _constants(sweep: Sweep, trace: Trace) -> tuple[dict[str, float], list[str]]:
    """Return the constants that differ from the defaults, and notes on what is assumed."""
    file = sweep.get("coordinator_constants")
    [bucket_size] = sweep.get("bucket_size") or [None]
    given = {} if file is None else read_constants(Path(file))
    notes = sweep.device_note(trace)
    if bucket_size is not None:
        if "fusion_mib" in given:
            raise InvalidArgumentError(
                "fusion_mib of --coordinator-constants sets the same; give one of them", setting="bucket_size"
            )
        given["fusion_mib"] = 0.0 if bucket_size == "none" else bucket_size / _MIB
    if "contention_share" not in given:
        share = contention_share(built_in_trace(str(sweep.trace)))
        if share is not None:
            given["contention_share"] = share
        share_text = f"{share if share is not None else all_constants()['contention_share'].default:.0%}"
        source = "published for this network" if share is not None else "the median of published networks"
        notes.append(f"input pipeline and graph scheduling are both active in {share_text} of an iteration ({source})")
    return given, notes
