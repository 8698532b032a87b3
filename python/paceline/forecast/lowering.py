"""Hands a scenario to the native module, which decides what a library on a channel means for a simulation.

Rates, costs, buckets, and how much workers differ, are decided in `crates/scenario`: the command line, Python,
`--explain` and the study of published measurements all pass through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline import _core
from paceline._core import Lowered
from paceline.catalog import channels
from paceline.catalog.nccl import assumed_values
from paceline.forecast import compression, sharding

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
    elif scenario.update_bytes and "optimizer" not in options:
        options["update_bytes"] = scenario.update_bytes
    return _core.Scenario(
        scenario.trace,
        scenario.cluster,
        scenario.strategy.name,
        scenario.workers,
        library=scenario.library.native(),
        channels=channels.native(),
        assumed=assumed_values(),
        coordination=None if scenario.coordination is None else scenario.coordination.native(),
        compression=compression.native(scenario),
        **options,
    )


def types_of_state(model: Workload, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by which a plan has the types of a model's recipe of precision.

    A model's trace has gradients as they are reduced; parameters are gathered in another type by some recipes.
    """
    gathers = sharding.kind(options.get("sharding") or sharding.NONE) in sharding.GATHERED
    if not gathers and "param_dtype" in options:
        return {}
    recipe = model.recipe.sharded if gathers else model.recipe
    every, one = recipe.step_bytes(options.get("optimizer", model.optimizer), model.optimizer_impl, gathers=gathers)
    held = (recipe.parameters, recipe.gradients, recipe.states, recipe.masters, every, one)
    if recipe.gathered == recipe.reduction:
        return {"held": held}
    return {"held": held, "param_dtype": recipe.gathered, "reduce_dtype": recipe.reduction}


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
