"""Changes with which a job fits that does not, each tried before it is proposed.

`families` lists the changes in the order of what they cost a user, `proposals` tries them: each alone, in pairs where
none is enough, and else as few of them together as it takes. How a change is tried is up to the caller: `paceline
simulate` forecasts the one configuration again (`verdict.remedy`), `paceline advise` searches again (`advisor.fixes`).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from types import MappingProxyType

from paceline.catalog.gpus import all_hardware
from paceline.catalog.instances import all_instances
from paceline.catalog.losses import LOSSES
from paceline.catalog.models.workload import Workload
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import Fit
from paceline.forecast.sharding import GATHERED, NONE, kind

Settings = Mapping[str, str | int | bool]
"""Values of settings to change, by name, in the order in which they are typed."""

_MOST_TIMES = 64
"""More GPUs than so many times as many are proposed only where the model's state needs them."""
_NEAR_TIMES = 4
"""So many times as many are tried before other changes are tried with more of them."""
_LEAST_SEQ = 1024
"""Sequences are not proposed to be shorter."""
_FEW = 4
"""Variants of a change that are tried one by one; of more, the least is found by bisection."""
_MOST = 3
"""Proposals for one job."""
_SHARDINGS = (NONE, "zero1", "zero2", "zero3")
_CHECKPOINTINGS = ("none", "selective", "full")


@dataclass(frozen=True)
class Trial:
    """A configuration that was tried."""

    settings: Settings
    """Its changes."""
    fits: bool
    need_bytes: int
    """Memory of a GPU that it allocates."""
    shortage: float
    """How many times the memory that there is it takes, of a GPU or of a host."""
    is_tight: bool = False
    """Whether it fits, but leaves no room, or its interval reaches beyond what there is."""
    result: Result | None = None
    """Its forecast; None if only its memory is known."""
    seq: int = 0
    """Tokens of the longest sequence with which it fits, where that is asked for."""


Attempt = Callable[[Settings], Trial | None]
"""Tries changed settings; None if they contradict each other or what was given."""


@dataclass(frozen=True)
class Proposals:
    """Changes with each of which it fits."""

    fitting: tuple[Trial, ...] = ()
    """In the order of what they cost a user."""
    least: Trial | None = None
    """Where nothing fits, what needs least of all that was tried; None: nothing could be tried."""

    def answered(self, answer: Callable[[Trial], Trial]) -> Proposals:
        """Return them with what is forecast under each change."""
        return replace(self, fitting=tuple(sorted(map(answer, self.fitting), key=_preference)))


@dataclass(frozen=True)
class _Tried:
    """Trials made so far."""

    attempt: Attempt
    shortage: float
    """Of the job as it is."""
    known: dict[tuple[tuple[str, str | int | bool], ...], Trial | None] = field(default_factory=dict)

    def of(self, settings: Settings) -> Trial | None:
        key = tuple(settings.items())
        if key not in self.known:
            self.known[key] = self.attempt(settings)
        return self.known[key]

    def may_fit(self, families: Sequence[Sequence[Settings]]) -> bool:
        """Whether changes may fit together that were tried alone: they save no more than the sum of what each saves.

        Only with parameters on the host they do, which takes a sharding that gathers them.
        """
        every = [self.of(_merged([family])) for family in families]
        if any("offload" in family[-1] for family in families):
            return True
        saved = sum(self.shortage - trial.shortage for trial in every if trial is not None)
        return None in every or self.shortage - saved <= 1

    def fits(self, settings: Settings) -> bool:
        trial = self.of(settings)
        return trial is not None and trial.fits

    def is_roomy(self, settings: Settings) -> bool:
        trial = self.of(settings)
        return trial is not None and trial.fits and not trial.is_tight


def has_host(own: Fit) -> bool:
    """Whether a node can have so much memory as a forecast needs of it: some cloud's has, where it is not known."""
    if own.host is None or own.host.capacity_bytes is not None:
        return True
    return own.host.node_bytes <= max(one.host_memory_bytes or 0 for one in all_instances())


def least_gpus(workload: Workload, capacity_bytes: int) -> int:
    """Return how many GPUs hold the model's state, without activations, if it is shared evenly."""
    whole = replace(workload, tensor=1, pipeline=1, microbatches=1, virtual_stages=1).memory(sharding="zero3")
    return -(-(whole.parameters + whole.gradients + whole.optimizer) // capacity_bytes)


@dataclass(frozen=True)
class Families:
    """Kinds of change, what costs a user least first; each with its variants, the mildest first."""

    usual: Sequence[Sequence[Settings]]
    gpus: Sequence[Settings]
    """More of them."""
    near: int
    """How many of those variants are tried before other changes are tried with all."""
    last: Sequence[Sequence[Settings]]
    """Changes that make another job, or need another machine or trainer: only where nothing else helps."""
    shorter: Sequence[Settings] = ()
    """Shorter sequences: where nothing else leaves room on the GPUs that there are."""


def proposals(families: Families, attempt: Attempt, shortage: float) -> Proposals:
    """Return what makes a job fit; `shortage`: how many times the memory that there is it needs as it is.

    On the GPUs that there are: single changes, pairs if none leaves room, more at once if no pair does, and shorter
    sequences if those do not. Then more GPUs, which always come last; and where nothing fits, all that is left.
    """
    tried = _Tried(attempt, shortage)
    fitting = list(islice(_several(tried, families.usual), _MOST))
    if all(trial.is_tight for trial in fitting):
        fitting = [*_more(tried, families.usual, roomy=True), *fitting][:_MOST] or _more(tried, families.usual)
    if len(fitting) == 1 and "offload" in fitting[0].settings:
        # It takes the host's memory, and its time; what does not is proposed, too.
        others = [family for family in families.usual if not family[-1].keys() & fitting[0].settings.keys()]
        fitting += _more(tried, others, roomy=True) or _more(tried, others)
    if families.shorter and all(trial.is_tight for trial in fitting):
        changes = [*families.usual, families.shorter]
        shorter = _more(tried, changes, roomy=True) or ([] if fitting else _more(tried, changes))
        fitting = [*fitting[: _MOST - 1], *shorter]
    if families.gpus and (len(fitting) < _MOST or all(trial.is_tight for trial in fitting)):
        # Where one change leaves room, no other is made beside more GPUs.
        is_roomy = any(tried.is_roomy(_merged([one])) for one in families.usual)
        some = [(), *((one,) for one in families.usual if not is_roomy)]
        near = families.gpus[: families.near]
        several = (_mildest(tried, (*one, near)) for one in some if tried.may_fit((*one, near)))
        fitting[_MOST - 1 :] = [*fitting[_MOST - 1 :], *islice(filter(None, several), 1)][-1:]
    if not fitting:
        fitting = _more(tried, [*families.usual, families.gpus, *families.last])
    if fitting:
        return Proposals(tuple(sorted(fitting, key=_preference)))
    every = [trial for trial in tried.known.values() if trial is not None]
    return Proposals(least=min(every, key=lambda trial: trial.shortage, default=None))


def _preference(trial: Trial) -> tuple[bool, bool, bool]:
    """Sort key: the same job on the same GPUs first, then what leaves room."""
    return "workers" in trial.settings, "seq" in trial.settings, trial.is_tight


def _several(tried: _Tried, families: Sequence[Sequence[Settings]]) -> Iterator[Trial]:
    """Yield single changes with which it fits, and pairs if none of those leaves room."""
    is_roomy = False
    for together in (1, 2):
        for chosen in combinations(families, together):
            trial = _mildest(tried, chosen) if together == 1 or tried.may_fit(chosen) else None
            if trial is not None:
                is_roomy |= not trial.is_tight
                yield trial
        if is_roomy:
            return


def _more(tried: _Tried, families: Sequence[Sequence[Settings]], *, roomy: bool = False) -> list[Trial]:
    """Return as many changes as it takes: added while they help, until all fit, then without those not needed.

    `roomy`: until they leave room.
    """
    is_enough = tried.is_roomy if roomy else tried.fits
    added: list[Sequence[Settings]] = []
    least = math.inf
    for family in families:
        # What contradicts one of those added takes its place if it helps more.
        for others in (added, *([one for one in added if one is not other] for other in reversed(added))):
            strongest = _able(tried, others, family)
            trial = tried.of(_merged([*others, strongest])) if strongest else None
            if trial is not None:
                break
        if trial is None or trial.shortage >= least:
            continue
        added, least = [*others, strongest], trial.shortage
        if is_enough(trial.settings):
            break
    if not added or not is_enough(_merged(added)):
        return []
    for family in reversed(added[:-1]):
        without = [one for one in added if one is not family]
        if is_enough(_merged(without)):
            added = without
    trial = _mildest(tried, added)
    return [] if trial is None else [trial]


def _able(tried: _Tried, others: Sequence[Sequence[Settings]], family: Sequence[Settings]) -> Sequence[Settings]:
    """Return the variants up to the strongest that can be tried beside others."""
    for count in range(len(family), 0, -1):
        if tried.of(_merged([*others, family[:count]])) is not None:
            return family[:count]
    return []


def _merged(families: Sequence[Sequence[Settings]]) -> dict[str, str | int | bool]:
    """Return the strongest variants together."""
    return {name: value for family in families for name, value in family[-1].items()}


def _mildest(tried: _Tried, families: Sequence[Sequence[Settings]]) -> Trial | None:
    """Return the mildest variants that fit together, what costs most as mild as can be first.

    None if not even the strongest fit. Where these leave room, so do the mildest.
    """
    chosen: list[Sequence[Settings]] = []
    for family in families:
        strongest = _able(tried, chosen, family)
        if not strongest:
            return None
        chosen.append(strongest)
    if not tried.fits(_merged(chosen)):
        return None
    is_enough = tried.is_roomy if tried.is_roomy(_merged(chosen)) else tried.fits
    for place in reversed(range(len(chosen))):
        counts = range(1, len(chosen[place]))

        def fits(count: int, place: int = place) -> bool:
            return is_enough(_merged([*chosen[:place], chosen[place][:count], *chosen[place + 1 :]]))

        if len(counts) < _FEW:
            count = next(filter(fits, counts), len(chosen[place]))
        else:
            count = 1 + bisect.bisect_left(counts, True, key=fits)
        chosen[place] = chosen[place][:count]
    trial = tried.of(_merged(chosen))
    assert trial is not None and trial.fits
    return trial


def families(
    scenario: Scenario, *, divisible: bool = True, lacks: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Families:
    """Return the kinds of change that a configuration leaves.

    Args:
        scenario: The configuration.
        divisible: Whether GPUs may share layers or experts, where none do.
        lacks: Values by setting that its trainer does not have; empty: none at all.
    """
    workload = scenario.workload
    # Of a recording, what it computed cannot be changed.
    of_model = _of_model(workload, scenario) if workload is not None else {}
    usual = [
        of_model.get("checkpointing", []),
        *_switches(scenario),
        _sharded(scenario),
        _batches(scenario),
        *(of_model.get(name, []) for name in ("quantize", "optimizer", "loss_chunks", "activations", "offload")),
    ]
    divided = _divided(workload, scenario) if workload is not None and divisible else []
    last = [*divided, of_model.get("gpu", [])]
    gpus, near = _more_gpus(scenario)

    def able(variants: Sequence[Settings]) -> Sequence[Settings]:
        return [one for one in variants if has(lacks, one)]

    # All of these shard alike.
    near = near if (more := able(gpus)) else 0
    own, others = (list(filter(None, map(able, some))) for some in (usual, last))
    return Families(own, more, near, others, able(of_model.get("seq", [])))


def has(lacks: Mapping[str, tuple[str, ...]], settings: Settings) -> bool:
    """Return whether a trainer that lacks some values has these."""
    return not any(name in lacks and (not lacks[name] or value in lacks[name]) for name, value in settings.items())


def _switches(scenario: Scenario) -> Iterator[Sequence[Settings]]:
    """Return what was switched off that saves memory."""
    if kind(_sharding(scenario)) in GATHERED and scenario.options.get("reshard_after_forward") == "no":
        yield [{"reshard_after_forward": "yes"}]
    if scenario.options.get("accumulate_sync") is False:
        yield [{"accumulate_sync": True}]


def _of_model(workload: Workload, scenario: Scenario) -> dict[str, Sequence[Settings]]:
    """Return changes of what a GPU computes, by their name."""
    more = _CHECKPOINTINGS[_CHECKPOINTINGS.index(workload.checkpointing) + 1 :]
    tokens = workload.tokens if workload.is_text else 0
    lengths = (tokens >> power for power in range(1, tokens.bit_length()))
    capacity = scenario.capacity_bytes or 0
    larger = {one.memory_bytes: one.name for one in reversed(all_hardware()) if one.memory_bytes > capacity}
    is_adam = workload.optimizer == "adam"
    return {
        "checkpointing": [{"checkpointing": name} for name in more],
        "activations": [] if workload.offloads else [{"checkpointing": "offload"}],
        "quantize": _quantized(workload),
        "optimizer": [{"optimizer": name} for name in ("adamw-8bit", "paged-adamw-8bit")] if is_adam else [],
        "loss_chunks": [{"loss_chunks": 8}] if tokens and workload.loss_chunks is None else [],
        "offload": _offloaded(workload, scenario) if workload.offload is None else [],
        "seq": [{"seq": length} for length in lengths if length >= _LEAST_SEQ],
        "gpu": [{"gpu": name} for _, name in sorted(larger.items())],
    }


def _quantized(workload: Workload) -> Sequence[Settings]:
    """Return formats of frozen weights that take less, the usual one first."""
    own = workload.quantization
    if workload.adapter is None or own not in (None, "nf4"):
        return []
    return [{"quantize": name} for name in ("nf4", "nf4-double") if name != own]


def _offloaded(workload: Workload, scenario: Scenario) -> Sequence[Settings]:
    """Return what may be kept on the host; one GPU gathers its parameters from there as the ranks of zero3 do."""
    if scenario.workers > 1:
        return [{"offload": "cpu"}]
    if workload.adapter is not None:
        # Their states are small.
        return [{"offload": "cpu:parameters", "sharding": "zero3"}]
    return [{"offload": "cpu"}, {"offload": "cpu", "sharding": "zero3"}]


def _sharding(scenario: Scenario) -> str:
    return str(scenario.options.get("sharding") or NONE)


def _sharded(scenario: Scenario) -> Sequence[Settings]:
    """Return shardings that shard more; one GPU has nothing to share with."""
    own = kind(_sharding(scenario))
    if scenario.workers == 1 or own == "zero3":
        return []
    more = _SHARDINGS[_SHARDINGS.index(own) + 1 :] if own in _SHARDINGS else ("zero3",)
    return [{"sharding": name} for name in more]


def _batches(scenario: Scenario) -> Sequence[Settings]:
    """Return smaller batches with as many more passes, so that an iteration has the same samples."""
    workload = scenario.workload
    batch = scenario.trace.batch if workload is None else workload.batch
    in_pipeline = workload is not None and workload.pipeline > 1
    name = "microbatches" if in_pipeline else "accumulate"
    passes = workload.microbatches if workload is not None and in_pipeline else scenario.options.get("accumulate", 1)
    # Ranks that share samples have a part of each, and a loss compares whole ones.
    least = 1 if workload is None else max(workload.context, LOSSES[workload.loss].sequences)
    smaller = (batch >> power for power in range(1, batch.bit_length()))
    return [{"batch": own, name: passes * (batch // own)} for own in smaller if own >= least and batch % own == 0]


def _divided(workload: Workload, scenario: Scenario) -> Iterator[Sequence[Settings]]:
    """Return ways to divide the model among the GPUs that there are."""
    if workload.gpus > 1 or workload.expert > 1 or workload.context > 1:
        return
    ways = [2**power for power in range(1, scenario.workers.bit_length())]
    inside = [way for way in ways if way <= scenario.cluster.gpus_per_node]
    yield [{"tensor_parallel": way} for way in inside if way <= 8]
    yield [{"expert_parallel": way} for way in ways if workload.own.has_experts]


def _more_gpus(scenario: Scenario) -> tuple[Sequence[Settings], int]:
    """Return more GPUs, in a node by powers of 2 and beyond in whole nodes, over all of which the state is sharded.

    The number says how many of these are not many more than there are, or than the model's state needs.
    """
    workload = scenario.workload
    each = 1 if workload is None else workload.gpus
    gpus, node = scenario.workers * each, scenario.cluster.gpus_per_node * each
    if workload is not None:
        node = math.lcm(scenario.cluster.gpus_per_node * workload.tensor, workload.gpus)
    few = [gpus << power for power in range(1, node.bit_length()) if gpus << power < node]
    most, near = _MOST_TIMES * gpus, max(_NEAR_TIMES * gpus, node)
    if workload is not None and scenario.capacity_bytes:
        state = least_gpus(workload, scenario.capacity_bytes)
        most, near = max(most, 4 * state), max(near, 2 * state)
    counts = [*few, *(count * node for count in range(gpus // node + 1, most // node + 1))]
    shards = {} if kind(_sharding(scenario)) in GATHERED else {"sharding": "zero3"}
    return [{"workers": count, **shards} for count in counts], sum(count <= near for count in counts)
