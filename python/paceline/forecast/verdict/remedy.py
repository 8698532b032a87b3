"""Changes that would reduce the largest part of a GPU's memory, where a forecast does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto

from paceline.catalog.models.workload import Workload
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import Sharded
from paceline.forecast.sharding import NONE, kind


class Cure(Enum):
    """A way to need less memory."""

    MORE_GPUS = auto()
    """All together are too few for the model's state, which fills `gpus`."""
    LESS_ACTIVATIONS = auto()
    """A smaller batch with more passes, checkpointing, or shorter sequences."""
    RESHARD = auto()
    """Gathered units again after the forward pass."""
    SMALLER_UNITS = auto()
    SHARD_OVER_MORE = auto()
    """GPUs: one cannot shard."""
    SHARD_MORE = auto()
    """Of the state."""
    LARGER_GROUPS = auto()
    SYNC = auto()
    """In every pass, so that gradients stay sharded."""
    SHARD_STATE = auto()
    """Over more GPUs: all of it is sharded."""


@dataclass(frozen=True)
class Remedy:
    """A cure, with what it takes."""

    cure: Cure
    gpus: int = 0
    whole_nodes: int = 0
    """The GPUs of as many nodes as have `gpus`."""
    fewer_states: bool = False
    """Whether there is an optimizer with fewer states."""
    batch: int = 0
    """The smaller batch; 0: there is none."""
    passes: int = 0
    microbatches: int = 0
    """In a pipeline; 0: there is none."""
    checkpointing: str = ""
    """The checkpointing that is not used yet: `full`, or `yes` for a recording; empty: all is."""


def least_gpus(workload: Workload, capacity_bytes: int) -> int:
    """Return how many GPUs hold the model's state, without activations, if it is shared evenly."""
    whole = replace(workload, tensor=1, pipeline=1, microbatches=1, virtual_stages=1).memory(sharding="zero3")
    return -(-(whole.parameters + whole.gradients + whole.optimizer) // capacity_bytes)


def has_fewer_states(workload: Workload | None) -> bool:
    """Whether there is an optimizer with fewer states than the workload's."""
    return workload is None or workload.optimizer != "sgd"


def remedy(scenario: Scenario, own: Sharded) -> Remedy:
    """Return what would reduce the largest part of the memory."""
    workload, capacity = scenario.workload, own.capacity_bytes
    fewer = has_fewer_states(workload)
    if workload is not None and capacity:
        least = least_gpus(workload, capacity)
        if least > scenario.workers * workload.gpus:
            step = math.lcm(scenario.cluster.gpus_per_node * workload.tensor, workload.gpus)
            return Remedy(Cure.MORE_GPUS, gpus=least, whole_nodes=-(-least // step) * step, fewer_states=fewer)
    memory = own.memory
    state = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    units = memory.gathered_bytes + memory.communication_bytes
    if (memory.activations_bytes or 0) > state + units:
        return _less_activations(scenario, own)
    name = kind(own.sharding)
    if units > state:
        default = "no" if workload is not None and workload.pipeline > 1 else "yes"
        kept = scenario.options.get("reshard_after_forward", default) != "yes"
        return Remedy(Cure.RESHARD if kept else Cure.SMALLER_UNITS)
    if name != "zero3":
        if scenario.workers == 1:
            return Remedy(Cure.SHARD_OVER_MORE)
        return Remedy(Cure.SHARD_MORE if name in (NONE, "zero1", "zero2") else Cure.LARGER_GROUPS)
    if "accumulate" in scenario.options and scenario.options.get("accumulate_sync") is False:
        return Remedy(Cure.SYNC)
    return Remedy(Cure.SHARD_STATE, fewer_states=fewer)


def _less_activations(scenario: Scenario, own: Sharded) -> Remedy:
    workload = scenario.workload
    batch = scenario.trace.batch if workload is None else workload.batch
    unused = "yes" if workload is None else "full" if workload.checkpointing != "full" else ""
    stages = workload is not None and workload.pipeline > 1
    return Remedy(
        Cure.LESS_ACTIVATIONS,
        batch=batch // 2,
        passes=2 * own.passes,
        microbatches=2 * workload.microbatches if workload is not None and stages else 0,
        checkpointing=unused,
    )
