"""The simulation of a cell, with the trace, rates and rules of the real run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._core import Cluster, Trace
from paceline.catalog.builtin import load_cluster
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario

from paceline_lab.validate.cells import Cell

_SWITCH = {"multicast": True, "aggregation": True, "cut_through": True}
"""As the process that acts as the switch does."""


@dataclass(frozen=True)
class Costs:
    """The cost of a simulated message in addition to its bytes, as times with units."""

    latency: str | None = None
    message_overhead: str | None = None


@dataclass(frozen=True)
class Forecast:
    """Seconds of an iteration under each model of the network."""

    fifo_s: float
    fluid_s: float | None
    """None if that model has no switch that forwards sums as they arrive."""

    def network(self, wanted: str) -> str:
        """The requested model, or the only one available."""
        return "fifo" if self.fluid_s is None else wanted

    def of(self, network: str) -> float:
        """Return the forecast of one model; that of `fifo` if `fluid` has none."""
        return self.fifo_s if network == "fifo" or self.fluid_s is None else self.fluid_s


def forecast(cell: Cell, cluster: Cluster, knobs: Mapping[str, Any] | None = None) -> Forecast:
    """Forecast under both models. Raises InvalidArgumentError."""
    trace = cell.loaded()
    fifo_s = result_of(run_of(cell, trace, "fifo", cluster, knobs=knobs)).iteration_s
    if cell.needs_switch:
        return Forecast(fifo_s, None)
    return Forecast(fifo_s, result_of(run_of(cell, trace, "fluid", cluster, knobs=knobs)).iteration_s)


def emulated(cell: Cell, costs: Costs) -> Cluster:
    """Return the emulated cluster of a cell. Raises InvalidArgumentError."""
    return load_cluster(
        None,
        bandwidth=f"{cell.bandwidth_bps:.0f}bps",
        latency=costs.latency,
        message_overhead=costs.message_overhead,
        gpus_per_node=cell.ranks_per_host,
        switch=_SWITCH,
        racks=None if cell.hosts_per_rack is None else {"nodes_per_rack": cell.hosts_per_rack, "oversubscription": 1.0},
    )


def run_of(
    cell: Cell,
    trace: Trace,
    network: str,
    cluster: Cluster,
    *,
    knobs: Mapping[str, Any] | None = None,
    iterations: int = 1,
    timeline: Path | None = None,
) -> Scenario:
    """Run the simulation. `knobs`: options other than the cell's. Raises InvalidArgumentError."""
    options: dict[str, Any] = {
        "servers": cell.servers or None,
        "network": network,
        "compute_speedup": 1 / cell.scale,
        "bucket_size": cell.bucket_size,
        "sharding": cell.planned_sharding,
        "compression": cell.compression,
        "iterations": iterations,
        "critical_path": False,
        **(knobs or {}),
    }
    return Scenario.of(trace, cluster, cell.strategy, cell.workers, timeline=timeline, **options)
