"""One rank's part of a job that replays a trace: its schedule, and its report."""

from __future__ import annotations

import gc
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paceline._core import Cluster, Trace
from paceline._internal.clock import Clock
from paceline._internal.system import boot
from paceline.catalog.builtin import load_cluster
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.lowering import native
from paceline.forecast.scenario import Scenario
from paceline.job import objects

from paceline_lab.replay.align import Common, offset
from paceline_lab.replay.asynchronous import ServersExchange
from paceline_lab.replay.exchange import JobExchange
from paceline_lab.replay.player import Mark, Player
from paceline_lab.replay.result import Boundary, Played, boundary
from paceline_lab.replay.worker_schedule import WorkerSchedule

if TYPE_CHECKING:
    from paceline.job.job import Job


@dataclass(frozen=True)
class ReplaySpec:
    """The replay's configuration; the same at all ranks."""

    trace: Trace
    iterations: int
    """Measured iterations."""
    warmup: int
    """Iterations before the measured ones."""
    speedup: float = 1.0
    """Divides times."""
    strategy: str | None = None
    """None: the job's strategy."""
    bucket_size: int | str | None = None
    pull: str | None = None
    barrier: bool | None = None
    overlap: bool | None = None
    cluster: Cluster | None = None
    """The cluster whose stragglers and jitter apply to the workers."""
    sharded: Mapping[str, Any] = field(default_factory=dict)
    """`sharding` and its options, as `paceline.simulate` takes them; empty: gradients are all-reduced."""


def play(ranks: Job, spec: ReplaySpec, clock: Clock | None = None) -> Played:
    """Replay; all ranks call this together. Raises JobError, InvalidArgumentError, ArithmeticError for a wrong sum."""
    clock = clock or Clock()
    cluster = spec.cluster or load_cluster(None)
    scenario = _scenario(ranks, spec, cluster)
    schedule = WorkerSchedule.of(native(scenario), ranks.rank, spec.warmup + spec.iterations)
    plan, barrier = schedule.plan, spec.barrier is not False
    exchange: JobExchange | ServersExchange
    limits: Boundary
    if ranks.servers is not None:
        limits, exchange = "own", ServersExchange(ranks, ranks.servers, plan, clock)
    else:
        limits = boundary(servers=plan.has_servers, exchange_only=plan.exchanges_only, barrier=barrier)
        placed = ranks.settings.placed() if plan.has_servers else {}
        # What is sharded is simulated with one strategy; buckets may have one chosen by size.
        strategy = scenario.strategy.name if spec.sharded else spec.strategy
        exchange = JobExchange(ranks, plan, placed, barrier=barrier, strategy=strategy, clock=clock)
    player = Player(schedule, exchange, clock, together=limits == "start", mark=_marks(ranks))
    played = _measure(ranks, spec, clock, player, exchange)
    return replace(played, boundary=limits, notes=tuple(_notes(schedule)))


def _measure(
    ranks: Job, spec: ReplaySpec, clock: Clock, player: Player, exchange: JobExchange | ServersExchange
) -> Played:
    """Play between two checks of what is exchanged, with moments in the first rank's clock."""
    checked = exchange.check()
    begun = exchange.iteration if isinstance(exchange, ServersExchange) else 0
    names = _clocks(ranks, clock)
    before = offset(ranks, clock, names)
    clock.ahead = before.ahead
    gc.collect()
    gc.disable()
    iterations = player.play()
    gc.enable()
    common = Common(before, offset(ranks, clock, names))
    stale: Mapping[int, int] = {}
    if isinstance(exchange, ServersExchange) and ranks.rank == 0:
        stale = exchange.staleness(begun + spec.warmup)
    return Played(
        rank=ranks.rank,
        size=ranks.size,
        host=platform.node(),
        clock=names[0],
        trace=spec.trace.name,
        strategy=spec.strategy or ranks.settings.strategy,
        boundary="start",
        iterations=tuple(
            replace(one, begin=common(one.begin), handed=common(one.handed), end=common(one.end)) for one in iterations
        ),
        warmup=spec.warmup,
        sums_checked=checked + exchange.check(),
        clock_error_s=common.error_s,
        staleness=tuple(stale.items()),
    )


def gather(ranks: Job, played: Played) -> list[Played]:
    """Return the reports of all ranks at rank 0; nothing elsewhere."""
    texts = objects.gather(ranks, json.dumps(played.to_dict()))
    return [Played.from_dict(json.loads(text)) for text in texts]


def _clocks(ranks: Job, clock: Clock) -> Sequence[str]:
    """Return the clocks by rank; the same for ranks that share one."""
    names: list[str] = json.loads(objects.share(ranks, json.dumps(objects.gather(ranks, clock.name or _machine()))))
    return names


def _machine() -> str:
    try:
        return boot()
    except OSError:
        return platform.node()


def _scenario(ranks: Job, spec: ReplaySpec, cluster: Cluster) -> Scenario:
    """Return what determines a worker's schedule. A strategy chosen by size has no servers, like `ring`."""
    settings = ranks.settings
    strategy = spec.strategy or settings.strategy or "ring"
    options: dict[str, Any] = {}
    if spec.sharded:
        for name in ("pull", "barrier", "overlap"):
            if getattr(spec, name) is not None:
                raise InvalidArgumentError("has no effect with sharding", setting=name, remedy="drop {this}")
        cluster = load_cluster(None, gpus_per_node=ranks.local_size or 1)
        options.update(spec.sharded)
    elif settings.is_asynchronous:
        for name in ("pull", "barrier"):
            if getattr(spec, name) is not None:
                raise InvalidArgumentError(f"has no effect on {strategy}", setting=name, remedy="drop {this}")
        # A worker pulls all parameters at once.
        options.update(servers=settings.servers, pull="step")
    elif "servers" in find_strategy(strategy).knobs:
        options["servers"] = settings.servers
        options["pull"] = spec.pull or os.environ.get("PACELINE_PULL") or "layer"
    elif spec.pull is not None:
        raise InvalidArgumentError("--pull needs parameter servers", remedy="--strategy ps, or drop --pull")
    if spec.overlap is not None:
        options["overlap"] = spec.overlap
    return Scenario.of(
        spec.trace,
        cluster,
        strategy,
        ranks.size,
        compute_speedup=spec.speedup,
        bucket_size=spec.bucket_size,
        **options,
    )


def _notes(schedule: WorkerSchedule) -> list[str]:
    if schedule.same_order:
        return []
    return ["the recorded workers differ in the order of gradients; ranks use the order of the first"]


def _marks(ranks: Job) -> Mark:
    engine = ranks._engine
    return engine.mark if engine is not None and ranks.settings.timeline is not None else _no_mark


def _no_mark(*_: object) -> None:
    pass
