"""The forecasts for a model on GPUs: curves over GPUs, what an iteration and the memory consist of, and a timeline."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import Any

from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError
from paceline.forecast.execute import execute
from paceline.forecast.kinds import Part
from paceline.forecast.output import style
from paceline.forecast.prepare import Prepared, prepare
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import traced
from paceline.forecast.scenario import Scenario
from paceline.forecast.verdict.groups import Group
from paceline.forecast.wording import terms
from paceline.forecast.wording.rows import rate_of, sharding_label
from paceline.settings.table import SETTINGS

from paceline_lab.explore.answers import answered, spans_of
from paceline_lab.explore.state import SHARDINGS, ModelState
from paceline_lab.report.charts import memory_of

_MOST_PASSES = 6_000
"""Passes through blocks of all forecasts: more take longer than two or three seconds."""
_FIELDS = ("gpu", "seq", "batch", "accumulate", "tensor_parallel", "dtype", "checkpointing", "kernels")
"""Fields of the state that are settings, by their names."""
_PLAIN = {"accumulate": 1, "tensor_parallel": 1, "checkpointing": "none", "kernels": "fused", "dtype": ""}
"""Values that stand for leaving them out."""


def answer(state: ModelState) -> dict[str, Any]:
    """Return everything that the page draws. Raises InvalidArgumentError."""
    begin = time.perf_counter()
    groups = {sharding: _prepared(state, sharding, counts) for sharding, counts in _counts(state).items()}
    scenarios = {name: prepared.scenarios for name, prepared in groups.items()}
    left_out: dict[str, str] = {}
    remedy: str | None = None
    results: dict[str, list[Result]] = {}
    for name, own in scenarios.items():
        try:
            results[name] = execute(own)
        except InvalidArgumentError as error:
            left_out[name] = error.reason
            remedy = remedy or error.remedy
    if not results:
        raise InvalidArgumentError("; ".join(f"{name}: {why}" for name, why in left_out.items()), remedy=remedy)
    last = [(one, own[-1], scenarios[one][-1]) for one, own in results.items() if _gpus(own[-1]) == state.gpus]
    ranked = sorted(last, key=lambda it: it[1].iteration_s)
    fitting = [it for it in ranked if _fits(it[1])]
    name, result, scenario = next((it for it in last if it[0] == state.sharding), (fitting or ranked)[0])
    workload = scenario.workload
    assert workload is not None
    colors = {one: style.coordinator(place).color for place, one in enumerate(SHARDINGS)}
    notes = dict.fromkeys(note for prepared in groups.values() for note in prepared.notes)
    response = {
        "bandwidth": rate_of(result, workload),
        "answer": answered(Group([scenario], [result]), result),
        "capacity_bytes": workload.hardware.memory_bytes,
        "unit": "tokens/s" if workload.is_text else "images/s",
        "curves": [_curve(one, own, workload) for one, own in results.items()],
        "rows": [_row(one, outcome, workload) for one, outcome, _ in ranked],
        "shown": name,
        "timeline": _timeline(state, name, scenario),
        "command": command(state, name),
        "notes": [*notes, *(f"Skipped {one}: {why}" for one, why in left_out.items())],
        "colors": colors | style.PARTS,
        "colors_of_memory": style.MEMORY,
        "simulations": sum(len(own) for own in results.values()) + 1,
    }
    return response | {"elapsed_ms": 1e3 * (time.perf_counter() - begin)}


def values_of(state: ModelState) -> dict[str, Any]:
    """Return the settings of `paceline simulate` that differ from its defaults, without GPUs and sharding."""
    given = {name: getattr(state, name) for name in _FIELDS}
    given = {name: value for name, value in given.items() if value is not None and value != _PLAIN.get(name)}
    return given if state.bandwidth_gbps is None else given | {"bandwidth": f"{state.bandwidth_gbps:g}Gbps"}


def command(state: ModelState, sharding: str) -> str:
    """Return the command that forecasts a sharding."""
    words = ["paceline", "simulate", state.model, "--gpus", str(state.gpus), "--sharding", sharding]
    for name, value in values_of(state).items():
        words += [SETTINGS[name].flag, str(value)]
    return shlex.join(words)


def _counts(state: ModelState) -> dict[str, list[int]]:
    """Return the numbers of GPUs for each sharding: powers of two times the GPUs of a rank, and what was asked for."""
    if state.gpus % state.tensor_parallel:
        raise InvalidArgumentError(
            f"tensor_parallel: {state.gpus} GPUs are not a multiple of {state.tensor_parallel}",
            remedy=f"{max(1, state.gpus // state.tensor_parallel) * state.tensor_parallel} GPUs",
        )
    ranks = state.gpus // state.tensor_parallel
    every = [2**power for power in range(ranks.bit_length()) if 2**power < ranks] + [ranks]
    plain = Sweep.of(state.model, {**values_of(state), "workers": [state.gpus]}, "simulate", "flag")
    per_node = plain.machine().gpus_per_node
    workload = plain.workload(state.model)
    assert workload is not None  # the state has a GPU
    # Fewer points where each takes longer.
    blocks = len({layer.block for layer in workload.model.layers})
    most = max(1, _MOST_PASSES // (len(SHARDINGS) * blocks * state.accumulate))
    every = every[-most:]
    # Groups of a node's ranks; one group of all is zero3, and groups of one rank are none.
    grouped = [count for count in every if count > per_node > 1 and count % per_node == 0]
    several = [count for count in every if count > 1]
    of = {"none": every, "zero1": several, "zero2": several, "zero3": several, "hsdp": grouped}
    return {name: [count * state.tensor_parallel for count in counts] for name, counts in of.items() if counts}


def _prepared(state: ModelState, sharding: str, counts: Sequence[int]) -> Prepared:
    given = {**values_of(state), "workers": counts, "sharding": sharding}
    return prepare(Sweep.of(state.model, given, "simulate", "flag"))


def _gpus(result: Result) -> int:
    return result.gpus


def _fits(result: Result) -> bool:
    """Return whether its memory fits, or nobody knows how much there is."""
    return result.sharded is not None and result.sharded.fits is not False


def _rate(result: Result, workload: Workload) -> float | None:
    """Return tokens or images per second and GPU."""
    if workload.is_text or result.samples_per_s is None:
        return result.tokens_per_s_per_gpu
    return result.samples_per_s / _gpus(result)


def _curve(sharding: str, results: Sequence[Result], workload: Workload) -> dict[str, Any]:
    return {
        "sharding": sharding,
        "gpus": [_gpus(result) for result in results],
        "per_gpu": [_rate(result, workload) for result in results],
        "fits": [_fits(result) for result in results],
        "peak_bytes": [0 if result.sharded is None else result.sharded.memory.peak_bytes for result in results],
    }


def _row(sharding: str, result: Result, workload: Workload) -> dict[str, Any]:
    own = result.sharded
    assert own is not None
    parts = {
        "all-gather": own.exposed.all_gather_s,
        "reduce-scatter": own.exposed.reduce_scatter_s,
        "all-reduce": own.exposed.all_reduce_s,
        terms.part(Part.CALLS): own.calls_s,
        terms.part(Part.SLOWED): own.slowed_s,
        "wait": own.straggling_s,
    }
    return {
        "sharding": sharding,
        "label": sharding_label(result),
        "iteration_s": result.iteration_s,
        "compute_s": max(0.0, result.iteration_s - sum(parts.values())),
        "parts": {name: seconds for name, seconds in parts.items() if seconds > 0},
        "per_gpu": _rate(result, workload),
        "mfu": result.mfu,
        "memory": memory_of(result),
        "peak_bytes": own.memory.peak_bytes,
        "fits": _fits(result),
        "tight": own.is_tight,
    }


def _timeline(state: ModelState, sharding: str, scenario: Scenario) -> dict[str, Any]:
    result, events = traced(scenario, 1)
    return {"sharding": sharding, "gpus": state.gpus, "iteration_s": result.iteration_s, **spans_of(events)}
