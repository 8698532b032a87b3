"""The forecast column: simulations of the same model, strategy, ranks and bandwidth."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from paceline._core import Cluster, Trace
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.catalog.builtin_names import trace_names
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import simulate

from paceline_lab.bench.engines import Engine
from paceline_lab.bench.engines.paceline import DDP_BUCKET
from paceline_lab.bench.result import Result, Row
from paceline_lab.emulate import state
from paceline_lab.emulate.processes import MARK


@dataclass(frozen=True)
class Network:
    """The network between the hosts, for the forecast."""

    cluster: Cluster
    source: str
    """Its source, for the report."""


def network(cluster: str | None, bandwidth: str | None) -> Network | None:
    """Return the cluster of --cluster or --bandwidth, or the emulated cluster that this process runs on.

    Raises InvalidArgumentError.
    """
    if cluster is not None:
        return Network(load_cluster(cluster, bandwidth=bandwidth), f"cluster {cluster}")
    if bandwidth is not None:
        return Network(load_cluster(None, bandwidth=bandwidth), f"NICs of {bandwidth}")
    token = os.environ.get(MARK)
    match = next((one for one in state.every() if one.token == token), None) if token else None
    if match is None:
        return None
    rate = f"{match.bandwidth_bps / 1e6:g}Mbps"
    return Network(load_cluster(None, bandwidth=rate), f"emulated NICs of {rate}")


def forecast(result: Result, engines: list[Engine], where: Network, hosts: int, model: str) -> None:
    """Fill in the column. Computation times are those measured without communication; the rest is simulated."""
    by_label = {engine.label: engine for engine in engines}
    for row in result.rows:
        engine = by_label[row.engine]
        chosen = engine.strategy or _chosen(row)
        step_s, trace = row.alone_s("step"), _trace(result, row, model)
        if chosen is None or step_s is None or trace is None or row.workers < 2 or row.workers % hosts:
            continue
        name, options = chosen
        try:
            row.forecast_s = _simulated(trace, where, name, options, row, step_s, hosts)
            row.forecast_of = name
        except InvalidArgumentError as error:
            result.notes.append(f"no forecast of {row.engine}: {error}")


def _simulated(  # noqa: PLR0917
    trace: Trace, where: Network, strategy: str, options: dict[str, Any], row: Row, step_s: float, hosts: int
) -> float:
    fields: dict[str, Any] = {"gpus_per_node": row.workers // hosts}
    entry = find_strategy(strategy)
    if "servers" in entry.knobs:
        fields["servers"] = "colocated"
    result = simulate(
        trace,
        load_cluster(where.cluster, **fields),
        entry.name,
        # The network was measured, and the engine's fusion is among the options.
        library="none",
        workers=row.workers,
        samples_per_s=row.batch / step_s,
        batch=row.batch,
        **options,
    )
    return result.iteration_s


def _chosen(row: Row) -> tuple[str, dict[str, Any]] | None:
    """Return the strategy that the ranks chose for a DDP bucket."""
    choices = row.runs[-1].ranks[0].get("choices") or []
    # `halving-doubling, pieces of 512 KiB`: pieces are pipelined, as in the simulator.
    name = next((description.partition(",")[0] for most, description in choices if most >= DDP_BUCKET), None)
    return None if name is None else (name, {"bucket_size": DDP_BUCKET})


def _trace(result: Result, row: Row, model: str) -> Trace | None:
    """Return the trace recorded by this engine, or by another with as many ranks, or a built-in one."""
    for one in (row, *(each for each in result.rows if each.workers == row.workers)):
        for run in one.runs:
            if run.trace is not None:
                return Trace.from_json(run.trace.encode(), "the recorded trace")
    known = {name.replace("-", ""): name for name in trace_names()}
    name = known.get(model.replace("_", "").replace("-", ""))
    return None if name is None else load_trace(name)
