"""Hands a scenario to the native module, which decides what a library on a channel means for a simulation.

Rates, costs, buckets, and how much workers differ, are decided in `crates/scenario`: the command line, Python,
`--explain` and the study of published measurements all pass through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline import _core
from paceline._core import Lowered, Trace
from paceline.catalog import channels
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.catalog.nccl import assumed_values
from paceline.catalog.offload import PARAMETERS, STATES
from paceline.catalog.optimizers import IN_CORE, states_each, step_bytes
from paceline.catalog.recipes import recipe_of
from paceline.forecast import compression, offload, sharding

if TYPE_CHECKING:
    from paceline.catalog.models.workload import Workload
    from paceline.forecast.scenario import Scenario

LONG = 6_000_000
"""A simulation of more messages takes over a second: what tries several leaves it out."""
_NOT_SIMULATED = ("memory", "compression")
"""Options that say something of a result, or that are handed over with their costs."""


def native(scenario: Scenario) -> _core.Scenario:
    """Return the scenario in the form of the native module. Raises InvalidArgumentError."""
    options = {name: value for name, value in scenario.options.items() if name not in _NOT_SIMULATED}
    if (model := scenario.workload) is not None:
        options |= {"tensor_parallel": model.tensor, "pipeline_parallel": model.pipeline}
        options |= {"microbatches": model.microbatches, "expert_ranks": model.expert_ranks}
        options = types_of_state(model, options) | options
        options |= {"releases_gradients": True} if model.releases_gradients else {}
    elif "optimizer" in options:
        options |= _states_of_recording(scenario.trace, options)
    elif scenario.update_bytes:
        options["update_bytes"] = scenario.update_bytes
    if options.get("optimizer", IN_CORE[0]) not in IN_CORE:
        # Of which it has the bytes of states.
        del options["optimizer"]
    trace, costs = scenario.trace, compression.native(scenario)
    if (timed := offload.timed(scenario)) is not None:
        # It has the speed of the GPU, which copies and the CPUs' step do not share.
        trace, options["offloaded"] = timed.trace(trace), timed.shares
        costs = compression.faster(costs, options.pop("compute_speedup", 1.0))
    return _core.Scenario(
        trace,
        scenario.cluster,
        scenario.strategy.name,
        scenario.workers,
        library=scenario.library.native(),
        channels=channels.native(),
        assumed=assumed_values(),
        coordination=None if scenario.coordination is None else scenario.coordination.native(),
        compression=costs,
        **options,
    )


def types_of_state(model: Workload, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by which a plan has the types of a model's recipe of precision.

    A model's trace has gradients as they are reduced; parameters are gathered in another type by some recipes.
    """
    gathers = sharding.kind(options.get("sharding") or sharding.NONE) in sharding.GATHERED
    recipe = model.recipe.sharded if gathers else model.recipe
    states: dict[str, Any] = {}
    if model.optimizer not in IN_CORE:
        states["state_bytes"] = model.states_each(recipe).resident
    moved = () if model.offload is None else model.offload.parts(gathers=gathers)
    if STATES in moved:
        states |= {"state_bytes": 0.0} | ({} if model.keeps_gradients else {"releases_gradients": True})
    if PARAMETERS in moved:
        states["offloads_parameters"] = True
    if not gathers and "param_dtype" in options:
        return states
    on_gpu = step_bytes(model.optimizer, model.optimizer_impl, recipe, gathers=gathers)
    every, one = (0, 0) if STATES in moved else on_gpu
    held = (recipe.parameters, recipe.gradients, recipe.states, recipe.masters, every, one)
    types = states | {"held": held}
    if recipe.gathered == recipe.reduction:
        return types
    return types | {"param_dtype": recipe.gathered, "reduce_dtype": recipe.reduction}


def _states_of_recording(trace: Trace, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bytes of states that a recording has with another optimizer, which the native module does not know.

    What was recorded with its optimizer has no FP32 copies that were not recorded.
    """
    if options["optimizer"] in IN_CORE:
        return {}
    dtype = options.get("param_dtype", trace.dtype)
    is_narrow = dtype in ("float16", "bfloat16")
    gathers = sharding.kind(options.get("sharding") or sharding.NONE) in sharding.GATHERED
    as_recorded = trace.optimizer_bytes is not None and dtype == trace.dtype
    recipe = recipe_of(None, "fp16" if dtype == "float16" else "bf16" if is_narrow else "fp32")
    recipe = replace(recipe, states=trace.dtype, masters=False) if as_recorded and is_narrow else recipe
    recipe = recipe.sharded if gathers else recipe
    gradients = trace.workers[0].gradients
    trained = ((it.tensor, it.shape or (it.bytes // DTYPE_BYTES[trace.dtype],), 1) for it in gradients)
    return {"state_bytes": states_each(options["optimizer"], trained, recipe).resident}


def lowered(scenario: Scenario) -> Lowered:
    """Return the scenario with its library's habits and its channel's costs. Explicit options win."""
    return native(scenario).lowered


def is_limited_by_connections(scenario: Scenario) -> bool:
    """Whether the connections of a node to its next one carry less than its link."""
    return native(scenario).is_limited_by_connections


def is_long(scenario: Scenario) -> bool:
    """Return whether a simulation may have so many messages that what tries several leaves it out."""
    return native(scenario).most_messages > LONG


def unreachable(scenario: Scenario) -> str | None:
    """Return why its exchanges cannot be simulated, if they cannot be. Raises InvalidArgumentError."""
    return native(scenario).unreachable()
