"""Time and memory of training whose states, parameters or activations are in the host's memory.

Copies run beside computation: a pass takes as long as the longer one of both. In the forward pass parameters come from
the host and activations go there; in the backward pass both come, and gradients go. The step runs on the CPUs, whose
memory all ranks of a node share; parameters that stay on the GPU are copied back after it. From a drive, states stream
through the host's memory during the step (S. Rajbhandari et al., "ZeRO-Infinity", 2021, section 6.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline import _core
from paceline._core import Trace
from paceline.catalog.instances import find_instance
from paceline.catalog.models.workload import Workload
from paceline.catalog.offload import PARAMETERS, STATES, rate, slowest
from paceline.catalog.optimizers import IN_BACKWARD
from paceline.catalog.recipes import Recipe, dtype_bytes
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import Host


def check(workload: Workload, shardings: Sequence[str] | None, passes: int) -> None:
    """Refuse what contradicts offloading, or steps in the backward pass. Raises InvalidArgumentError.

    Args:
        workload: What is trained.
        shardings: Of which each is forecast.
        passes: Accumulated ones of an iteration.
    """
    own = workload.offload
    if workload.optimizer_impl == IN_BACKWARD:
        if passes > 1:
            raise InvalidArgumentError(
                f"{IN_BACKWARD} needs every gradient whole after one pass, not {passes}",
                setting="optimizer_impl",
                remedy="drop {accumulate}, or {this=foreach}",
            )
        if own is not None and STATES in own.parts(gathers=False):
            raise InvalidArgumentError(
                f"{IN_BACKWARD} contradicts states on the host, which are updated after the pass",
                setting="optimizer_impl",
                remedy="drop {this}, or {offload=cpu:activations}",
            )
    gathers = any(sharding.kind(one) in sharding.GATHERED for one in shardings or ())
    if own is not None and PARAMETERS in own.named and not gathers:
        raise InvalidArgumentError(
            "parameters on the host are gathered when they are needed, which only zero3 and hsdp do",
            setting="offload",
            remedy=f"{{sharding=zero3}}, or {{this={own.target}:states}}",
        )


def applied(scenario: Scenario) -> Scenario:
    """Return a scenario whose passes and step take as long as their copies, and as the CPU's step."""
    workload = scenario.workload
    if workload is None or workload.pipeline > 1 or not (workload.offloads or workload.offload):
        return scenario
    return replace(scenario, trace=_retimed(scenario, workload))


def host(scenario: Scenario) -> Host | None:
    """Return what a GPU has in the memory of its host; None if that is nothing."""
    workload = scenario.workload
    if workload is None:
        return None
    kept: dict[str, int] = {}
    drives = 0
    own, parts = workload.offload, parts_of(scenario)
    shard = _shard(scenario) * workload.tensor
    if own is not None and STATES in parts:
        recipe = _recipe(scenario, workload)
        trained = workload.trained_elements / shard
        states = round(trained * workload.states_each(recipe).total)
        on_host = {"gradients": round(trained * (4 if recipe.masters else dtype_bytes(recipe.gradients)))}
        on_host |= {"optimizer states": 0 if own.target == "nvme" else states}
        kept |= on_host if not workload.keeps_gradients else {"optimizer states": on_host["optimizer states"]}
        drives += states if own.target == "nvme" else 0
    if own is not None and PARAMETERS in parts:
        held = round(workload.all_held_bytes / shard)
        kept |= {} if own.target == "nvme" else {"parameters": held}
        drives += held if own.target == "nvme" else 0
    if paged := workload.states_each(_recipe(scenario, workload)).paged:
        # At most: as much as the GPU has no room for.
        kept["paged states"] = round(workload.trained_elements / shard * paged)
    if workload.offloads:
        kept["activations"] = workload.offloaded_bytes
    kept = {name: size for name, size in kept.items() if size}
    if not kept and not drives:
        return None
    rented = find_instance(scenario.cluster.name)
    capacities = (None, None) if rented is None else (rented.host_memory_bytes, rented.nvme_bytes)
    return Host(kept, drives, _ranks_of_node(scenario) * workload.tensor, *capacities)


def parts_of(scenario: Scenario) -> tuple[str, ...]:
    """Return the parts of a scenario that are not in the GPU's memory."""
    workload = scenario.workload
    if workload is None or workload.offload is None:
        return ()
    return workload.offload.parts(gathers=_gathers(scenario))


def _gathers(scenario: Scenario) -> bool:
    return sharding.kind(scenario.options.get("sharding") or sharding.NONE) in sharding.GATHERED


def _recipe(scenario: Scenario, workload: Workload) -> Recipe:
    return workload.recipe.sharded if _gathers(scenario) else workload.recipe


def _ranks_of_node(scenario: Scenario) -> int:
    return min(scenario.workers, scenario.cluster.gpus_per_node)


def _shard(scenario: Scenario) -> int:
    """Return over how many ranks the states are sharded."""
    own = scenario.options.get("sharding") or sharding.NONE
    return sharding.shard_ranks(own, scenario.workers, scenario.cluster.gpus_per_node)


def _retimed(scenario: Scenario, workload: Workload) -> Trace:
    parts, shard, recipe = parts_of(scenario), _shard(scenario), _recipe(scenario, workload)
    target = None if workload.offload is None else workload.offload.target
    ranks, link = _ranks_of_node(scenario), workload.hardware.host_link
    drives = ["nvme"] * (target == "nvme")
    copies = rate(link) * workload.tensor
    fetched_s = stored_s = gradients_s = 0.0
    if PARAMETERS in parts:
        held = workload.all_held_bytes / shard
        fetched_s = held / workload.tensor / slowest([link, *drives], ranks)
    if workload.offloads:
        stored_s = workload.offloaded_bytes / rate(link)
    (worker,) = scenario.trace.workers
    step_s = worker.optimizer_s
    if STATES in parts:
        trained = workload.trained_elements
        gradients_s = trained / shard * dtype_bytes(recipe.reduction) / copies
        step_s = _step_s(workload, ranks, on_drives=bool(drives), gathers=_gathers(scenario))
        if PARAMETERS not in parts:
            step_s += trained * dtype_bytes(recipe.parameters) / copies
    forward_s, backward_s = worker.forward_s, worker.backward_s or 0.0
    forward = max(1.0, max(fetched_s, stored_s) / forward_s)
    backward = max(1.0, max(fetched_s + stored_s, gradients_s) / backward_s)
    layers = [
        _core.Layer(
            it.name,
            _seconds(it.duration_s * forward),
            it.tensors,
            activation_bytes=it.activation_bytes,
            backward_bytes=it.backward_bytes,
        )
        for it in worker.forward
    ]
    gradients = [
        _core.Gradient(it.tensor, _seconds(it.ready_s * backward), it.bytes, it.shape) for it in worker.gradients
    ]
    last_s = max([backward_s * backward, *(it.ready_s for it in gradients)])
    own = _core.Worker(layers, gradients, backward_s=_seconds(last_s), optimizer_s=_seconds(step_s))
    return scenario.trace.replace(workers=[own])


def _step_s(workload: Workload, ranks: int, *, on_drives: bool, gathers: bool) -> float:
    """Return the seconds in which the CPUs of a node update all parameters, of which each rank has its share.

    Each operator is dispatched and then computed by the thread that dispatches it.
    """
    recipe = workload.recipe.sharded if gathers else workload.recipe
    moved = workload.update_bytes(recipe)
    speed = rate("memory" if workload.optimizer_impl == "fused" else "memory.loop") / ranks
    computed_s = workload.update_host_s + moved / speed
    if not on_drives:
        return computed_s
    states = workload.trained_elements * workload.states_each(recipe).total
    return max(computed_s, 2 * states / slowest(["nvme"], ranks))


def _seconds(value: float) -> float:
    """Round to picoseconds, as traces do."""
    return round(value, 12)
