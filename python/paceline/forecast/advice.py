"""The verdict above a table: the fastest strategy, what it gives, what bounds it, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline.catalog.strategies import SWITCHES, all_strategies, feasible, find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast.bottleneck import NOTEWORTHY, path_of, reliefs, sentence
from paceline.forecast.simulate import Result, Scenario
from paceline.forecast.sweep import execute
from paceline.forecast.table import Group, extras, named

# What-if runs take about 0.2 s per million messages; beyond this limit they are left out.
_MOST_MESSAGES = 3_000_000


def advise(groups: Sequence[Group]) -> list[str]:
    """Return the verdict on each trace's largest configuration: the fastest strategy, its bottleneck, what would help.

    Of a group that was not asked for servers, parameter servers are not the verdict; if they are faster, it says so.
    """
    by_trace: dict[int, list[Group]] = {}
    for group in groups:
        by_trace.setdefault(id(group.scenarios[0].trace), []).append(group)
    return [line for own in by_trace.values() for line in _verdict(max(own, key=lambda it: it.results[0].workers))]


def _verdict(group: Group) -> list[str]:
    first = group.results[0]
    fastest = group.ranked()[0]
    if fastest.iteration_s <= 0 or not first.critical_path:
        return ["nothing to synchronise: an iteration takes no time"] if first.iteration_s <= 0 else []
    name = named(fastest, group)
    several = len({(result.strategy, result.servers, result.bucket_size) for result in group.results}) > 1
    sentences = [f"{_where(group)}: {name}{' is the fastest' if several else ''}, {_figures(fastest)}."]
    if several and first.iteration_s > fastest.iteration_s * NOTEWORTHY:
        times = units.short(first.iteration_s / fastest.iteration_s)
        sentences.append(
            f"It is {times} times as fast as {named(first, group)}, {path_of(first, 'of whose critical path')}."
        )
    sentences += _faster_still(group, fastest)
    if fastest.workers == 1:
        return [*sentences, sentence(name, fastest, [])]
    scenario = group.scenarios[group.results.index(fastest)]
    relieved = reliefs(scenario, fastest) if fastest.messages <= _MOST_MESSAGES else []
    sentences.append(sentence(name, fastest, relieved))
    if len({result.strategy for result in group.results}) == 1:
        sentences += _others(scenario, fastest, group.meant)
    return sentences


def _where(group: Group) -> str:
    """Say which configuration is meant."""
    first = group.results[0]
    speed = f", compute speed-up {first.compute_speedup:g}" if first.compute_speedup != 1 else ""
    wait = f", latency {units.duration(first.latency_s)}" if first.latency_s else ""
    return f"{first.trace}, {units.count(first.workers, 'worker')}, {units.rate(first.bandwidth_bps)}{wait}{speed}"


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
    best = min(group.results, key=lambda result: result.iteration_s)
    gain = fastest.iteration_s / best.iteration_s
    if gain <= NOTEWORTHY:
        return []
    needs = [units.count(best.servers, "parameter server")] if best.servers else []
    needs += [f"{knob} in the switch" for knob in sorted(SWITCHES & find_strategy(best.strategy).knobs)]
    return [f"{best.strategy}, with {units.listed(needs)}, would be {units.short(gain)} times faster still."]


def _others(scenario: Scenario, result: Result, meant: frozenset[str]) -> list[str]:
    """Return the best of the other strategies, with the options of this one that they use."""
    if 2 * result.workers**2 * result.buckets > 2 * _MOST_MESSAGES:
        return []
    able = [
        strategy
        for strategy in feasible(all_strategies(), scenario.cluster)[0]
        if strategy.name != result.strategy and extras(strategy.name) <= meant
    ]
    try:
        best = min(execute([scenario.under(strategy) for strategy in able]), key=lambda other: other.iteration_s)
    except InvalidArgumentError:  # Options that this strategy does not use may be incompatible.
        return []
    gain = result.iteration_s / best.iteration_s
    if gain > NOTEWORTHY:
        return [f"Of the other strategies {best.strategy} would be the fastest: {units.short(gain)} times faster."]
    if gain < 1 / NOTEWORTHY:
        return [f"No other strategy is faster; the next is {best.strategy}, {units.short(1 / gain)} times slower."]
    return [f"No other strategy is faster; {best.strategy} is as fast."]
