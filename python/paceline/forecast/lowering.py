"""Hands a scenario to the native module, which decides what a library on a channel means for a simulation.

Rates, costs, buckets, and how much workers differ, are decided in `crates/scenario`: the command line, Python,
`--explain` and the study of published measurements all pass through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline import _core
from paceline._core import Lowered
from paceline.catalog import channels
from paceline.catalog.nccl import assumed_values
from paceline.forecast import compression

if TYPE_CHECKING:
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
