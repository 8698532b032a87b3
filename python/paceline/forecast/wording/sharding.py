"""Words for sharded training: exposed communication, memory, whether that fits, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline._internal.block import Fact, Pair
from paceline.forecast.footprint import FULLEST, allocatable_bytes
from paceline.forecast.likeness import VERDICT_LEVEL
from paceline.forecast.lowering import lowered
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import Host, Sharded

TIGHT_LEGEND = "tight: PyTorch's allocator may reserve all that is left, and slow the job down"


def memory_text(result: Result) -> str:
    """Return the peak memory in GB for a table, with a mark if it does not fit or is tight."""
    if result.sharded is None:
        return "-"
    own = result.sharded
    return units.gigabytes(own.memory.total_bytes) + (" !" if own.fits is False else " ~" if own.is_tight else "")


def legend(results: Sequence[Result]) -> list[str]:
    """Return the meanings of marks in a table, those that one of its rows has."""
    every = [it.sharded for it in results if it.sharded is not None]
    sizes = {own.capacity_bytes for own in every if own.fits is False and own.capacity_bytes}
    known = units.listed([units.memory(size) for size in sorted(sizes)], "or") if sizes else ""
    return [
        *([f"! does not fit: of a GPU's {known}, {FULLEST:.1%} can be allocated"] if known else []),
        *([f"~ {TIGHT_LEGEND}"] if any(own.is_tight for own in every) else []),
    ]


def exposed(scenario: Scenario, result: Result) -> list[Fact]:
    """Return the line `Exposed`: communication that lengthens an iteration, by its parts."""
    own, seconds = result.sharded, result.exposed_communication_s
    if result.workers == 1 or result.compute_s <= 0:
        return []
    if not seconds:
        return [Fact("Exposed", "nothing: compute hides all communication")]
    total = f"{units.duration(seconds)} of communication"
    if own is None:
        return [Fact("Exposed", total)]
    parts = exposed_parts(own, _spread(scenario))
    return [Fact("Exposed", f"{total}: {parts[0][1]}") if len(parts) == 1 else Fact("Exposed", total, *parts)]


def exposed_parts(own: Sharded, spread: str = "") -> list[Pair]:
    """Return the parts of `exposed_communication_s`, largest first. `spread`: what is assumed of slow ranks."""
    parts = {
        "compute slowed by NCCL kernels": own.slowed_s,
        f"waiting for the slowest rank{spread}": own.straggling_s,
        "framework overhead": own.calls_s,
        "all-gather": own.exposed.all_gather_s,
        "reduce-scatter": own.exposed.reduce_scatter_s,
        "all-reduce": own.exposed.all_reduce_s,
        "compression": own.exposed.compression_s,
    }
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return [(units.duration(seconds), name) for name, seconds in ordered if seconds > 0]


def _spread(scenario: Scenario) -> str:
    assumed = lowered(scenario).spread
    return f" (assumed: times vary by {units.percent(assumed)})" if assumed else ""


def lack(allocated_bytes: int, can_be_bytes: int, capacity_bytes: int) -> str:
    """Return `56.4 GB to allocate per GPU, and 48.3 of 51.0 GB can be`, where a GPU's memory is too small."""
    if capacity_bytes < 1e9:
        most = f"{units.size(can_be_bytes)} of {units.size(capacity_bytes)}"
        return f"{units.size(allocated_bytes)} to allocate per GPU, and {most} can be"
    most = f"{units.gigabytes(can_be_bytes)} of {units.memory(capacity_bytes)}"
    return f"{units.memory(allocated_bytes)} to allocate per GPU, and {most} can be"


def need(own: Sharded) -> str:
    """Return `48.1 of 84.9 GB per GPU (46.0 GB allocated)`, or without the GPU's memory where it is not known.

    Where that is too small, return what `lack` does: what is allocated and what can be, which decide it.
    """
    total, allocated = own.memory.total_bytes, f"({units.memory(own.memory.peak_bytes)} allocated)"
    if own.capacity_bytes is not None and not own.memory.fits_into(own.capacity_bytes):
        most = allocatable_bytes(own.capacity_bytes, own.memory.beside_bytes)
        return lack(own.memory.peak_bytes, most, own.capacity_bytes)
    if own.capacity_bytes is None:
        return f"{units.memory(total)} per GPU {allocated}"
    if own.capacity_bytes < 1e9:
        return f"{units.size(total)} of {units.size(own.capacity_bytes)} per GPU {allocated}"
    return f"{units.gigabytes(total)} of {units.memory(own.capacity_bytes)} per GPU {allocated}"


def memory(scenario: Scenario, result: Result, *, in_full: bool) -> list[Fact]:
    """Return the line `Memory`. `in_full`: with its parts, as always where it does not fit."""
    own = result.sharded
    if own is None:
        return []
    parts = memory_parts(own)
    host = [] if own.host is None else [host_memory(own.host)]
    if own.fits is False:
        return [Fact("Memory", *parts, tone="bad"), *host]
    text = need(own) + (_room(own) if own.memory.activations_bytes is not None else ", without activations")
    if scenario.workload is not None and scenario.workload.pipeline > 1:
        text += " (stage that needs most)"
    return [Fact("Memory", text, *(parts if in_full else ())), *host]


def host_memory(own: Host) -> Fact:
    """Return the line `Host memory`, of a node: what offloading needs of it, and of its drives."""
    parts = [f"{name} {units.memory(own.gpus * size)}" for name, size in own.memory.items()]
    need = units.memory(own.node_bytes)
    need = need if own.capacity_bytes is None else f"{need} of {units.memory(own.capacity_bytes)}"
    memory = [f"{need} per node ({', '.join(parts)})"] if parts else []
    drives = f"{units.memory(own.gpus * own.drives)} on NVMe" + ("" if parts else " per node")
    text = ", ".join([*memory, drives] if own.drives else memory)
    if own.fits is False:
        return Fact("Host memory", f"{text}: does not fit", tone="bad")
    return Fact("Host memory", text + (": fits" if own.fits else ""))


def fit(own: Sharded) -> str:
    """Return `48.1 of 84.9 GB per GPU: fits`."""
    return need(own) + _room(own)


def _room(own: Sharded) -> str:
    if own.is_tight and not own.may_not_fit:
        return f": tight, {units.memory(own.room_bytes)} left" if own.room_bytes else ": tight, all of it reserved"
    return f": {own.verdict}{chance(own)}" if own.fits else ""


def chance(own: Sharded) -> str:
    """Return `, as 20% of such jobs allocate more than 98.2 GB` where a verdict may be wrong."""
    ends = own.in_question
    if ends is None:
        return ""
    rare = f"{(1 - VERDICT_LEVEL) / 2:.0%} of such jobs allocate"
    return (
        f", as {rare} more than {units.memory(ends[1])}" if own.fits else f"; {rare} less than {units.memory(ends[0])}"
    )


def held_bytes(own: Sharded) -> dict[str, int]:
    """Return the bytes that are allocated at the peak, by kind."""
    held = own.memory
    return {
        "parameters": held.parameters_bytes,
        "gradients": held.gradients_bytes,
        "optimizer states": held.optimizer_bytes,
        "gathered FSDP units": held.gathered_bytes,
        "communication buffers": held.communication_bytes,
        "activations": held.activations_bytes or 0,
    }


def memory_parts(own: Sharded) -> list[Pair]:
    """Return what a process takes at the peak, largest first: what is allocated, and then what it takes besides."""
    besides = {
        "besides: reserved, not allocated": own.memory.reserved_bytes - own.memory.peak_bytes,
        "besides: CUDA context": own.memory.context_bytes,
        "besides: NCCL buffers": own.memory.nccl_bytes,
    }
    ordered = [part for kind in (held_bytes(own), besides) for part in sorted(kind.items(), key=lambda one: -one[1])]
    return [(units.memory(size), name) for name, size in ordered if size]


def assumed(scenario: Scenario) -> list[str]:
    """Return the note that Adam's states are assumed, if neither trace nor request names an optimizer."""
    is_known = scenario.workload is not None or scenario.options.get("optimizer") is not None
    if is_known or scenario.trace.optimizer_bytes is not None:
        return []
    return ["Assumed Adam: the trace does not name an optimizer (--optimizer)"]
