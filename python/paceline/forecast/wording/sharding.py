"""Sentences on sharded training: what it exposes, its memory, whether that fits, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline.forecast.lowering import lowered
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import TIGHT, Sharded
from paceline.forecast.verdict.remedy import Cure, Remedy, remedy

_CURES = {
    Cure.RESHARD: "most of it is gathered units: --reshard-after-forward yes",
    Cure.SMALLER_UNITS: "most of it is gathered units and their buffers: smaller ones with --unit, or --prefetch 0",
    Cure.SHARD_OVER_MORE: "shard it over more GPUs with --sharding zero3",
    Cure.SHARD_MORE: "shard more of it: --sharding zero3",
    Cure.LARGER_GROUPS: "--sharding zero3 or larger groups",
    Cure.SYNC: "most of it is the model's state: leave out --no-accumulate-sync, so that gradients stay sharded",
    Cure.SHARD_STATE: "most of it is the model's state: more GPUs",
}


def memory_text(result: Result) -> str:
    """Return the peak memory for a table, with a mark if it does not fit."""
    if result.sharded is None:
        return "-"
    own = result.sharded
    return units.size(own.memory.peak_bytes) + (" !" if own.fits is False else " ~" if own.is_tight else "")


def legend(results: Sequence[Result]) -> list[str]:
    """Return what the marks in a table mean, if one of its rows has them."""
    every = [it.sharded for it in results if it.sharded is not None]
    sizes = {own.capacity_bytes for own in every if own.fits is False}
    known = units.listed([units.size(size) for size in sorted(filter(None, sizes))], "or") if sizes else ""
    return [
        *([f"!: does not fit in the memory of a GPU, {known}"] if known else []),
        *([f"~: {tight_words()}"] if any(own.is_tight for own in every) else []),
    ]


def tight_words() -> str:
    """Return what a tight fit is."""
    return (
        f"tight: leaves under {100 * (1 - TIGHT):.0f} % of the memory to what is not counted: the CUDA context, NCCL's "
        "buffers, and what allocators reserve, which was 6 to 24 % more than such forecasts"
    )


def sentences(scenario: Scenario, result: Result, name: str, *, several: bool) -> list[str]:
    """Return what a sharded forecast exposes, what its memory consists of, and whether it fits, with the remedy.

    `name`: what its row is called; `several`: whether there are other rows, from which its memory is told by it.
    """
    own = result.sharded
    if own is None:
        return []
    lines = []
    if result.workers > 1:
        exposed = result.exposed_communication_s
        lines.append(
            f"{name} exposes {units.duration(exposed)} of communication an iteration, which is its time beyond "
            f"computation alone: {exposed_parts(own, _spread(scenario))}."
            if exposed
            else f"{name} hides all of its communication."
        )
    memory = own.memory
    parts = {
        "parameters": memory.parameters_bytes,
        "gradients": memory.gradients_bytes,
        _states(scenario): memory.optimizer_bytes,
        "gathered units": memory.gathered_bytes,
        "communication buffers": memory.communication_bytes,
        "activations": memory.activations_bytes or 0,
    }
    held = units.listed([f"{units.size(size)} of {name}" for name, size in parts.items() if size])
    without = "" if memory.activations_bytes is not None else ", without activations"
    stage = scenario.workload is not None and scenario.workload.pipeline > 1
    whose = f"Memory of a GPU{' of the stage that needs most' if stage else ''} at its peak"
    whose += f" with {name}" if several else ""
    fits = own.fits and memory.activations_bytes is not None and own.capacity_bytes is not None
    room = f" of {units.size(own.capacity_bytes or 0)}: fits" if fits else ""
    if fits and own.is_tight:
        room += f" tightly, with {units.size(own.room_bytes)} for what is not counted"
    lines.append(f"{whose}: {units.size(memory.peak_bytes)}{room}{without} ({held}).")
    if own.fits is False and own.capacity_bytes is not None:
        lines.append(
            f"It does not fit: {units.size(memory.peak_bytes)} of {units.size(own.capacity_bytes)}; "
            f"{cure(remedy(scenario, own))}."
        )
    return lines


def _states(scenario: Scenario) -> str:
    """Return what states of an optimizer are called, with what is assumed of them."""
    is_known = scenario.workload is not None or scenario.options.get("optimizer") is not None
    if is_known or scenario.trace.optimizer_bytes is not None:
        return "optimizer states"
    return "optimizer states (Adam, as the trace does not say which)"


def _spread(scenario: Scenario) -> str:
    """Return what is assumed of how ranks differ, if nothing was said of it."""
    assumed = lowered(scenario).spread
    return f" (times are assumed to vary by {units.percent(assumed)})" if assumed else ""


def exposed_parts(own: Sharded, spread: str = "") -> str:
    """Return what `exposed_communication_s` consists of, in words. `spread`: what is assumed of slow ranks."""
    parts = {
        "of all-gather": own.exposed.all_gather_s,
        "of reduce-scatter": own.exposed.reduce_scatter_s,
        "of all-reduce": own.exposed.all_reduce_s,
        "of compression": own.exposed.compression_s,
        "by which computation is slower beside NCCL's kernels": own.slowed_s,
        f"by which the slowest rank computes longer{spread}": own.straggling_s,
        "of the library's calls": own.calls_s,
    }
    return units.listed([f"{units.duration(seconds)} {what}" for what, seconds in parts.items() if seconds > 0])


def cure(of: Remedy) -> str:
    """Return what would reduce the largest part of the memory."""
    fewer = ", or an optimizer with fewer states (--optimizer)" if of.fewer_states else ""
    if of.cure is Cure.MORE_GPUS:
        return more_gpus(of.gpus) + fewer
    if of.cure is not Cure.LESS_ACTIVATIONS:
        return _CURES[of.cure] + fewer
    more = f"--microbatches {of.microbatches}" if of.microbatches else f"--accumulate {of.passes}"
    ways = [f"--batch {of.batch} {more}"] if of.batch else []
    if of.checkpointing:
        named = f" (--checkpointing {of.checkpointing})" if of.checkpointing != "yes" else ""
        ways.append(f"activation checkpointing{named}")
    return f"most of it is activations: {', or '.join(ways or ['shorter sequences, or --tensor-parallel'])}"


def more_gpus(least: int) -> str:
    """Return the remedy if all GPUs together are too few for the model's state; `least` hold it."""
    return f"parameters, gradients and optimizer states alone fill {least} of these GPUs: take more of them"
