"""The simulation of a cell, with the trace, rates and rules of the real run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline._core import Cluster, Trace
from paceline.catalog.builtin import load_cluster
from paceline.forecast.asynchronous import Asynchronous
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
    staleness: Mapping[str, Asynchronous] = field(default_factory=dict)
    """By model, if workers do not wait for each other."""

    def network(self, wanted: str) -> str:
        """The requested model, or the only one available."""
        return "fifo" if self.fluid_s is None else wanted

    def of(self, network: str) -> float:
        """Return the forecast of one model; that of `fifo` if `fluid` has none."""
        return self.fifo_s if network == "fifo" or self.fluid_s is None else self.fluid_s


def forecast(cell: Cell, cluster: Cluster, knobs: Mapping[str, Any] | None = None) -> Forecast:
    """Forecast under both models. Raises InvalidArgumentError."""
    trace = cell.loaded()
    networks = ("fifo",) if cell.needs_switch else ("fifo", "fluid")
    results = {network: result_of(run_of(cell, trace, network, cluster, knobs=knobs)) for network in networks}
    stale = {network: one.asynchronous for network, one in results.items() if one.asynchronous is not None}
    fluid_s = results["fluid"].iteration_s if "fluid" in results else None
    return Forecast(results["fifo"].iteration_s, fluid_s, stale)


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
    iterations: int | None = None,
    timeline: Path | None = None,
) -> Scenario:
    """Run the simulation. `knobs`: options other than the cell's. Raises InvalidArgumentError."""
    own: dict[str, Any] = {"iterations": 1}
    if cell.staleness is not None:
        # A worker of a job pulls all parameters at once. By default, its steady state is simulated.
        own = {"staleness": cell.staleness, "pull": "step", "iterations": None}
    options: dict[str, Any] = {
        "servers": cell.servers or None,
        "network": network,
        "compute_speedup": 1 / cell.scale,
        "bucket_size": cell.bucket_size,
        "sharding": cell.planned_sharding,
        "compression": cell.compression,
        "critical_path": False,
        **own,
        **({} if iterations is None else {"iterations": iterations}),
        **(knobs or {}),
    }
    return Scenario.of(trace, cluster, cell.strategy, cell.workers, timeline=timeline, **options)
