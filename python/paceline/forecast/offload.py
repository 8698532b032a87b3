"""Time and memory of training whose states, parameters or activations are in the host's memory.

Copies run beside computation: a pass takes as long as the longer one of both. In the forward pass parameters come from
the host and activations go there; in the backward pass both come, and gradients go. The step runs on the CPUs, whose
memory all ranks of a node share; parameters that stay on the GPU are copied back after it. From a drive, states stream
through the host's memory during the step (S. Rajbhandari et al., "ZeRO-Infinity", 2021, section 6.2).

A scenario's trace is of the GPU alone. Copies and the CPUs' step join it where it is handed to the native module, so
that whatever makes a GPU faster or slower leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline import _core
from paceline._core import Trace
from paceline.catalog.instances import find_instance
from paceline.catalog.models.workload import Workload
from paceline.catalog.offload import ACTIVATIONS, PARAMETERS, STATES, Offload, rate, slowest
from paceline.catalog.optimizers import IN_BACKWARD
from paceline.catalog.recipes import Recipe, dtype_bytes
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding
from paceline.forecast.kinds import Part
from paceline.forecast.result import PathPart, Result
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


@dataclass(frozen=True)
class Beside:
    """A pass or a step: what the GPU computes, and what is copied or updated meanwhile. Times are seconds."""

    computed_s: float
    """On the GPU."""
    offloaded: Mapping[Part, float] = field(default_factory=dict)
    """Seconds by part, which follow each other: the link to the host, the CPUs, the drives."""

    @property
    def offloaded_s(self) -> float:
        """How long all of that takes."""
        return sum(self.offloaded.values())

    @property
    def seconds(self) -> float:
        """The longer one of both."""
        return max(self.computed_s, self.offloaded_s)

    @property
    def shares(self) -> tuple[float, float]:
        """Computation and offloading, as shares of the longer one; nothing is computed in no time."""
        longer = self.seconds
        return (self.computed_s / longer, self.offloaded_s / longer) if longer > 0 else (1.0, 0.0)

    @property
    def longest(self) -> Mapping[Part, float]:
        """The parts of what takes longer."""
        return self.offloaded if self.offloaded_s > self.computed_s else {Part.COMPUTE: self.computed_s}

    def slowed(self, factor: float, host: float = 1.0) -> Beside:
        """Return the same on a GPU that takes a factor as long, and on a host that does."""
        return Beside(factor * self.computed_s, {part: host * seconds for part, seconds in self.offloaded.items()})


@dataclass(frozen=True)
class Timed:
    """The passes and the step of a rank; the step updates all parameters, of which a rank of a shard has its share."""

    forward: Beside
    backward: Beside
    step: Beside

    def slowed(self, forward: float, backward: float, step: float, host: float = 1.0) -> Timed:
        """Return the same on a GPU that takes factors as long for each, and on a host that does."""
        return Timed(
            self.forward.slowed(forward, host), self.backward.slowed(backward, host), self.step.slowed(step, host)
        )

    @property
    def parts(self) -> tuple[Beside, Beside, Beside]:
        """All three."""
        return self.forward, self.backward, self.step

    def of(self, result: Result) -> Iterator[tuple[float, Beside]]:
        """Yield how long a result has each of the three in an iteration, which may be of several passes."""
        yield from zip((result.forward_s, result.backward_s, result.optimizer_s), self.parts, strict=True)

    def trace(self, computed: Trace) -> Trace:
        """Return a trace that takes as long, made of the GPU's."""
        (worker,) = computed.workers
        backward_s = worker.backward_s or 0.0
        forward, backward = self.forward.seconds / worker.forward_s, self.backward.seconds / backward_s
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
        last_s = max([self.backward.seconds, *(it.ready_s for it in gradients)])
        own = _core.Worker(layers, gradients, backward_s=_seconds(last_s), optimizer_s=_seconds(self.step.seconds))
        return computed.replace(workers=[own])

    @property
    def shares(self) -> tuple[tuple[float, float], ...]:
        """Of each: a rank that is slower, always or by chance, computes longer and copies no longer."""
        return tuple(part.shares for part in self.parts)


def timed(scenario: Scenario) -> Timed | None:
    """Return the passes and the step of a scenario that offloads something; None: the GPU's trace is all."""
    workload = scenario.workload
    if workload is None or workload.pipeline > 1 or not (workload.offloads or workload.offload):
        return None
    parts, shard, recipe = parts_of(scenario), _shard(scenario), _recipe(scenario, workload)
    drives = ["nvme"] * (workload.offload is not None and workload.offload.target == "nvme")
    ranks, link, faster = _ranks_of_node(scenario), workload.hardware.host_link, scenario.faster_host
    copies = rate(link) * faster.link
    fetched: dict[Part, float] = {}
    if PARAMETERS in parts:
        held = workload.all_held_bytes(recipe) / shard / workload.tensor
        over = {Part.HOST_LINK: copies} | ({Part.DRIVE: faster.drive * slowest(drives, ranks)} if drives else {})
        narrowest = min(over, key=lambda part: over[part])
        fetched = {narrowest: held / over[narrowest]}
    stored = {Part.HOST_LINK: workload.offloaded_bytes / copies} if workload.offloads else {}
    (worker,) = scenario.trace.workers
    speed = float(scenario.options.get("compute_speedup", 1.0))
    gradients, step = {}, Beside(worker.optimizer_s / speed)
    if STATES in parts:
        trained = workload.trained_elements
        gradients = {Part.HOST_LINK: trained / shard * dtype_bytes(recipe.gradients) / copies / workload.tensor}
        updated = _updated(scenario, workload, ranks, on_drives=bool(drives))
        if PARAMETERS not in parts:
            back_s = trained * dtype_bytes(recipe.parameters) / copies / workload.tensor
            updated = _after(updated, {Part.HOST_LINK: back_s})
        step = Beside(0.0, updated)
    return Timed(
        Beside(worker.forward_s / speed, _longer(fetched, stored)),
        Beside((worker.backward_s or 0.0) / speed, _longer(_after(fetched, stored), gradients)),
        step,
    )


def computed_s(
    scenario: Scenario,
    result: Result,
    *,
    forward: float = 1.0,
    backward: float = 1.0,
    step: float = 1.0,
    host: float = 1.0,
) -> float:
    """Return how long a result computes and offloads in an iteration, on a GPU and a host that take factors as long."""
    if (own := timed(scenario)) is None:
        return forward * result.forward_s + backward * result.backward_s + step * result.optimizer_s
    slower = own.slowed(forward, backward, step, host)
    pairs = zip(own.of(result), slower.of(result), strict=True)
    return sum(seconds * after.seconds / before.seconds for (seconds, before), (_, after) in pairs if seconds > 0)


def with_parts(result: Result, scenario: Scenario, own: Timed) -> Result:
    """Return a result whose critical path has offloading apart from computation, with what it adds to that.

    The path is the slowest rank's, which computes longer and copies no longer; what offloading adds is another rank's.
    """
    slower = _slowest_gpu(scenario)
    parts_s: dict[Part, float] = {}
    added_s = 0.0
    for (seconds, beside), late in zip(own.of(result), own.slowed(slower, slower, slower).parts, strict=True):
        if seconds > 0:
            added_s += seconds * (1 - beside.computed_s / beside.seconds)
            for part, own_s in late.longest.items():
                parts_s[part] = parts_s.get(part, 0.0) + seconds * own_s / beside.seconds
    whole_s = sum(parts_s.values())
    shares = {part: own_s / whole_s for part, own_s in parts_s.items()}
    path: list[PathPart] = []
    for one in result.critical_path:
        own_parts = shares if one.part is Part.COMPUTE else {one.part: 1.0}
        path += [PathPart(part, share * one.seconds) for part, share in own_parts.items() if share > 0]
    path.sort(key=lambda part: -part.seconds)
    return replace(result, critical_path=tuple(path), offload_s=added_s)


def _slowest_gpu(scenario: Scenario) -> float:
    """Return by how much the slowest GPU computes longer than others."""
    factors = [one.factor for one in scenario.cluster.stragglers]
    return max([*factors, *([1.0] if len(factors) < scenario.workers else [])])


def lighter(scenario: Scenario) -> list[Offload | None]:
    """Return ways to offload less than a scenario does; None stands for nothing."""
    workload = scenario.workload
    if workload is None or workload.offload is None:
        return []
    own = workload.offload
    parts = own.parts(gathers=_gathers(scenario))
    fewer: list[Offload | None] = [None]
    if own.target == "nvme":
        fewer.append(replace(own, target="cpu"))
    for part in parts if len(parts) > 1 else ():
        fewer.append(replace(own, named=tuple(one for one in parts if one != part)))
    return fewer


def with_offload(workload: Workload, own: Offload | None) -> Workload:
    """Return a model of which this is offloaded instead."""
    named = () if own is None else own.named
    was = workload.offload is not None and ACTIVATIONS in workload.offload.named
    return replace(workload, offload=own, offloads=ACTIVATIONS in named or (workload.offloads and not was))


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
        held = round(workload.all_held_bytes(_recipe(scenario, workload)) / shard)
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


def _updated(scenario: Scenario, workload: Workload, ranks: int, *, on_drives: bool) -> dict[Part, float]:
    """Return the seconds in which the CPUs of a node update all parameters, of which each rank has its share.

    Each operator is dispatched and then computed by the thread that dispatches it. States on drives are read and
    written meanwhile.
    """
    recipe, faster = _recipe(scenario, workload), scenario.faster_host
    speed = rate("memory" if workload.optimizer_impl == "fused" else "memory.loop") / ranks
    computed = {Part.CPU_STEP: (workload.update_host_s + workload.update_bytes(recipe) / speed) / faster.cpu}
    if not on_drives:
        return computed
    states = workload.trained_elements * workload.states_each(recipe).total
    return _longer(computed, {Part.DRIVE: 2 * states / slowest(["nvme"], ranks) / faster.drive})


def _longer(one: dict[Part, float], other: dict[Part, float]) -> dict[Part, float]:
    """Return what takes longer of two that run beside each other."""
    return max(one, other, key=lambda parts: sum(parts.values()))


def _after(one: dict[Part, float], other: dict[Part, float]) -> dict[Part, float]:
    """Return two that follow each other."""
    return {part: one.get(part, 0.0) + other.get(part, 0.0) for part in (*one, *other)}


def _seconds(value: float) -> float:
    """Round to picoseconds, as traces do."""
    return round(value, 12)
