"""Runs a scenario: the simulation, what surrounds it, and the interval from what was measured."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline._core import Outcome, Trace
from paceline.catalog.models.workload import Workload
from paceline.forecast import compression as compressions
from paceline.forecast import sharding as shardings
from paceline.forecast.beyond import beyond
from paceline.forecast.evidence import MEMORY_KINDS, Question, interval, memory_interval
from paceline.forecast.footprint import footprint
from paceline.forecast.likeness import Conditions, architecture_of, conditions_of, scale_of
from paceline.forecast.lowering import native
from paceline.forecast.offload import host, timed, with_parts
from paceline.forecast.result import WITHIN, Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import Fit, Memory, Sharded
from paceline.forecast.wording import notes, terms
from paceline.settings.table import default


def _sharded(scenario: Scenario, result: Result, outcome: Outcome) -> Sharded | None:
    """Return what is asked of a plan, with the memory of a GPU."""
    if result.sharded is None or (scenario.workload is None and not shardings.is_plan(scenario.options)):
        return None
    assert outcome.sharded is not None
    peak = outcome.sharded.memory
    memory = Memory.of(peak, footprint(scenario, peak))
    return replace(result.sharded, memory=memory, capacity_bytes=scenario.capacity_bytes, host=host(scenario))


def fit_of(scenario: Scenario) -> Fit:
    """Return what an iteration needs, which takes no simulation. Raises InvalidArgumentError."""
    peak = native(scenario).memory(_stages(scenario.workload) or [scenario.trace])
    return Fit(Memory.of(peak, footprint(scenario, peak)), scenario.capacity_bytes, host(scenario))


def _order(order: str | None) -> str | None:
    """Return an order of tensors, of a file its name."""
    return order if order is None or ":" in order else Path(order).name


def _knob(scenario: Scenario, name: str) -> str | None:
    """Return a choice of strategies with servers, or its default; None of others."""
    value = scenario.options.get(name, default(name) if name in scenario.strategy.knobs else None)
    return "list" if isinstance(value, list) else value


def _stages(workload: Workload | None) -> list[Trace]:
    """Return the traces of the stages of a pipeline, of which one needs most memory."""
    if workload is None or workload.pipeline == 1:
        return []
    return [workload.trace(stage) for stage in range(workload.pipeline)]


def computed_under(scenario: Scenario) -> Conditions | None:
    """Return the conditions of computed times; None if they were measured."""
    gpus, nodes = _gpus(scenario), scenario.nodes(scenario.cluster.gpus_per_node)
    if scenario.workload is not None:
        return conditions_of(scenario.workload, gpus, nodes)
    if scenario.recorded is None:
        return None
    return replace(scenario.recorded, architecture=architecture_of(scenario.trace.device), scale=scale_of(gpus, nodes))


def _gpus(scenario: Scenario) -> int:
    return scenario.workers * (1 if scenario.workload is None else scenario.workload.gpus)


def result_of(scenario: Scenario, ranks: int | None = None) -> Result:
    """Return the result of a scenario, simulated without the GIL. Raises InvalidArgumentError.

    `ranks`: limits the timeline to the first ones.
    """
    core, workload, own = native(scenario), scenario.workload, timed(scenario)
    low = core.lowered
    outcome = core.run(scenario.timeline, ranks=ranks, stages=_stages(workload))
    result = Result.of(outcome) if own is None else with_parts(Result.of(outcome), scenario, own)
    cluster = scenario.cluster
    calibration = None if workload is None else workload.hardware.calibration
    question = Question(
        library=scenario.library.name,
        family=scenario.library.family,
        strategy=result.strategy,
        channel=low.channel,
        workers=scenario.workers,
        nodes=scenario.nodes(cluster.gpus_per_node),
        link_bps=cluster.bandwidth_bps,
        # NCCL's own choice is a ring except for small buckets.
        own=result.strategy == scenario.library.strategy
        or (scenario.library.strategy, result.strategy) == ("native", "ring"),
        computes=result.compute_s > 0,
        coordinated=scenario.coordination is not None,
        sharded=shardings.is_plan(scenario.options),
        communicates=result.messages > 0,
        beyond=beyond(scenario, low),
        conditions=computed_under(scenario),
        gpus=_gpus(scenario),
        spread=0.0 if calibration is None else calibration.spread,
    )
    likely, ground = interval(result.iteration_s, question)
    # Nothing is faster than computation, if that was measured.
    least_s = min(result.compute_s, result.iteration_s)
    figures: dict[str, Any] = {}
    if workload is not None:
        passes = scenario.options.get("accumulate", 1)
        figures |= workload.figures(result.samples_per_s, scenario.workers, passes)
        if workload.has_exchanges:
            # Computation that is said to be faster has faster exchanges within it.
            pass_s = workload.before_s + workload.forward_s + workload.backward_s
            computed_s = (result.forward_s + result.backward_s) / passes
            if own is not None:
                computed_s = own.forward.computed_s + own.backward.computed_s
            faster = computed_s / pass_s
            figures |= {name: faster * figures[name] for name in WITHIN if name in figures}
        figures |= {"assumed": workload.assumed, **workload.parallelism}
        if workload.context > 1 and result.samples_per_s is not None:
            # Each rank counts its part of a sample as one.
            figures["samples_per_s"] = result.samples_per_s / workload.context
        if workload.tensor > 1:
            # Its nodes are made of ranks, each of which is several GPUs.
            figures["notes"] = tuple(terms.note(one, "data-parallel rank") for one in outcome.notes)
        if workload.tensor_nodes > 1:
            inside = replace(workload, links=replace(workload.links, nodes=None) if workload.links else None)
            slower = workload.tensor_parallel_s / inside.tensor_parallel_s
            said_s = figures["tensor_parallel_s"]
            note = notes.tensor_between_nodes(workload.tensor, workload.tensor_nodes, said_s, slower)
            figures["notes"] = (*figures["notes"], note)
    sharded = _sharded(scenario, result, outcome)
    if sharded is not None and question.conditions is not None:
        sharded = replace(
            sharded,
            likely=_likely_memory(sharded, question.conditions),
            for_verdict=_likely_memory(sharded, question.conditions, for_verdict=True),
        )
    if sharded is not None and sharded.memory.activations_bytes is None:
        figures["notes"] = (*figures.get("notes", result.notes), terms.without_activations(result.trace))
    if result.asynchronous is not None:
        figures["notes"] = (*figures.get("notes", result.notes), notes.asynchronous())
    if said := compressions.note(scenario):
        figures["notes"] = (*figures.get("notes", result.notes), *said)
    changes = scenario.changes
    module = changes.get("add_module")
    return replace(
        result,
        **figures,
        chunk=scenario.options.get("chunk"),
        placement=changes.get("placement", _knob(scenario, "placement")),
        distribution=_knob(scenario, "distribution"),
        add_module=module,
        modules=None if module is None else int(module.rpartition(":")[2]),
        send_order=_order(changes.get("send_order")),
        gpu=changes.get("gpu"),
        power_limit_w=changes.get("power_limit"),
        sharded=sharded,
        compression=scenario.options.get("compression"),
        sync_every=scenario.options.get("sync_every"),
        bandwidth_bps=cluster.bandwidth_bps,
        interval=likely if likely is None or question.conditions is not None else likely.at_least(least_s),
        evidence=terms.evidence(ground),
        ground=ground,
        library=scenario.library.spec,
        channel=low.channel,
        flow_bandwidth_bps=low.flow_bps,
        compute_speedup=float(scenario.options.get("compute_speedup", 1.0)),
        cluster=cluster.name,
        gpus_per_node=cluster.gpus_per_node,
        has_rails=cluster.has_rails,
        latency_s=low.cluster.latency_s,
        bucket_size=low.bucket_size,
    )


def _likely_memory(own: Sharded, conditions: Conditions, *, for_verdict: bool = False) -> dict[str, tuple[int, int]]:
    if own.memory.activations_bytes is None:
        return {}
    intervals = {
        kind: memory_interval(own.bytes_of(kind), kind, conditions, for_verdict=for_verdict) for kind in MEMORY_KINDS
    }
    return {kind: ends for kind, ends in intervals.items() if ends is not None}


def traced(scenario: Scenario, ranks: int | None = None) -> tuple[Result, list[dict[str, Any]]]:
    """Return the result and the timeline: events in Chrome's format. Raises InvalidArgumentError.

    `ranks`: limits the timeline to the first workers and the first server.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        path = Path(folder) / "timeline.json"
        result = result_of(replace(scenario, timeline=path), ranks)
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return result, events
