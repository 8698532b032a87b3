"""`paceline simulate --explain`: where more workers stop paying off, what dominates there, what changes would gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline._core import Worker
from paceline._internal import units
from paceline._internal.console import Column, render, wrapped
from paceline.catalog.channels import with_channel
from paceline.catalog.strategies import SWITCHES, Strategy, all_strategies, feasible, with_switch
from paceline.errors import InvalidArgumentError
from paceline.forecast import compression, sharding
from paceline.forecast.lowering import is_long, lowered
from paceline.forecast.output.table import Group, likely, named, ranks
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sweep import execute
from paceline.forecast.verdict import sharding_words
from paceline.forecast.verdict.advice import details, subject
from paceline.forecast.verdict.bottleneck import NOTEWORTHY, Relief, bound, reliefs, sentence, uses_the_network

ENOUGH = 0.5
"""Share of one worker's samples/s: a worker that gains less is beyond the knee."""
_MOST_WORKERS = 4096
_NO_COMPUTATION = "nothing is computed"
# A change that gains less than this does not help, and is not listed among those that do.
_HARM = 1 - 1e-9
NOT_IN_THIS_FABRIC = "it is not modelled in fabrics of this kind"
"""Why multicast and aggregation are not tried."""
_BUCKETS = tuple(2**power for power in range(16, 32))


@dataclass(frozen=True)
class Knee:
    """The number of workers from which another one gains less than half of what the first did."""

    workers: int | None
    """None: not up to `tried`."""
    tried: int
    bound: str
    """What bounds it with `tried` workers, twice those at the knee."""


@dataclass(frozen=True)
class Change:
    """A possible change, and the resulting iteration time; None, with the reason, if it is unknown."""

    what: str
    iteration_s: float | None
    gain: float | None
    note: str = ""


@dataclass(frozen=True)
class Explanation:
    """An explanation of what the library runs, or else of the fastest scenario, with the most workers."""

    result: Result
    knee: Knee
    reliefs: tuple[Relief, ...]
    """What twice as much of each resource would gain, the bottleneck's first; none if that takes too long to try."""
    changes: tuple[Change, ...]
    subject: str
    """The row that it is about: `ring with 16 workers`."""
    worker: str = "worker"
    """What one more of is another data-parallel rank."""
    details: tuple[str, ...] = ()
    """Sentences on a pipeline's bubble, on what sharding exposes, and on memory; `advise` has them, too."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        own = self.result.sharded
        return {
            "strategy": self.result.strategy,
            **({} if own is None else {"sharding": own.sharding}),
            "workers": self.result.workers,
            "iteration_s": self.result.iteration_s,
            "bound": bound(self.result, self.reliefs) if self.result.critical_path else "",
            "knee": vars(self.knee),
            "changes": [vars(change) for change in self.changes],
            "interval": None if self.result.interval is None else vars(self.result.interval),
            "evidence": self.result.evidence,
        }

    def sentences(self) -> list[str]:
        """Return what dominates, the knee, and the possible error; the changes go between the last two."""
        result, about = self.result, self.subject
        dominated = sentence(about, result, self.reliefs) if result.critical_path else f"{about} takes no time."
        return [
            sharding_words.capital(dominated),
            _knee_in_words(self.knee, self.worker),
            sharding_words.capital(likely(result)),
        ]

    def text(self, width: int) -> list[str]:
        """Return lines for people."""
        dominated, knee, likely_ = self.sentences()
        *before, after = [wrapped(sentence, width) for sentence in (dominated, *self.details, knee, likely_)]
        lines = [line for paragraph in before for line in paragraph]
        columns = [Column("what if", left=True), Column("iteration"), Column("times\nfaster"), Column("", left=True)]
        rows = [
            [
                change.what,
                "-" if change.iteration_s is None else units.duration(change.iteration_s),
                "-" if change.gain is None else units.digits(change.gain, 3),
                change.note,
            ]
            for change in self.changes
        ]
        return [*lines, "", *render(columns, [rows], highlight_first=False), "", *after]


def explain(groups: Sequence[Group]) -> Explanation:
    """Explain what the library runs, or else the fastest, with the most workers. Raises InvalidArgumentError."""
    group = max(groups, key=lambda group: group.results[0].workers)
    fastest = subject(group)
    scenario = group.scenarios[group.results.index(fastest)]
    relieved = tuple(reliefs(scenario, fastest)) if _is_quick(scenario) else ()
    changes = [*map(_of_relief, relieved), *_changes(scenario, fastest)]
    changes.sort(key=lambda one: math.inf if one.gain is None else -one.gain)
    several = scenario.workload is not None and scenario.workload.gpus > 1
    with_ = "on" if several or fastest.sharded is not None else "with"
    name = named(fastest, group) if fastest.sharded is not None else fastest.strategy
    return Explanation(
        fastest,
        _knee(scenario, fastest),
        relieved,
        tuple(changes),
        f"{name} {with_} {ranks(fastest, scenario.workload)}{_row(fastest, groups)}",
        "data-parallel rank" if several else "worker",
        tuple(map(sharding_words.capital, details(group, fastest))),
    )


def _row(result: Result, groups: Sequence[Group]) -> str:
    """Return ` (vgg-16, 10 Gbit/s)`: what varies between groups besides workers."""
    of = [group.results[0] for group in groups]
    words = [
        shown
        for name, shown in (
            ("trace", result.trace),
            ("bandwidth_bps", units.rate(result.bandwidth_bps)),
            ("latency_s", f"latency {units.duration(result.latency_s)}"),
            ("compute_speedup", f"compute speed-up {result.compute_speedup:g}"),
        )
        if len({getattr(one, name) for one in of}) > 1
    ]
    return f" ({', '.join(words)})" if words else ""


def _of_relief(relief: Relief) -> Change:
    """Return it as a row of the table of changes."""
    if relief.gain < _HARM:
        note = f"nothing is faster: would take {units.duration(relief.iteration_s)}"
        return Change(relief.what, None, None, note)
    return Change(relief.what, relief.iteration_s, relief.gain, relief.note)


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
        return Knee(None, 1, _NO_COMPUTATION)

    def brings_enough(workers: int) -> bool:
        here, more = execute([_sized(scenario, workers), _sized(scenario, 2 * workers)])
        assert here.samples_per_s is not None
        assert more.samples_per_s is not None
        return (more.samples_per_s - here.samples_per_s) / workers >= ENOUGH * single

    below, above = 0, step
    while brings_enough(above):
        below, above = above, above * 2
        if above > _MOST_WORKERS or not _is_quick(_sized(scenario, 2 * above)):
            return Knee(None, max(1, 2 * below), _bound_at(scenario, max(1, 2 * below)))
    while above - below > step:
        middle = (below + above) // 2 // step * step
        below, above = (middle, above) if brings_enough(middle) else (below, middle)
    return Knee(above, 2 * above, _bound_at(scenario, 2 * above))


def _sized(scenario: Scenario, workers: int) -> Scenario:
    """Return the scenario with this many workers, and with the slow ranks among them."""
    slow = scenario.cluster.stragglers
    kept = [one for one in slow if one.rank < workers]
    cluster = scenario.cluster if kept == slow else scenario.cluster.replace(stragglers=kept)
    return scenario.changed(cluster=cluster, workers=workers)


def _is_quick(scenario: Scenario) -> bool:
    return not is_long(scenario)


def _bound_at(scenario: Scenario, workers: int) -> str:
    there = _sized(scenario, workers)
    [result] = execute([there])
    if not result.critical_path:
        return "nothing to do"
    relieved = reliefs(there, result) if _is_quick(there) else []
    best = max(relieved, key=lambda one: one.gain, default=None)
    why = bound(result, relieved)
    if best is None or best.gain <= NOTEWORTHY:
        return why
    return f"{why}: {best.what} would make it {units.short(best.gain)} times faster"


def _knee_in_words(knee: Knee, worker: str) -> str:
    if knee.bound == _NO_COMPUTATION:
        return "Nothing is computed, so adding workers never stops paying off."
    if knee.workers is None:
        return (
            f"Up to {units.count(knee.tried, worker)}, the most that were tried, each further one adds more than half "
            "of the samples/s of one alone."
        )
    verb = " it is" if knee.bound.startswith("bound by") else ""
    return (
        f"From {units.count(knee.workers, worker)} on, each further one adds less than half of the samples/s of one "
        f"alone: with twice as many, {knee.tried},{verb} {knee.bound}."
    )


# ---- what if


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
    candidates: list[tuple[str, list[Scenario], str]] = [
        *_over_rdma(scenario, result),
        *_helps_of_the_switch(scenario),
        ("another strategy", [scenario.under(strategy) for strategy in able], ""),
        *([("the best bucket size", _bucket_sizes(scenario), "")] if costs_messages else []),
        _without_the_slowest(scenario),
    ]
    return [_best(what, scenarios, note, result) for what, scenarios, note in candidates]


def _changes_of_a_plan(scenario: Scenario, result: Result, able: Sequence[Strategy]) -> list[Change]:
    """Return those that a plan has: no strategy that uses the switch can shard, and a unit need not be a bucket."""
    able = [one for one in able if not compression.obstacle(scenario.options, one)]
    if result.sharded is not None:
        able = [one for one in able if sharding.able(one) and one.name != sharding.IN_STEP]
    slowest = _without_the_slowest(scenario)
    candidates: list[tuple[str, list[Scenario], str]] = [
        *_over_rdma(scenario, result),
        ("another strategy", [scenario.under(strategy) for strategy in able], ""),
        *([slowest] if slowest[1] else []),
    ]
    changes = [_best(what, scenarios, note, result) for what, scenarios, note in candidates]
    sizes = _best("the best bucket size", _bucket_sizes(scenario), "", result)
    return [*changes, *([sizes] if sizes.gain is not None and sizes.gain > NOTEWORTHY else [])]


def _helps_of_the_switch(scenario: Scenario) -> list[tuple[str, list[Scenario], str]]:
    """Return what the switch between nodes could do; nothing on one node, whose GPUs use none."""
    if not scenario.spans_nodes and not SWITCHES & scenario.strategy.knobs:
        return []
    each = [_help_of_the_switch(scenario, kind) for kind in ("multicast", "aggregation")]
    return [*each, *_help_of_both(scenario)]


def _help_of_the_switch(scenario: Scenario, kind: str) -> tuple[str, list[Scenario], str]:
    """Return the best strategy that uses the switch."""
    if kind in scenario.strategy.knobs:
        return f"{kind} in the switch", [], "already used"
    able = with_switch(scenario.cluster, kind)
    if able is None:
        return f"{kind} in the switch", [], NOT_IN_THIS_FABRIC
    changed = scenario.changed(cluster=able)
    own = {kind} | (SWITCHES & scenario.strategy.knobs)
    using = [
        strategy
        for strategy in feasible(all_strategies(), able)[0]
        if kind in strategy.knobs and SWITCHES & strategy.knobs <= own
    ]
    return f"{kind} in the switch", [changed.under(strategy) for strategy in using], ""


def _help_of_both(scenario: Scenario) -> list[tuple[str, list[Scenario], str]]:
    """Return the best strategy that uses all that a switch can do, if none is used yet."""
    able = with_switch(scenario.cluster, *SWITCHES)
    if able is None or SWITCHES & scenario.strategy.knobs:
        return []
    changed = scenario.changed(cluster=able)
    using = [strategy for strategy in feasible(all_strategies(), able)[0] if strategy.knobs >= SWITCHES]
    if not using:
        return []
    what = f"{units.listed(sorted(SWITCHES, reverse=True))} in the switch"
    return [(what, [changed.under(strategy) for strategy in using], "")]


def _over_rdma(scenario: Scenario, result: Result) -> list[tuple[str, list[Scenario], str]]:
    """Return the same over RDMA, with its latency and cost of messages, instead of TCP between nodes."""
    if result.channel != "tcp" or not uses_the_network(scenario, result):
        return []
    other = with_channel(scenario.cluster, "rdma", bare=scenario.library.is_bare)
    return [("RDMA instead of TCP", [scenario.changed(cluster=other)], "")]


def _bucket_sizes(scenario: Scenario) -> list[Scenario]:
    """Vary the bucket size upward from single tensors; not if a file places existing buckets."""
    if isinstance(scenario.options.get("placement"), list):
        return []
    total = scenario.trace.gradient_bytes
    fused = [scenario.changed(bucket_size=size) for size in _BUCKETS if size < 2 * total]
    return [scenario.changed(bucket_size="none"), *fused]


def _without_the_slowest(scenario: Scenario) -> tuple[str, list[Scenario], str]:
    what = "without the slowest rank"
    cluster, trace = scenario.cluster, scenario.trace
    slow = [one for one in cluster.stragglers if one.factor > 1 and one.rank < scenario.workers]
    if slow:
        worst = max(slow, key=lambda one: one.factor)
        others = [one for one in cluster.stragglers if one.rank != worst.rank]
        return what, [scenario.changed(cluster=cluster.replace(stragglers=others))], f"rank {worst.rank}"
    if trace.worker_count > 1:
        workers = trace.workers
        times = [_seconds(worker) for worker in workers]
        slowest = times.index(max(times))
        del workers[slowest]
        return what, [scenario.changed(trace=trace.replace(workers=workers))], f"recorded rank {slowest}"
    if cluster.jitter is not None or lowered(scenario).options.get("spread"):
        return what, [], "ranks differ only by chance"
    return what, [], "all ranks are alike here"


def _seconds(worker: Worker) -> float:
    return worker.forward_s + (worker.backward_s or 0.0) + worker.optimizer_s


def _best(what: str, scenarios: Sequence[Scenario], note: str, result: Result) -> Change:
    """Return the fastest scenario, except those that take too long or whose options are incompatible."""
    quick = [scenario for scenario in scenarios if _is_quick(scenario)]
    results = [found for scenario in quick for found in _result(scenario)]
    if not results:
        return Change(what, None, None, note or ("too many messages to try" if scenarios else "no strategy can use it"))
    best_run, best = min(results, key=lambda pair: pair[1].iteration_s)
    gain = result.iteration_s / best.iteration_s if best.iteration_s > 0 else None
    if gain is not None and gain < _HARM:
        slower = _named(what, best_run, best)
        takes = f"{slower + ' ' if slower else ''}would take {units.duration(best.iteration_s)}"
        return Change(what, None, None, f"nothing is faster: {takes}")
    return Change(what, best.iteration_s, gain, note or _named(what, best_run, best))


def _result(scenario: Scenario) -> list[tuple[Scenario, Result]]:
    try:
        return [(scenario, execute([scenario])[0])]
    except InvalidArgumentError:
        return []


def _named(what: str, scenario: Scenario, result: Result) -> str:
    if "bucket" in what:
        size = lowered(scenario).bucket_size
        if size is None:
            return "every tensor separately"
        written = f"{size // 2**20}MiB" if size >= 2**20 else f"{size // 2**10}KiB"
        return f"--bucket-size {written}, {units.count(result.buckets, 'bucket')}"
    return "" if what.startswith(("without", "RDMA")) else result.strategy
