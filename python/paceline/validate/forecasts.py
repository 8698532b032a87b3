"""A cell simulated: the same trace, rates and rules as it is run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._core import Trace, parse_size
from paceline.forecast import Run, core_options
from paceline.library import load_cluster
from paceline.replay import abilities
from paceline.validate.cells import Cell

NETWORKS = ("fifo", "fluid")


@dataclass(frozen=True)
class Costs:
    """What a simulated message costs besides its bytes, as users write times."""

    latency: str | None = None
    message_overhead: str | None = None


@dataclass(frozen=True)
class Forecast:
    """Seconds of an iteration under each model of the network."""

    fifo_s: float
    fluid_s: float

    def of(self, network: str) -> float:
        """One of them."""
        return self.fifo_s if network == "fifo" else self.fluid_s


def forecast(cell: Cell, costs: Costs, iterations: int) -> Forecast:
    """Under both. `iterations`: over which they are averaged where they are not all alike. Raises UserError."""
    trace = cell.loaded()
    found = [
        run_of(cell, trace, network, costs=costs, iterations=iterations).result().iteration_s for network in NETWORKS
    ]
    return Forecast(*found)


def run_of(
    cell: Cell, trace: Trace, network: str, *, costs: Costs, iterations: int, timeline: Path | None = None
) -> Run:
    """The simulation. Raises UserError."""
    cluster = load_cluster(
        None,
        bandwidth=f"{cell.bandwidth_bps:.0f}bps",
        latency=costs.latency,
        message_overhead=costs.message_overhead,
        gpus_per_node=cell.ranks_per_host,
    )
    holds = _held_together(cell, trace)
    options: dict[str, Any] = {
        "strategy": cell.strategy.name,
        "workers": cell.workers,
        "servers": cell.servers or None,
        "network": network,
        "compute_speedup": 1 / cell.scale,
        "bucket_size": None if cell.bucket_size is None else parse_size(cell.bucket_size),
        "barrier": holds,
        "iterations": None if holds else iterations,
        "critical_path": False,
    }
    return Run(trace, cluster, core_options(options), timeline)


def _held_together(cell: Cell, trace: Trace) -> bool:
    """Whether an iteration has a barrier where it is run."""
    bucket_size = None if cell.bucket_size is None else parse_size(cell.bucket_size)
    return abilities.barrier(servers=cell.servers > 0, buckets=len(trace.buckets(bucket_size)))
