"""The simulations for a state: curves over workers, a ranking, and the timeline of one strategy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from paceline._core import Cluster, Straggler, Switch, Trace
from paceline._internal.block import Fact
from paceline.catalog.builtin import load_cluster, load_trace, totals
from paceline.catalog.channels import with_channel
from paceline.catalog.libraries import find_library
from paceline.catalog.strategies import Strategy, all_strategies, feasible, find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.execute import execute
from paceline.forecast.lowering import lowered
from paceline.forecast.output import style
from paceline.forecast.prepare import plan
from paceline.forecast.result import Result
from paceline.forecast.run import traced
from paceline.forecast.scenario import Scenario
from paceline.forecast.verdict.groups import Group
from paceline.forecast.wording import verdict
from paceline.forecast.wording.bottleneck import path
from paceline.forecast.wording.rows import rate_of

from paceline_lab.explore.state import State
from paceline_lab.report.lanes import MOST_LANES, lanes_of

# Ranks whose lanes are drawn, of all that are simulated: more are not read.
_TIMELINE_RANKS = 4
# Buckets × workers²: about what a ring sends; three millions take a second.
_MOST_MESSAGES = 3_000_000


def cluster_of(state: State) -> Cluster:
    """Return the preset under the sliders."""
    library = find_library(state.library)
    linked = load_cluster(state.cluster, bandwidth=f"{state.bandwidth_gbps:g}Gbps")
    machine = load_cluster(
        with_channel(linked, library.channel or None, bare=library.is_bare),
        latency=f"{state.latency_us:g}us",
        gpus_per_node=state.gpus_per_node,
    )
    own = machine.switch
    able = Switch(
        multicast=state.multicast,
        aggregation=state.aggregation,
        cut_through=own.cut_through,
        memory=own.memory,
        radix=own.radix,
    )
    return machine.replace(switch=able, stragglers=[Straggler(0, state.straggler)] if state.straggler > 1 else [])


def preset(name: str) -> dict[str, Any]:
    """Return the positions of the sliders for a cluster; nobody says what the switch of `flat` can do."""
    cluster = with_channel(load_cluster(name))
    return {
        "bandwidth_gbps": cluster.bandwidth_bps / 1e9,
        "latency_us": cluster.latency_s * 1e6,
        "gpus_per_node": cluster.gpus_per_node,
        "multicast": cluster.switch.multicast and name != "flat",
        "aggregation": cluster.switch.aggregation and name != "flat",
    }


def answer(state: State) -> dict[str, Any]:
    """Return everything that the page draws. Raises InvalidArgumentError."""
    begin = time.perf_counter()
    trace, cluster = load_trace(state.trace), cluster_of(state)
    able, unable = feasible(list(all_strategies()), cluster)
    counts = _counts(state.workers)
    _refuse_slow(state, trace, cluster)
    runs = _runs(state, trace, able, cluster, counts)
    results = execute(runs)
    last = [result for result in results if result.workers == state.workers]
    ranked = sorted(last, key=lambda result: result.iteration_s)
    shown = next((entry for entry in able if entry.name == state.strategy), None) or next(
        entry for entry in able if entry.name == ranked[0].strategy
    )
    response = {
        "trace": totals(trace),
        "curves": [_curve(entry, results) for entry in able],
        "ideal": _ideal(results, counts),
        "ranking": [_ranked(result) for result in ranked],
        "timeline": _timeline(state, trace, shown, cluster),
        "bandwidth": rate_of(ranked[0]),
        "answer": answered(_group(runs, results, state.workers), _of(shown, ranked)),
        "left_out": [entry.name for entry in unable],
        "colors": {entry.name: style.strategy(entry.name).color for entry in able} | style.PARTS,
        "simulations": len(runs) + 1,
    }
    return response | {"elapsed_ms": 1e3 * (time.perf_counter() - begin)}


def answered(group: Group, result: Result) -> dict[str, Any]:
    """Return the answer about a result: headline and facts, and where it does not fit, memory and remedy."""
    said = verdict.brief(group, result)
    return {
        "fits": said.fits,
        "headline": said.headline,
        "facts": list(map(_fact, said.facts)),
        "memory": list(map(_fact, said.memory)),
        "remedy": said.remedy,
        "otherwise": said.otherwise,
        "notes": list(said.notes),
    }


def _fact(one: Fact) -> dict[str, Any]:
    return {"label": one.label, "values": list(one.values)}


def _of(strategy: Strategy, results: Sequence[Result]) -> Result:
    return next(result for result in results if result.strategy == strategy.name)


def _group(scenarios: Sequence[Scenario], results: Sequence[Result], workers: int) -> Group:
    """Return the largest configuration."""
    of = [(one, result) for one, result in zip(scenarios, results, strict=True) if result.workers == workers]
    return Group([one for one, _ in of], [result for _, result in of], noun="worker")


def _refuse_slow(state: State, trace: Trace, cluster: Cluster) -> None:
    size = lowered(_run(state, trace, find_strategy("ring"), cluster)).bucket_size
    buckets = len(trace.buckets(size))
    if buckets * state.workers**2 > _MOST_MESSAGES:
        raise InvalidArgumentError(
            f"{buckets} buckets on {state.workers} workers take longer than a slider should",
            remedy="a larger bucket size, fewer workers, or paceline simulate",
        )


def _counts(workers: int) -> list[int]:
    """Return powers of two up to the requested number, and that."""
    powers = [2**power for power in range(workers.bit_length()) if 2**power < workers]
    return [*powers, workers]


def _runs(
    state: State, trace: Trace, strategies: Sequence[Strategy], cluster: Cluster, counts: Sequence[int]
) -> list[Scenario]:
    return plan(
        [trace],
        [cluster],
        strategies,
        workers=counts,
        servers=[state.servers],
        compute_speedups=[state.compute_speedup if state.compute_speedup != 1 else None],
        library=find_library(state.library),
        bucket_sizes=[None if state.bucket_mb is None else int(state.bucket_mb * 1e6) or "none"],
        options={},
    )


def _run(state: State, trace: Trace, strategy: Strategy, cluster: Cluster) -> Scenario:
    [run] = _runs(state, trace, [strategy], cluster, [state.workers])
    return run


def _curve(strategy: Strategy, results: Sequence[Result]) -> dict[str, Any]:
    own = [result for result in results if result.strategy == strategy.name]
    return {
        "strategy": strategy.name,
        "workers": [result.workers for result in own],
        "samples_per_s": [result.samples_per_s for result in own],
        "efficiency": [result.scaling_efficiency for result in own],
    }


def _ideal(results: Sequence[Result], counts: Sequence[int]) -> list[float | None]:
    alone = next(result for result in results if result.workers == counts[0])
    rate = alone.batch / alone.compute_s if alone.compute_s > 0 else None
    return [None if rate is None else count * rate for count in counts]


def _ranked(result: Result) -> dict[str, Any]:
    compute = min(result.compute_s, result.iteration_s)
    return {
        "strategy": result.strategy,
        "servers": result.servers,
        "iteration_s": result.iteration_s,
        "compute_s": compute,
        "exposed_s": result.iteration_s - compute,
        "samples_per_s": result.samples_per_s,
        "efficiency": result.scaling_efficiency,
        "path": path(result, "worker") if result.critical_path else "",
    }


def _timeline(state: State, trace: Trace, strategy: Strategy, cluster: Cluster) -> dict[str, Any]:
    run = _run(state, trace, strategy, cluster)
    result, events = traced(run, _TIMELINE_RANKS)
    return {
        "strategy": strategy.name,
        "workers": state.workers,
        "ranks": min(state.workers, _TIMELINE_RANKS),
        "iteration_s": result.iteration_s,
        **spans_of(events),
    }


def spans_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first lanes of a timeline, and what is on them; times in seconds."""
    lanes = lanes_of(events)[:MOST_LANES]
    return {
        "lanes": [lane.name for lane in lanes],
        "spans": [
            {"lane": lane.name, "category": category, "begin_s": begin, "duration_s": duration}
            for lane in lanes
            for category, begin, duration in lane.spans
        ],
    }
