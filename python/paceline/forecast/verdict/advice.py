"""The verdict above a table: what the library runs, or the fastest strategy, what bounds it, what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline._internal import units
from paceline.catalog.models.pipeline import can_be_cut
from paceline.catalog.models.workload import Workload
from paceline.catalog.strategies import SWITCHES, all_strategies, feasible, find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast import compression, sharding
from paceline.forecast.lowering import LONG, is_long
from paceline.forecast.output.table import Group, extras, likely, named, own, ranks, rate_of, with_evidence
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sweep import execute
from paceline.forecast.verdict import sharding_words, slow_links
from paceline.forecast.verdict.bottleneck import NOTEWORTHY, path_of, reliefs, sentence

_NO_OTHER = "No other strategy is faster"
_FEW = 3
"""A comparison of more strategies is no question about one of NCCL's algorithms."""


def advise(groups: Sequence[Group]) -> list[str]:
    """Return the verdict on the largest configuration of each trace and library, with its interval.

    It says what bounds it and what would help. It is about what the library runs by itself, if that was forecast,
    because that is what a user gets; else about the fastest strategy. Of a group that was not asked for servers,
    parameter servers are not the fastest; if they are faster, it says so.
    """
    about: dict[tuple[int, str], list[Group]] = {}
    for group in groups:
        about.setdefault((id(group.scenarios[0].trace), group.results[0].library), []).append(group)
    largest = [max(own, key=lambda it: it.results[0].workers) for own in about.values()]
    lines = [line for group in largest for line in [*_verdict(group), *details(group, subject(group))]]
    return [sharding_words.capital(line) for line in lines]


def subject(group: Group) -> Result:
    """Return the forecast that a verdict is about: what the library runs by itself, or else the fastest."""
    runs = own(group)
    return group.ranked()[0] if runs is None or runs.workers == 1 else runs


def details(group: Group, result: Result) -> list[str]:
    """Return the shares of a pipeline's bubble and of tensor parallelism, what sharding exposes, and if it fits."""
    scenario = group.scenarios[group.results.index(result)]
    lines, workload = [], scenario.workload
    if workload is not None and workload.pipeline > 1:
        lines.append(_bubble(workload))
    if result.tensor_parallel_s:
        share = units.percent(result.tensor_parallel_s / result.compute_s)
        lines.append(
            f"All-reduces between tensor-parallel GPUs, which nothing hides, are {share} of the computation, "
            f"{units.duration(result.tensor_parallel_s)} an iteration."
        )
    if result.context_parallel_s:
        share = units.percent(result.context_parallel_s / result.compute_s)
        lines.append(
            f"For {share} of the computation, {units.duration(result.context_parallel_s)} an iteration, attention "
            "waits for keys and values of other parts of its sequences."
        )
    if result.expert_parallel_s:
        share = units.percent(result.expert_parallel_s / result.compute_s)
        lines.append(
            f"Tokens on their way to experts on other GPUs and back, which nothing hides, take {share} of the "
            f"computation, {units.duration(result.expert_parallel_s)} an iteration."
        )
    lines += sharding_words.sentences(scenario, result, named(result, group), several=_several(group))
    return [*lines, *_bare_schedules(group), *slow_links.sentences(scenario, result)]


def _bare_schedules(group: Group) -> list[str]:
    """Return that strategies on GPUs are not NCCL's algorithms of their names, if few were asked for."""
    strategies = {one.strategy.name: one.strategy for one in group.scenarios}
    on_gpus = group.scenarios[0].cluster.gpu is not None
    bare: list[str] = [
        name for name, strategy in strategies.items() if not strategy.is_offloaded and "servers" not in strategy.knobs
    ]
    if not on_gpus or not bare or len(strategies) > _FEW or group.results[0].workers == 1:
        return []
    several = len(bare) > 1
    schedules = (
        "are the bare schedules of these names, not NCCL's algorithms"
        if several
        else ("is the bare schedule of that name, not NCCL's algorithm")
    )
    return [
        f"{units.listed(bare)} {schedules} (NCCL_ALGO): messages alone, without its channels, protocols and kernels; "
        "native is what NCCL would do."
    ]


def _bubble(workload: Workload) -> str:
    """Return how long the stages of a pipeline wait, and what more microbatches would gain."""
    more = replace(workload, microbatches=2 * workload.microbatches)
    return (
        f"For {units.percent(workload.bubble_s / workload.compute_s)} of the computing time, stages wait in the "
        f"pipeline's bubble ({workload.pipeline} stages, {workload.microbatches} microbatches): twice as many "
        f"microbatches would make a sample {units.short(2 * workload.compute_s / more.compute_s)} times faster"
        f"{_interleaved(workload)}."
    )


def _interleaved(workload: Workload) -> str:
    """Return what twice as many virtual stages would gain, if the model can be cut so."""
    parts = 2 * workload.virtual_stages
    blocks = len({layer.block for layer in workload.model.layers if layer.block})
    if not can_be_cut(blocks, parts * workload.pipeline) or workload.microbatches % workload.pipeline:
        return ""
    gain = workload.compute_s / replace(workload, virtual_stages=parts).compute_s
    return f", {parts} virtual stages {units.short(gain)} times" if gain > NOTEWORTHY else ""


def _verdict(group: Group) -> list[str]:
    first = group.results[0]
    fastest = group.ranked()[0]
    if fastest.iteration_s <= 0 or not first.critical_path:
        return ["nothing to synchronise: an iteration takes no time"] if first.iteration_s <= 0 else []
    runs = own(group)
    if runs is not None and runs.workers > 1:
        return _of_the_library(group, runs, fastest)
    name = named(fastest, group)
    several = _several(group)
    sentences = [f"{_where(group)}: {name}{_place(group, fastest) if several else ''}, {_figures(fastest)}."]
    if several and first.iteration_s > fastest.iteration_s * NOTEWORTHY:
        times = units.short(first.iteration_s / fastest.iteration_s)
        why = path_of(first, "of whose critical path")
        sentences.append(f"It is {times} times as fast as {named(first, group)}, {why}.")
    sentences += _faster_still(group, fastest)
    if fastest.workers == 1:
        return [*sentences, sentence(name, fastest, []), likely(fastest)]
    sentences.append(_bound(group, fastest))
    if len({result.strategy for result in group.results}) == 1:
        sentences += _others(_scenario(group, fastest), fastest, group.meant)
    return [*sentences, likely(with_evidence(group))]


def _of_the_library(group: Group, runs: Result, fastest: Result) -> list[str]:
    """Return what the library runs with its interval, what would be faster, and what bounds it."""
    sentences = [f"{_where(group)}: {likely(runs, named(runs, group))}"]
    gain = runs.iteration_s / fastest.iteration_s
    others = []
    if len({result.strategy for result in group.results}) == 1:
        others = _others(_scenario(group, runs), runs, group.meant)
    if fastest is not runs and gain > NOTEWORTHY:
        rate = "" if not fastest.samples_per_s else f", {units.digits(fastest.samples_per_s)} samples/s"
        sentences.append(
            f"{named(fastest, group)} would be {units.short(gain)} times faster{rate}{_unmeasured(fastest)}."
        )
    elif _several(group):
        shardings = {sharding_words.label(result) for result in group.results}
        rows = "other shardings" if others and len(shardings) > 1 else "others"
        if others and others[0].startswith(_NO_OTHER):
            others[0] = f"None of the {rows} is faster, nor would another strategy be{others[0][len(_NO_OTHER) :]}"
        else:
            much = "" if units.duration(fastest.iteration_s) == units.duration(runs.iteration_s) else "noticeably "
            sentences.append(f"None of the {rows} is {much}faster.")
    return [*sentences, *_faster_still(group, fastest), *others, _bound(group, runs)]


def _unmeasured(result: Result) -> str:
    """Return a remark in brackets, if nobody has published a measurement of the library with this strategy."""
    _, _, reason = result.evidence.partition("outside the evidence: ")
    return f" ({reason})" if reason.startswith("no measurement") else ""


def _place(group: Group, fastest: Result) -> str:
    """Return ` is the fastest`, or which others take as long as far as a reader can see."""
    takes = units.duration(fastest.iteration_s)
    equal = [one for one in group.ranked() if one is not fastest and units.duration(one.iteration_s) == takes]
    if not equal:
        return " is the fastest"
    alone = named(equal[0], group) if len(equal) == 1 else ""
    if len(equal) == len(group.ranked()) - 1:
        return f" is as fast as {alone or 'all others'}"
    return f" is the fastest with {alone or f'{len(equal)} others'}"


def _several(group: Group) -> bool:
    rows = {
        (result.strategy, result.servers, result.bucket_size, sharding_words.label(result), compression.label(result))
        for result in group.results
    }
    return len(rows) > 1


def _scenario(group: Group, result: Result) -> Scenario:
    return group.scenarios[group.results.index(result)]


def _bound(group: Group, result: Result) -> str:
    """Return what bounds it."""
    scenario = _scenario(group, result)
    quick = result.messages <= LONG or not is_long(scenario)
    relieved = reliefs(scenario, result) if quick else []
    return sentence(named(result, group), result, relieved)


def _where(group: Group) -> str:
    """Say which configuration is meant."""
    first = group.results[0]
    speed = f", compute speed-up {first.compute_speedup:g}" if first.compute_speedup != 1 else ""
    wait = f", latency {units.duration(first.latency_s)}" if first.latency_s else ""
    workload = group.scenarios[0].workload
    each = ", one a node" if group.scenarios[0].one_a_node and first.workers > 1 else ""
    return f"{first.trace}, {ranks(first, workload)}{each}, {rate_of(first, workload)}{wait}{speed}"


def _figures(result: Result) -> str:
    """Return `19340 samples/s, 91.8 % of linear scaling (105.9 ms an iteration)`."""
    time = f"{units.duration(result.iteration_s)} an iteration"
    if result.samples_per_s is None or result.scaling_efficiency is None or not result.compute_s:
        rate = result.bus_bandwidth_bps
        return time if rate is None else f"{time}, bus bandwidth {units.rate(rate)}"
    scaling = units.percent(result.scaling_efficiency)
    return f"{units.digits(result.samples_per_s)} samples/s, {scaling} of linear scaling ({time})"


def _faster_still(group: Group, fastest: Result) -> list[str]:
    """Name a strategy that is faster, but needs what was not asked for."""
    able = [one for one in group.results if _has_its_switch(_scenario(group, one))]
    best = min(able, key=lambda one: one.iteration_s, default=fastest)
    gain = fastest.iteration_s / best.iteration_s
    if gain <= NOTEWORTHY:
        return []
    needs = [units.count(best.servers, "parameter server")] if best.servers else []
    needs += [f"{knob} in the switch" for knob in sorted(SWITCHES & find_strategy(best.strategy).knobs)]
    faster = f"{units.short(gain)} times faster still{_unmeasured(best)}"
    return [f"{best.strategy}, with {units.listed(needs)}, would be {faster}."]


def _has_its_switch(scenario: Scenario) -> bool:
    """Whether there is a switch between workers, if the strategy needs one that can do something."""
    return scenario.spans_nodes or not SWITCHES & scenario.strategy.knobs


def _others(scenario: Scenario, result: Result, meant: frozenset[str]) -> list[str]:
    """Return the best of the other strategies, with the options of this one that they use."""
    able = [
        scenario.under(strategy)
        for strategy in feasible(all_strategies(), scenario.cluster)[0]
        if strategy.name != result.strategy
        and extras(strategy.name) <= meant
        and _has_its_switch(scenario.under(strategy))
        and not compression.obstacle(scenario.options, strategy)
        and (result.sharded is None or (sharding.able(strategy) and strategy.name != sharding.IN_STEP))
    ]
    try:
        if not able or any(is_long(other) for other in able):
            return []
        best = min(execute(able), key=lambda other: other.iteration_s)
    except InvalidArgumentError:  # Options that this strategy does not use may be incompatible.
        return []
    gain = result.iteration_s / best.iteration_s
    if gain > NOTEWORTHY:
        faster = f"{units.short(gain)} times faster{_unmeasured(best)}"
        return [f"Of the other strategies {best.strategy} would be the fastest: {faster}."]
    if gain < 1 / NOTEWORTHY:
        return [f"{_NO_OTHER}; the next is {best.strategy}, {units.short(1 / gain)} times slower."]
    return [f"{_NO_OTHER}; {best.strategy} is as fast."]
