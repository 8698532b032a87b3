"""The verdict on a table: what the library runs, or the fastest strategy, what bounds it, what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.catalog.models.pipeline import can_be_cut
from paceline.catalog.models.workload import Workload
from paceline.catalog.strategies import SWITCHES, all_strategies, feasible
from paceline.errors import InvalidArgumentError
from paceline.forecast import compression, sharding
from paceline.forecast.execute import execute
from paceline.forecast.kinds import Resource
from paceline.forecast.lowering import LONG, is_long
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.verdict.bottleneck import MIN_GAIN, Bound, Relief, bound, reliefs
from paceline.forecast.verdict.groups import Group, is_too_large, largest
from paceline.forecast.verdict.slow_links import SlowLinks, slow_links

_FEW = 3
"""A comparison of more strategies is no question about one of NCCL's algorithms."""


@dataclass(frozen=True)
class Bubble:
    """How long the stages of a pipeline wait, and how many times faster a sample would be."""

    share: float
    """Of the computing time."""
    stages: int
    microbatches: int
    gain: float
    """With twice as many microbatches."""
    virtual_stages: int
    """Twice as many as there are."""
    virtual_gain: float
    """With these; 1 if the model cannot be cut so."""


@dataclass(frozen=True)
class Details:
    """Details of a forecast beside its bottleneck."""

    scenario: Scenario
    result: Result
    group: Group
    bubble: Bubble | None
    schedules: tuple[str, ...]
    """Strategies on GPUs that are not NCCL's algorithms of their names, if few were asked for."""
    slow_links: SlowLinks | None


@dataclass(frozen=True)
class Verdict:
    """The verdict on a configuration."""

    group: Group
    result: Result
    """The forecast that it is about."""
    is_of_library: bool
    """Whether that is what the library runs by itself on several workers."""
    fastest: Result
    """Of those that need nothing that was not asked for."""
    still: Result | None
    """One that is faster, but needs what was not asked for."""
    other: Result | None
    """The best of the strategies that were not asked for, if one was."""
    bound: Bound | None
    """None if there is nothing to communicate with."""
    details: Details

    @property
    def is_empty(self) -> bool:
        """Whether the fastest takes no time, or nobody watched its path."""
        return self.fastest.iteration_s <= 0 or not self.group.results[0].critical_path


def advise(groups: Sequence[Group]) -> list[Verdict]:
    """Return the verdict on the largest configuration of each trace and library.

    It is about what the library runs by itself, if that was forecast, because that is what a user gets; else about the
    fastest strategy. Of a group that was not asked for servers, parameter servers are not the fastest.
    """
    return [_verdict(group) for group in largest(groups)]


def _verdict(group: Group) -> Verdict:
    fastest, runs = group.ranked()[0], group.library_default()
    is_of_library = runs is not None and runs.workers > 1
    about = group.headline_result()
    verdict = Verdict(group, about, is_of_library, fastest, None, None, None, details(group, about))
    if verdict.is_empty:
        return verdict
    scenario = group.scenario(about)
    alone = about.workers == 1
    every = [] if alone and about.offload_s is None else _reliefs(scenario, about)
    relieved = [one for one in every if not alone or one.resource is Resource.COMPUTE or one.resource.is_offload]
    return replace(
        verdict,
        still=_faster_still(group, fastest),
        other=_best_other(scenario, about, group.requested_extras) if group.has_one_strategy and not alone else None,
        bound=bound(about, relieved),
    )


def _reliefs(scenario: Scenario, result: Result) -> list[Relief]:
    return reliefs(scenario, result) if result.messages <= LONG or not is_long(scenario) else []


def details(group: Group, result: Result) -> Details:
    """Return what is to be said of a pipeline, of strategies that NCCL also names, and of slow links."""
    scenario = group.scenario(result)
    workload = scenario.workload
    bubble = None if workload is None or workload.pipeline == 1 else _bubble(workload)
    return Details(scenario, result, group, bubble, _bare_schedules(group), slow_links(scenario, result))


def _bare_schedules(group: Group) -> tuple[str, ...]:
    strategies = {one.strategy.name: one.strategy for one in group.scenarios}
    bare = tuple(name for name, it in strategies.items() if not it.is_offloaded and "servers" not in it.knobs)
    is_on_gpus = group.scenarios[0].cluster.gpu is not None
    return bare if is_on_gpus and len(strategies) <= _FEW and group.results[0].workers > 1 else ()


def _bubble(workload: Workload) -> Bubble:
    more = replace(workload, microbatches=2 * workload.microbatches)
    parts = 2 * workload.virtual_stages
    blocks = len({layer.block for layer in workload.model.layers if layer.block})
    can_be_interleaved = can_be_cut(blocks, parts * workload.pipeline) and not workload.microbatches % workload.pipeline
    return Bubble(
        workload.bubble_s / workload.compute_s,
        workload.pipeline,
        workload.microbatches,
        2 * workload.compute_s / more.compute_s,
        parts,
        workload.compute_s / replace(workload, virtual_stages=parts).compute_s if can_be_interleaved else 1.0,
    )


def _faster_still(group: Group, fastest: Result) -> Result | None:
    able = [one for one in group.results if is_too_large(one) == is_too_large(fastest)]
    able = [one for one in able if _has_its_switch(group.scenario(one))]
    best = min(able, key=lambda one: one.iteration_s, default=fastest)
    return best if fastest.iteration_s / best.iteration_s > MIN_GAIN else None


def _has_its_switch(scenario: Scenario) -> bool:
    """Whether there is a switch between workers, if the strategy needs one that can do something."""
    return scenario.spans_nodes or not SWITCHES & scenario.strategy.knobs


def _best_other(scenario: Scenario, result: Result, requested_extras: frozenset[str]) -> Result | None:
    """Return the best of the other strategies, with the options of this one that they use."""
    able = [
        scenario.under(strategy)
        for strategy in feasible(all_strategies(), scenario.cluster)[0]
        if strategy.name != result.strategy
        and strategy.extras <= requested_extras
        and _has_its_switch(scenario.under(strategy))
        and not compression.obstacle(scenario.options, strategy)
        and (result.sharded is None or (sharding.able(strategy) and strategy.name != sharding.IN_STEP))
    ]
    try:
        if not able or any(is_long(other) for other in able):
            return None
        return min(execute(able), key=lambda other: other.iteration_s)
    except InvalidArgumentError:  # Options that this strategy does not use may be incompatible.
        return None
