"""Cells on the hosts of the running job: rank 0 chooses what is replayed, all ranks replay it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from paceline._core import Cluster, Trace
from paceline.catalog.builtin import cluster_document, load_cluster, load_trace
from paceline.catalog.strategies import Strategy
from paceline.errors import InvalidArgumentError
from paceline.job import objects
from paceline.job.settings import Settings
from paceline.probe.layout import Layout

from paceline_lab.replay.play import ReplaySpec, gather, play
from paceline_lab.replay.result import Played
from paceline_lab.validate.cells import Cell, Skipped, chosen
from paceline_lab.validate.compare import Progress, in_short, too_long
from paceline_lab.validate.forecasts import Forecast, forecast
from paceline_lab.validate.outcome import Row, Validation
from paceline_lab.validate.real import WARMUP, Observed, until_undisturbed

if TYPE_CHECKING:
    from paceline.job.job import Job

_KNOBS = ("chunk", "distribution", "inside")
"""Settings of the job that a simulation takes under the same name."""


@dataclass(frozen=True)
class Here:
    """The job, and the cluster that it is assumed to run on."""

    ranks: Job
    layout: Layout
    cluster: Cluster

    @property
    def bandwidth_bps(self) -> float:
        """The cluster file's rate."""
        return self.cluster.bandwidth_bps

    def check(self) -> None:
        """Raise InvalidArgumentError if the cluster does not match the job."""
        expected, own = self.cluster.gpus_per_node, self.layout.ranks_per_host
        if expected != own:
            raise InvalidArgumentError(
                f"--cluster: gpus_per_node is {expected}, and this job has {own} on each host",
                remedy=f"{expected} ranks on each host, or paceline probe",
            )


def cells(here: Here, traces: Iterable[str], strategies: Iterable[Strategy], options: dict[str, Any]) -> list[Cell]:
    """Return the cells. `options`: shrink and scale (None: chosen), bucket_size. Raises InvalidArgumentError."""
    own = []
    settings, rate, ranks_per_host = here.ranks.settings, here.bandwidth_bps, here.layout.ranks_per_host
    for trace, strategy in product(traces, strategies):
        sizes = chosen(load_trace(trace), ranks_per_host, rate, options["shrink"], options["scale"])
        servers = settings.servers if "servers" in strategy.knobs else 0
        own.append(
            Cell(
                trace,
                strategy,
                here.ranks.size,
                servers,
                rate,
                *sizes,
                ranks_per_host,
                options["bucket_size"],
            )
        )
    return own


def why_not(cell: Cell, settings: Settings, layout: Layout) -> str | None:
    """Return why a cell cannot be run here as it is simulated; empty if it can."""
    if cell.needs_switch:
        return "the process that acts as the switch has a NIC like the others here; leave out --here to compare it"
    if "multicast" in cell.strategy.knobs and settings.multicast is None:
        return "the job sends multicasts as unicasts: give it --multicast"
    if cell.servers and _servers(cell, settings, layout) is None:
        return "servers are placed on hosts in a way that no cluster file can express"
    return None


def _servers(cell: Cell, settings: Settings, layout: Layout) -> str | None:
    """Return where servers are, in the terms of a cluster file."""
    hosts = len(layout.hosts)
    places: Sequence[int] = layout.servers
    if not settings.server_processes:
        of_rank = {rank: number for number, host in enumerate(layout.hosts) for rank in host.ranks}
        places = [of_rank[server % cell.workers] for server in range(cell.servers)]
    if all(place == server % hosts for server, place in enumerate(places)):
        return "colocated"
    return "own-nodes" if min(places) >= hosts and len(set(places)) == len(places) else None


def _knobs(cell: Cell, settings: Settings) -> dict[str, Any]:
    """Return the job's options, for the simulation."""
    wanted = {name: getattr(settings, name) for name in _KNOBS if name in cell.strategy.knobs}
    if cell.servers and not settings.places_names:
        wanted["placement"] = settings.placement
    elif cell.servers:
        raise InvalidArgumentError(
            "PACELINE_PLACEMENT: names cannot be compared here", remedy="PACELINE_PLACEMENT=round-robin (or even)"
        )
    return {name: value for name, value in wanted.items() if value is not None}


class Comparison:
    """Rank 0's side, while the others are in `take_part`."""

    def __init__(self, here: Here, network: str, repeats: int, progress: Progress) -> None:
        """`network` is the model whose forecast counts."""
        self.here, self.network, self.repeats, self.progress = here, network, repeats, progress
        self.result = Validation(cluster=cluster_document(here.cluster))
        self._forecasts: dict[Cell, Forecast] = {}
        self._clock_error_s = 0.0

    def simulate(self, selected: Sequence[Cell]) -> None:
        """Simulate each cell that can be compared. Raises InvalidArgumentError."""
        for cell in selected:
            simulated = self._forecast(cell)
            if simulated is not None:
                self._forecasts[cell] = simulated

    def run(self) -> Validation:
        """Run the simulated cells. Raises JobError."""
        for number, (cell, simulated) in enumerate(self._forecasts.items()):
            row = Row(cell, self._observe(cell), simulated, self.network, _realtime())
            self.result.rows.append(row)
            self.progress(number + 1, len(self._forecasts), in_short(row))
        objects.share_last(self.here.ranks, json.dumps(None))
        if self._clock_error_s:
            self.result.notes.append(f"hosts' clocks were aligned to {self._clock_error_s * 1e6:.0f} us")
        return self.result

    def _forecast(self, cell: Cell) -> Forecast | None:
        settings, layout = self.here.ranks.settings, self.here.layout
        reason, simulated = why_not(cell, settings, layout), None
        if reason is None:
            servers = _servers(cell, settings, layout) if cell.servers else None
            cluster = load_cluster(self.here.cluster, servers=servers)
            simulated = forecast(cell, cluster, _knobs(cell, settings))
            reason = too_long(simulated.of(self.network))
        if reason is not None:
            self.result.skipped.append(Skipped(cell, reason))
            return None
        return simulated

    def _observe(self, cell: Cell) -> Observed:
        """Measure at least this many undisturbed iterations, if MOST_RUNS runs suffice."""
        order = {
            "trace": cell.loaded().to_json(),
            "speedup": 1 / cell.scale,
            "strategy": cell.strategy.name,
            "bucket_size": cell.bucket_size,
        }

        def play_so_many(iterations: int) -> list[Played]:
            complete = {**order, "iterations": iterations}
            _say(self.here.ranks, complete)
            played = _play(self.here, complete)
            self._clock_error_s = max(self._clock_error_s, *(one.clock_error_s for one in played))
            return played

        return until_undisturbed(play_so_many, self.repeats)


def take_part(here: Here) -> None:
    """Replay at all other ranks until rank 0 has enough. Raises JobError, InvalidArgumentError."""
    while (order := json.loads(objects.share(here.ranks))) is not None:
        _play(here, order)
    objects.heard(here.ranks)


def _say(ranks: Job, order: dict[str, Any]) -> None:
    objects.share(ranks, json.dumps(order))


def _play(here: Here, order: dict[str, Any]) -> list[Played]:
    trace = Trace.from_json(order["trace"].encode(), "the trace")
    rest = {name: value for name, value in order.items() if name != "trace"}
    return gather(here.ranks, play(here.ranks, ReplaySpec(trace, warmup=WARMUP, cluster=here.cluster, **rest)))


def _realtime() -> bool:
    return hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) == os.SCHED_FIFO
