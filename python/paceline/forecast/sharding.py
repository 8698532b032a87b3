"""Sharded training in forecasts: which options a sharding uses, what the native module is asked, what a result says.

The plan of an iteration is made and executed by the native module; docs/explanation/sharding.md describes it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline._internal import units
from paceline.catalog.libraries import DEFAULT
from paceline.catalog.strategies import Strategy
from paceline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from paceline.catalog.models.workload import Workload
    from paceline.forecast.simulate import Result, Scenario

NONE = "none"
OPTIONS = (
    "reshard_after_forward",
    "prefetch",
    "accumulate",
    "accumulate_sync",
    "unit",
    "param_dtype",
    "reduce_dtype",
    "optimizer",
)
"""Options of a plan, beside `sharding`, by their names in the table of settings."""
TIGHT = 0.8
"""Share of a GPU's memory above which a peak is a tight fit: what the allocator reserves beyond it, the CUDA context,
NCCL's buffers and workspaces need room, too, and are not counted (docs/explanation/sharding.md). Allocators have
reserved 1.06 to 1.24 times the peaks that are forecast (docs/results/published.md), and 1 / 1.24 is 0.8."""
IN_STEP = "halving-doubling"
"""A strategy that takes up to 1.8 times as long if ranks are out of step (docs/results/validation.md)."""
HSDP = "hsdp"
GATHERED = ("zero3", HSDP)
"""Shardings that gather units before they compute."""
_ONLY = {
    "reshard_after_forward": GATHERED,
    "unit": GATHERED,
    "prefetch": ("zero1", "zero2", *GATHERED),
}
"""Options that only some shardings use."""
_SHARD = ("ddp", "ddp-gloo", "none")
"""Libraries beside which PyTorch shards; `none` is the bare schedule."""


@dataclass(frozen=True)
class ExposedBy:
    """Seconds of an iteration in which the slowest rank's computation waits, by collective.

    What delays an iteration besides is in `Sharded`: together they are what it takes beyond computation alone.
    """

    all_gather_s: float
    reduce_scatter_s: float
    all_reduce_s: float
    compression_s: float = 0.0
    """Of compressing and decompressing, instead of a collective."""

    def to_dict(self) -> dict[str, float]:
        """Return it as `--json` prints it."""
        return {name: seconds for name, seconds in vars(self).items() if name != "compression_s" or seconds > 0}


@dataclass(frozen=True)
class Memory:
    """Bytes on a GPU at the peak of an iteration, by kind; `activations_bytes` is None if the trace does not say."""

    peak_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    communication_bytes: int
    """What FSDP2 copies gathered units out of, and gradients into."""
    activations_bytes: int | None


@dataclass(frozen=True)
class Sharded:
    """What a forecast has in addition if its iteration is a plan."""

    sharding: str
    shard_ranks: int
    """Ranks over which the state is sharded."""
    passes: int
    """Passes through the model in an iteration."""
    units: int
    parameters: int
    exposed: ExposedBy
    straggling_s: float
    """By how much the slowest rank computes longer than the trace by itself."""
    slowed_s: float
    """By how much NCCL's kernels slow down its computation."""
    memory: Memory
    resolution: str
    """`messages` or `collectives`: what was simulated."""
    calls_s: float = 0.0
    """By how much handing gradients over to the library lengthens the backward pass."""
    sync_every: int = 1
    """Iterations of a round, in the last of which ranks exchange something."""
    capacity_bytes: int | None = None
    """Memory of a GPU, if it is known."""

    @property
    def fits(self) -> bool | None:
        """Whether a GPU has enough memory; None if its memory is not known."""
        return None if self.capacity_bytes is None else self.memory.peak_bytes <= self.capacity_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it fits, but leaves little room for what is not counted."""
        return bool(self.fits) and self.memory.peak_bytes > TIGHT * (self.capacity_bytes or 0)

    @property
    def room_bytes(self) -> int:
        """What a peak that fits leaves of a known memory."""
        return (self.capacity_bytes or 0) - self.memory.peak_bytes

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Sharded:
        """Return it from the native module's values."""
        nested = {"exposed": ExposedBy(**values["exposed"]), "memory": Memory(**values["memory"])}
        return cls(**{**values, **nested})

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        plain = {**vars(self), "exposed": self.exposed.to_dict(), "memory": vars(self.memory)}
        plain |= {"fits": self.fits, "tight": self.is_tight}
        if self.sync_every == 1:
            del plain["sync_every"]
        return plain


def kind(sharding: str) -> str:
    """Return `hsdp` for `hsdp:8`, and `zero1` for `zero1:8`."""
    return sharding.partition(":")[0]


def ranks_of_groups(options: Mapping[str, Any]) -> int:
    """Return a number of which the ranks are a multiple, because they form groups of that size."""
    _, _, group = str(options.get("sharding") or "").partition(":")
    again = str(options.get("reshard_after_forward"))
    return math.lcm(int(group or 1), int(again) if again.isdigit() else 1)


def in_every_pass(sharding: str) -> bool:
    """Whether ranks exchange in every pass of an iteration."""
    return kind(sharding) in ("zero2", *GATHERED)


def in_groups(sharding: str) -> bool:
    """Whether the state is sharded over a part of the ranks: `hsdp`, and `zero1:8`."""
    return kind(sharding) == "hsdp" or ":" in sharding


def is_plan(options: Mapping[str, Any]) -> bool:
    """Whether the iteration is a plan, and not just that of the trace."""
    return any(name in options for name in ("sharding", "accumulate", "expert_parallel"))


def used_by(sharding: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a sharding uses."""
    if sharding is None:
        return dict(options)
    return {name: value for name, value in options.items() if kind(sharding) in _ONLY.get(name, (kind(sharding),))}


def check(shardings: Sequence[str] | None, given: Mapping[str, Any]) -> None:
    """Refuse options that none of the shardings uses. Raises InvalidArgumentError."""
    if not is_plan(given):
        for name in (*OPTIONS, "memory"):
            if name in given:
                names = units.listed([*_ONLY.get(name, (NONE, "zero1", "zero2", *GATHERED))], "or")
                raise InvalidArgumentError(
                    f"has no effect without sharding; leave it out, or add --sharding {names}", setting=name
                )
        return
    if "accumulate_sync" in given and given.get("accumulate", 1) == 1:
        raise InvalidArgumentError(
            "has no effect without accumulation; add --accumulate, or leave it out", setting="accumulate_sync"
        )
    kinds = {kind(sharding) for sharding in shardings or [NONE]}
    for name, using in _ONLY.items():
        if name in given and not kinds & set(using):
            raise InvalidArgumentError(
                f"has no effect with {units.listed(sorted(kinds))}, only with {units.listed([*using])}; leave it out",
                setting=name,
            )
    for library in given.get("library", ()):
        if library not in _SHARD and kinds != {NONE}:
            raise InvalidArgumentError(
                f"{library} shards nothing; leave it out, or --sharding, or give {units.listed([*_SHARD], 'or')}",
                setting="library",
            )
    if "barrier" in given and given["barrier"] is False and kinds != {NONE}:
        raise InvalidArgumentError("sharded ranks always wait for each other; leave it out", setting="barrier")


def check_buckets(shardings: Sequence[str] | None) -> None:
    """Refuse sizes of buckets for a model whose blocks are exchanged one by one. Raises InvalidArgumentError."""
    kinds = {kind(sharding) for sharding in shardings or [NONE]}
    if kinds <= set(_ONLY["unit"]):
        raise InvalidArgumentError(
            f"has no effect with {units.listed(sorted(kinds))}, where the model's blocks are exchanged; leave it out, "
            "or name other units with --unit",
            setting="bucket_size",
        )


def able(strategy: Strategy) -> bool:
    """Whether a strategy has programs for the collectives of sharded training."""
    return {"all-gather", "reduce-scatter"} <= set(strategy.collectives)


def sums_in_switches(strategy: Strategy) -> bool:
    """Whether switches do its all-reduces; the other collectives of `hsdp` are then the library's."""
    return "aggregation" in strategy.knobs and "servers" not in strategy.knobs


def only_able(
    strategies: Sequence[Strategy],
    named: Collection[Strategy],
    known: Sequence[Strategy],
    shardings: Sequence[str | None] = (),
) -> list[Strategy]:
    """Leave out strategies without the collectives of these shardings.

    Raises InvalidArgumentError for one that the user named; `known` are those to choose from.
    """
    kinds = {kind(one) for one in shardings if one is not None}
    found = [one for one in strategies if able(one) or (kinds == {HSDP} and sums_in_switches(one))]
    for strategy in strategies:
        if strategy in named and strategy not in found:
            words = units.listed([one.name for one in known if able(one)], "or")
            hybrid = f"; for all-reduces between nodes there is {HSDP}" if sums_in_switches(strategy) else ""
            raise InvalidArgumentError(
                f"{strategy.name} has no all-gather and reduce-scatter, which sharded ranks need; use {words}{hybrid}",
                setting="strategy",
            )
    return found


def out_of_step(strategies: Sequence[Strategy], shardings: Sequence[str] | None) -> list[str]:
    """Return the note on a strategy whose forecast is one of ranks that keep step."""
    sharded = any(kind(one) != NONE for one in shardings or ())
    if not sharded or all(one.name != IN_STEP for one in strategies):
        return []
    return [
        f"{IN_STEP} is forecast for ranks that keep step, which they do not where collectives follow each other: on 8 "
        "ranks it took up to 1.8 times as long, a ring 1.06 times"
    ]


def iteration(
    options: dict[str, Any], ranks: int, gpus_per_node: int, *, dtype: str | None, has_stages: bool = False
) -> dict[str, Any] | None:
    """Take the options of a plan out of `options`; return them in the form of the native module, if there are any.

    With the stages of a pipeline, units are gathered once for all microbatches by default, as by torchtitan. Unless
    FSDP converts them, gradients have the type of their parameters: `dtype` if none is given; None if it does not
    matter.

    Raises InvalidArgumentError for `hsdp` without a size, if there is no node to take it from.
    """
    own = {name: options.pop(name) for name in OPTIONS if name in options}
    options.pop("memory", None)
    sharding = options.pop("sharding", None)
    if sharding is None and "accumulate" not in own:
        return None
    name, _, group = (sharding or NONE).partition(":")
    if name == "hsdp":
        if not group and gpus_per_node == 1 and ranks > 1:
            raise InvalidArgumentError(
                "hsdp shards within a node, and there is one data-parallel rank per node; write hsdp:RANKS, add "
                "--gpus-per-node, or leave it out",
                setting="sharding",
            )
        own["group"] = min(gpus_per_node, ranks)
    if group:
        own["group"] = int(group)
    if name not in GATHERED and dtype is not None and own.get("param_dtype", dtype) != dtype:
        own.setdefault("reduce_dtype", own["param_dtype"])
    if has_stages and name in GATHERED:
        own.setdefault("reshard_after_forward", "no")
    return {"sharding": name, **used_by(name, own)}


def label(result: Result) -> str:
    """Return the sharding of a result, or `-`."""
    return "-" if result.sharded is None else result.sharded.sharding


def spoken(sharding: str, library: str = "") -> str:
    """Return a sharding for prose, in which `none` would be read as a word: `no sharding`, of `ddp` with its name."""
    if sharding != NONE:
        return sharding
    return "no sharding (DDP)" if library == DEFAULT else "no sharding"


def capital(sentence: str) -> str:
    """Return a sentence that does not begin with a small `no sharding`; names of shardings and strategies stay."""
    return f"N{sentence[1:]}" if sentence.startswith("no sharding") else sentence


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
            f"{remedy(scenario, own)}."
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
    assumed = scenario.core_options().get("spread")
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


def least_gpus(workload: Workload, capacity_bytes: int) -> int:
    """Return how many GPUs hold the model's state, without activations, if it is shared evenly."""
    whole = replace(workload, tensor=1, pipeline=1, microbatches=1, virtual_stages=1).memory(sharding="zero3")
    return -(-(whole.parameters + whole.gradients + whole.optimizer) // capacity_bytes)


def more_gpus(workload: Workload, capacity_bytes: int) -> str:
    """Return the remedy if all GPUs together are too few for the model's state."""
    least = least_gpus(workload, capacity_bytes)
    what = "parameters, gradients and optimizer states"
    return f"{what} alone fill {least} of these GPUs: take more of them{_fewer_states(workload)}"


def _fewer_states(workload: Workload | None) -> str:
    can = workload is None or workload.optimizer != "sgd"
    return ", or an optimizer with fewer states (--optimizer)" if can else ""


def remedy(scenario: Scenario, own: Sharded) -> str:
    """Return what would reduce the largest part of the memory."""
    workload, capacity = scenario.workload, own.capacity_bytes
    if workload is not None and capacity and least_gpus(workload, capacity) > scenario.workers * workload.gpus:
        return more_gpus(workload, capacity)
    memory = own.memory
    state = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    activations = memory.activations_bytes or 0
    name = kind(own.sharding)
    units_now = memory.gathered_bytes + memory.communication_bytes
    if activations > state + units_now:
        batch = scenario.trace.batch if workload is None else workload.batch
        more = f"--accumulate {2 * own.passes}"
        if workload is not None and workload.pipeline > 1:
            more = f"--microbatches {2 * workload.microbatches}"
        remedies = [f"--batch {batch // 2} {more}"] if batch > 1 else []
        if workload is None:
            remedies += ["activation checkpointing"]
        elif workload.checkpointing != "full":
            remedies += ["activation checkpointing (--checkpointing full)"]
        remedies = remedies or ["shorter sequences, or --tensor-parallel"]
        return f"most of it is activations: {', or '.join(remedies)}"
    if units_now > state:
        default = "no" if scenario.workload is not None and scenario.workload.pipeline > 1 else "yes"
        if scenario.options.get("reshard_after_forward", default) != "yes":
            return "most of it is gathered units: --reshard-after-forward yes"
        return "most of it is gathered units and their buffers: smaller ones with --unit, or --prefetch 0"
    if name != "zero3":
        if scenario.workers == 1:
            return "shard it over more GPUs with --sharding zero3"
        return (
            "shard more of it: --sharding zero3"
            if name in (NONE, "zero1", "zero2")
            else "--sharding zero3 or larger groups"
        )
    if "accumulate" in scenario.options and scenario.options.get("accumulate_sync") is False:
        return "most of it is the model's state: leave out --no-accumulate-sync, so that gradients stay sharded"
    return f"most of it is the model's state: more GPUs{_fewer_states(workload)}"
