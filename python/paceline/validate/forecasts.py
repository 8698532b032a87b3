"""A cell simulated: the same trace, rates and rules as it is run with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._core import Trace, parse_size
from paceline.forecast import Run, core_options
from paceline.library import load_cluster
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


def forecast(cell: Cell, costs: Costs) -> Forecast:
    """Under both. Raises UserError."""
    trace = cell.loaded()
    return Forecast(*(run_of(cell, trace, network, costs=costs).result().iteration_s for network in NETWORKS))


def run_of(
    cell: Cell, trace: Trace, network: str, *, costs: Costs, iterations: int = 1, timeline: Path | None = None
) -> Run:
    """The simulation. Raises UserError."""
    cluster = load_cluster(
        None,
        bandwidth=f"{cell.bandwidth_bps:.0f}bps",
        latency=costs.latency,
        message_overhead=costs.message_overhead,
        gpus_per_node=cell.ranks_per_host,
    )
    options: dict[str, Any] = {
        "strategy": cell.strategy.name,
        "workers": cell.workers,
        "servers": cell.servers or None,
        "network": network,
        "compute_speedup": 1 / cell.scale,
        "bucket_size": None if cell.bucket_size is None else parse_size(cell.bucket_size),
        "iterations": iterations,
        "critical_path": False,
    }
    return Run(trace, cluster, core_options(options), timeline)
