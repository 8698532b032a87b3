"""`paceline simulate --explain`: where more workers stop paying off, what dominates there, what changes would gain."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline._core import Cluster, Worker
from paceline.catalog.strategies import SWITCHES, Strategy, all_strategies, feasible, with_switch
from paceline.errors import InvalidArgumentError
from paceline.forecast import compression, sharding
from paceline.forecast.execute import execute
from paceline.forecast.kinds import About, Measure, Remark, Resource
from paceline.forecast.lowering import is_long, lowered
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.verdict.advice import Details, details
from paceline.forecast.verdict.bottleneck import MIN_GAIN, Bound, Relief, bound, reliefs
from paceline.forecast.verdict.groups import Group

ENOUGH = 0.5
"""Share of one worker's samples/s: a worker that gains less is beyond the knee."""
_MOST_WORKERS = 4096
# A change that gains less than this does not help, and is not listed among those that do.
_HARM = 1 - 1e-9
_BUCKETS = tuple(2**power for power in range(16, 32))
_SWITCH = {"multicast": Measure.MULTICAST, "aggregation": Measure.AGGREGATION}


@dataclass(frozen=True)
class Knee:
    """The number of workers from which another one gains less than half of what the first did."""

    workers: int | None
    """None: not up to `tried`."""
    tried: int
    computes: bool = True
    """Whether anything is computed."""
    bound: Bound | None = None
    """The bottleneck with `tried` workers, twice those at the knee; None: nothing is to be done."""
    best: Relief | None = None
    """The change that helps most there, if one does."""


@dataclass(frozen=True)
class Change:
    """A possible change, and the resulting iteration time; None, with the reason, if it is unknown."""

    measure: Measure
    iteration_s: float | None
    gain: float | None
    about: About | None = None
    links: tuple[Resource, ...] = ()
    """Those whose rate it changes."""


@dataclass(frozen=True)
class Explanation:
    """An explanation of what the library runs, or else of the fastest scenario, with the most workers."""

    group: Group
    groups: tuple[Group, ...]
    """All, from which its own differs."""
    scenario: Scenario
    result: Result
    knee: Knee
    bound: Bound | None
    """None if nothing is to be done."""
    reliefs: tuple[Relief, ...]
    """Gains of twice as much of each resource, the bottleneck's first; none if that takes too long to try."""
    changes: tuple[Change, ...]
    details: Details


def explain(groups: Sequence[Group]) -> Explanation:
    """Explain what the library runs, or else the fastest, with the most workers. Raises InvalidArgumentError."""
    group = max(groups, key=lambda group: group.results[0].workers)
    about = group.headline_result()
    scenario = group.scenario(about)
    relieved = tuple(reliefs(scenario, about)) if _is_quick(scenario) else ()
    changes = [*map(_of_relief, relieved), *_changes(scenario, about)]
    changes.sort(key=lambda one: math.inf if one.gain is None else -one.gain)
    return Explanation(
        group,
        tuple(groups),
        scenario,
        about,
        _knee(scenario, about),
        bound(about, relieved) if about.critical_path else None,
        relieved,
        tuple(changes),
        details(group, about),
    )


def _of_relief(relief: Relief) -> Change:
    """Return it as a row of the table of changes."""
    if relief.gain < _HARM:
        return Change(relief.measure, None, None, About(Remark.SLOWER, seconds=relief.iteration_s), relief.links)
    return Change(relief.measure, relief.iteration_s, relief.gain, relief.about, relief.links)


# ---- the knee


def _knee(scenario: Scenario, result: Result) -> Knee:
    """Find it by bisection over nodes.

    The gain of one more worker is taken as a share of what doubling their number gains: the difference between two
    successive numbers would depend on whether one is a power of two.
    """
    group = sharding.ranks_of_groups(scenario.options)
    if scenario.workload is not None:
        group = math.lcm(group, scenario.workload.expert_ranks, scenario.workload.context)
    step = math.lcm(scenario.cluster.gpus_per_node, group)
    if group == 1:
        [alone] = execute([_sized(scenario, 1)])
        single = alone.samples_per_s
    else:
        # One worker is no group.
        single = (result.samples_per_s or 0.0) / (result.scaling_efficiency or 1.0) / result.workers
    if not single:
        return Knee(None, 1, computes=False)

    def brings_enough(workers: int) -> bool:
        here, more = execute([_sized(scenario, workers), _sized(scenario, 2 * workers)])
        assert here.samples_per_s is not None
        assert more.samples_per_s is not None
        return (more.samples_per_s - here.samples_per_s) / workers >= ENOUGH * single

    below, above = 0, step
    while brings_enough(above):
        below, above = above, above * 2
        if above > _MOST_WORKERS or not _is_quick(_sized(scenario, 2 * above)):
            return _knee_at(scenario, None, max(1, 2 * below))
    while above - below > step:
        middle = (below + above) // 2 // step * step
        below, above = (middle, above) if brings_enough(middle) else (below, middle)
    return _knee_at(scenario, above, 2 * above)


def _sized(scenario: Scenario, workers: int) -> Scenario:
    """Return the scenario with this many workers, and with the slow ranks and links among them."""
    cluster = scenario.cluster
    ranks = [one for one in cluster.stragglers if one.rank < workers]
    links = [one for one in cluster.degraded if _has(cluster, one.link, workers)]
    if len(ranks) < len(cluster.stragglers) or len(links) < len(cluster.degraded):
        cluster = cluster.replace(stragglers=ranks, degraded=links)
    return scenario.changed(cluster=cluster, workers=workers)


def _has(cluster: Cluster, link: str, workers: int) -> bool:
    """Whether so many workers have a link, if it is one of a node or a worker."""
    known = re.fullmatch(r"(node|worker)(\d+)", link)
    if known is None:
        return True
    return int(known[2]) < (workers if known[1] == "worker" else -(-workers // cluster.gpus_per_node))


def _is_quick(scenario: Scenario) -> bool:
    return not is_long(scenario)


def _knee_at(scenario: Scenario, workers: int | None, tried: int) -> Knee:
    there = _sized(scenario, tried)
    [result] = execute([there])
    if not result.critical_path:
        return Knee(workers, tried)
    relieved = reliefs(there, result) if _is_quick(there) else []
    best = max(relieved, key=lambda one: one.gain, default=None)
    return Knee(workers, tried, True, bound(result, relieved), best if best is not None and best.helps else None)


# ---- what if

_Tried = tuple[Measure, list[Scenario], About | None]
"""A change, the scenarios of which the fastest counts, and what is said of it or why there is none."""


def _changes(scenario: Scenario, result: Result) -> list[Change]:
    cluster = lowered(scenario).cluster
    # Without them every tensor by itself looks best, which is evidence of nothing.
    costs_messages = cluster.latency_s > 0 or cluster.message_overhead_s > 0
    # What the switch could do has rows of its own.
    able = [
        strategy
        for strategy in feasible(all_strategies(), scenario.cluster)[0]
        if strategy != scenario.strategy and not SWITCHES & strategy.knobs - scenario.strategy.knobs
    ]
    is_sharded = result.sharded is not None and sharding.kind(result.sharded.sharding) != sharding.NONE
    has_groups = scenario.workload is not None and scenario.workload.expert_ranks > 1
    if is_sharded or has_groups or compression.changes_row(result):
        return _changes_of_a_plan(scenario, result, able)
    candidates: list[_Tried] = [
        *_helps_of_the_switch(scenario),
        (Measure.STRATEGY, [scenario.under(strategy) for strategy in able], None),
        *([(Measure.BUCKET_SIZE, _bucket_sizes(scenario), None)] if costs_messages else []),
        _without_the_slowest(scenario),
    ]
    return [_best(*tried, result) for tried in candidates]


def _changes_of_a_plan(scenario: Scenario, result: Result, able: Sequence[Strategy]) -> list[Change]:
    """Return those that a plan has: no strategy that uses the switch can shard, and a unit need not be a bucket."""
    able = [one for one in able if not compression.obstacle(scenario.options, one)]
    if result.sharded is not None:
        able = [one for one in able if sharding.able(one) and one.name != sharding.IN_STEP]
    slowest = _without_the_slowest(scenario)
    candidates: list[_Tried] = [
        (Measure.STRATEGY, [scenario.under(strategy) for strategy in able], None),
        *([slowest] if slowest[1] else []),
    ]
    changes = [_best(*tried, result) for tried in candidates]
    sizes = _best(Measure.BUCKET_SIZE, _bucket_sizes(scenario), None, result)
    return [*changes, *([sizes] if sizes.gain is not None and sizes.gain > MIN_GAIN else [])]


def _helps_of_the_switch(scenario: Scenario) -> list[_Tried]:
    """Return what the switch between nodes could do; nothing on one node, whose GPUs use none."""
    if not scenario.spans_nodes and not SWITCHES & scenario.strategy.knobs:
        return []
    each = [_help_of_the_switch(scenario, kind) for kind in ("multicast", "aggregation")]
    return [*each, *_help_of_both(scenario)]


def _help_of_the_switch(scenario: Scenario, kind: str) -> _Tried:
    """Return the best strategy that uses the switch."""
    measure = _SWITCH[kind]
    if kind in scenario.strategy.knobs:
        return measure, [], About(Remark.USED)
    able = with_switch(scenario.cluster, kind)
    if able is None:
        return measure, [], About(Remark.NOT_MODELED)
    changed = scenario.changed(cluster=able)
    own = {kind} | (SWITCHES & scenario.strategy.knobs)
    using = [
        strategy
        for strategy in feasible(all_strategies(), able)[0]
        if kind in strategy.knobs and SWITCHES & strategy.knobs <= own
    ]
    return measure, [changed.under(strategy) for strategy in using], None


def _help_of_both(scenario: Scenario) -> list[_Tried]:
    """Return the best strategy that uses all that a switch can do, if none is used yet."""
    able = with_switch(scenario.cluster, *SWITCHES)
    if able is None or SWITCHES & scenario.strategy.knobs:
        return []
    changed = scenario.changed(cluster=able)
    using = [strategy for strategy in feasible(all_strategies(), able)[0] if strategy.knobs >= SWITCHES]
    if not using:
        return []
    return [(Measure.MULTICAST_AND_AGGREGATION, [changed.under(strategy) for strategy in using], None)]


def _bucket_sizes(scenario: Scenario) -> list[Scenario]:
    """Vary the bucket size upward from single tensors; not if a file or TensorFlow's rule places existing ones."""
    if isinstance(placement := scenario.options.get("placement"), list) or placement == "tensorflow":
        return []
    total = scenario.trace.gradient_bytes
    fused = [scenario.changed(bucket_size=size) for size in _BUCKETS if size < 2 * total]
    return [scenario.changed(bucket_size="none"), *fused]


def _without_the_slowest(scenario: Scenario) -> _Tried:
    cluster, trace = scenario.cluster, scenario.trace
    slow = [one for one in cluster.stragglers if one.factor > 1 and one.rank < scenario.workers]
    if slow:
        worst = max(slow, key=lambda one: one.factor)
        others = [one for one in cluster.stragglers if one.rank != worst.rank]
        without = scenario.changed(cluster=cluster.replace(stragglers=others))
        return Measure.WITHOUT_SLOWEST, [without], About(Remark.RANK, rank=worst.rank)
    if trace.worker_count > 1:
        workers = trace.workers
        times = [_seconds(worker) for worker in workers]
        slowest = times.index(max(times))
        del workers[slowest]
        without = scenario.changed(trace=trace.replace(workers=workers))
        return Measure.WITHOUT_SLOWEST, [without], About(Remark.RECORDED_RANK, rank=slowest)
    by_chance = cluster.jitter is not None or lowered(scenario).spread
    return Measure.WITHOUT_SLOWEST, [], About(Remark.CHANCE if by_chance else Remark.ALIKE)


def _seconds(worker: Worker) -> float:
    return worker.forward_s + (worker.backward_s or 0.0) + worker.optimizer_s


def _best(measure: Measure, scenarios: Sequence[Scenario], about: About | None, result: Result) -> Change:
    """Return the fastest scenario, except those that take too long or whose options are incompatible."""
    quick = [scenario for scenario in scenarios if _is_quick(scenario)]
    results = [outcome for scenario in quick for outcome in _result(scenario)]
    if not results:
        why = About(Remark.TOO_MANY if scenarios else Remark.NO_STRATEGY)
        return Change(measure, None, None, about or why)
    best_run, best = min(results, key=lambda pair: pair[1].iteration_s)
    gain = result.iteration_s / best.iteration_s if best.iteration_s > 0 else None
    by = _by(measure, best_run, best)
    if gain is not None and gain < _HARM:
        slower = replace(by or About(Remark.SLOWER), remark=Remark.SLOWER, seconds=best.iteration_s)
        return Change(measure, None, None, slower)
    return Change(measure, best.iteration_s, gain, about or by)


def _result(scenario: Scenario) -> list[tuple[Scenario, Result]]:
    try:
        return [(scenario, execute([scenario])[0])]
    except InvalidArgumentError:
        return []


def _by(measure: Measure, scenario: Scenario, result: Result) -> About | None:
    """Return what the fastest scenario of a change is, beside the change."""
    if measure is Measure.BUCKET_SIZE:
        return About(Remark.BUCKETS, size=lowered(scenario).bucket_size, count=result.buckets)
    if measure is Measure.WITHOUT_SLOWEST:
        return None
    return About(Remark.BY, strategy=result.strategy)
