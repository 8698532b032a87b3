"""Sentences of the verdict on a table."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._core import Degraded
from paceline._internal import units
from paceline.catalog.strategies import SWITCHES, find_strategy
from paceline.forecast.result import Result
from paceline.forecast.verdict.advice import Bubble, Details, Verdict
from paceline.forecast.verdict.bottleneck import NOTEWORTHY, largest
from paceline.forecast.verdict.groups import Group
from paceline.forecast.verdict.slow_links import SlowLinks
from paceline.forecast.wording import bottleneck, rows, sharding, terms

_CHANGE = 1.0005
"""Smaller ratios of two times with slow links and without are none."""


def sentences(verdicts: Sequence[Verdict]) -> list[str]:
    """Return what bounds each configuration, with its interval, what would help, and whether it fits."""
    lines = [line for one in verdicts for line in [*_sentences(one), *details(one.details)]]
    return [rows.capital(line) for line in lines]


def _sentences(one: Verdict) -> list[str]:
    group, fastest = one.group, one.fastest
    if one.is_empty:
        return ["nothing to synchronize: an iteration takes no time"] if group.results[0].iteration_s <= 0 else []
    if one.is_of_library:
        return [*_of_the_library(one), *_still(one), *_others(one), _bound(one)]
    lines = [_ranking(group, fastest), *_compared(group, fastest), *_still(one), _bound(one)]
    if fastest.workers == 1:
        return [*lines, rows.likely(fastest)]
    return [*lines, *_others(one), rows.likely(group.with_interval())]


def _ranking(group: Group, fastest: Result) -> str:
    place = _place(group, fastest) if group.has_several else ""
    return f"{_where(group)}: {rows.named(fastest, group)}{place}, {_figures(fastest)}."


def _compared(group: Group, fastest: Result) -> list[str]:
    """Return how many times as fast as the first the fastest is, and what most of the first's path is."""
    first = group.results[0]
    if not group.has_several or first.iteration_s <= fastest.iteration_s * NOTEWORTHY:
        return []
    times = units.short(first.iteration_s / fastest.iteration_s)
    why = bottleneck.path_of(largest(first), "of whose critical path")
    return [f"It is {times} times as fast as {rows.named(first, group)}, {why}."]


def _of_the_library(one: Verdict) -> list[str]:
    """Return what the library runs with its interval, and whether a row is faster."""
    group, runs, fastest = one.group, one.result, one.fastest
    lines = [f"{_where(group)}: {rows.likely(runs, rows.named(runs, group))}"]
    gain = runs.iteration_s / fastest.iteration_s
    if fastest is not runs and gain > NOTEWORTHY:
        rate = "" if not fastest.samples_per_s else f", {units.digits(fastest.samples_per_s)} samples/s"
        faster = f"{units.short(gain)} times faster{rate}{_unmeasured(fastest)}"
        return [*lines, f"{rows.named(fastest, group)} would be {faster}."]
    if group.has_several and not _is_beside_rows(one):
        much = "" if units.duration(fastest.iteration_s) == units.duration(runs.iteration_s) else "noticeably "
        lines.append(f"None of the {_other_rows(one)} is {much}faster.")
    return lines


def _is_beside_rows(one: Verdict) -> bool:
    """Whether neither a row nor another strategy is faster, which is said at once."""
    rival = one.fastest is not one.result and one.result.iteration_s / one.fastest.iteration_s > NOTEWORTHY
    other = one.other
    slower = other is not None and one.result.iteration_s / other.iteration_s <= NOTEWORTHY
    return one.is_of_library and one.group.has_several and not rival and slower


def _other_rows(one: Verdict) -> str:
    shardings = {rows.sharding_label(result) for result in one.group.results}
    return "other shardings" if one.other is not None and len(shardings) > 1 else "others"


def _others(one: Verdict) -> list[str]:
    """Return how the best of the other strategies does."""
    if (other := one.other) is None:
        return []
    gain = one.result.iteration_s / other.iteration_s
    if gain > NOTEWORTHY:
        faster = f"{units.short(gain)} times faster{_unmeasured(other)}"
        return [f"Of the other strategies {other.strategy} would be the fastest: {faster}."]
    none = "No other strategy is faster"
    if _is_beside_rows(one):
        none = f"None of the {_other_rows(one)} is faster, nor would another strategy be"
    if gain < 1 / NOTEWORTHY:
        return [f"{none}; the next is {other.strategy}, {units.short(1 / gain)} times slower."]
    return [f"{none}; {other.strategy} is as fast."]


def _unmeasured(result: Result) -> str:
    """Return a remark in brackets, if nobody has published a measurement of the library with this strategy."""
    ground = result.ground
    return f" ({terms.reason(ground)})" if ground is not None and ground.is_unpublished else ""


def _place(group: Group, fastest: Result) -> str:
    """Return ` is the fastest`, or which others take as long as far as a reader can see."""
    takes = units.duration(fastest.iteration_s)
    equal = [one for one in group.ranked() if one is not fastest and units.duration(one.iteration_s) == takes]
    if not equal:
        return " is the fastest"
    alone = rows.named(equal[0], group) if len(equal) == 1 else ""
    if len(equal) == len(group.ranked()) - 1:
        return f" is as fast as {alone or 'all others'}"
    return f" is the fastest with {alone or f'{len(equal)} others'}"


def _bound(one: Verdict) -> str:
    assert one.bound is not None  # it is not empty
    return bottleneck.sentence(rows.named(one.result, one.group), one.bound)


def _where(group: Group) -> str:
    """Say which configuration is meant."""
    first = group.results[0]
    speed = f", compute speedup {first.compute_speedup:g}" if first.compute_speedup != 1 else ""
    wait = f", latency {units.duration(first.latency_s)}" if first.latency_s else ""
    workload = group.scenarios[0].workload
    each = ", one a node" if group.scenarios[0].one_a_node and first.workers > 1 else ""
    return f"{first.trace}, {rows.ranks(first, workload)}{each}, {rows.rate_of(first, workload)}{wait}{speed}"


def _figures(result: Result) -> str:
    """Return `19340 samples/s, 91.8 % of linear scaling (105.9 ms an iteration)`."""
    time = f"{units.duration(result.iteration_s)} an iteration"
    if result.samples_per_s is None or result.scaling_efficiency is None or not result.compute_s:
        rate = result.bus_bandwidth_bps
        return time if rate is None else f"{time}, bus bandwidth {units.rate(rate)}"
    scaling = units.percent(result.scaling_efficiency)
    return f"{units.digits(result.samples_per_s)} samples/s, {scaling} of linear scaling ({time})"


def _still(one: Verdict) -> list[str]:
    """Name a strategy that is faster, but needs what was not asked for."""
    if (best := one.still) is None:
        return []
    needs = [units.count(best.servers, "parameter server")] if best.servers else []
    needs += [f"{knob} in the switch" for knob in sorted(SWITCHES & find_strategy(best.strategy).knobs)]
    gain = one.fastest.iteration_s / best.iteration_s
    faster = f"{units.short(gain)} times faster still{_unmeasured(best)}"
    return [f"{best.strategy}, with {units.listed(needs)}, would be {faster}."]


def details(of: Details) -> list[str]:
    """Return the shares of a pipeline's bubble and of tensor parallelism, what sharding exposes, and if it fits."""
    result = of.result
    lines = [] if of.bubble is None else [_bubble(of.bubble)]
    if result.tensor_parallel_s:
        lines.append(
            "All-reduces between tensor-parallel GPUs, which nothing hides, are "
            f"{_share(result, result.tensor_parallel_s)} of the computation, "
            f"{units.duration(result.tensor_parallel_s)} an iteration."
        )
    if result.context_parallel_s:
        lines.append(
            f"For {_share(result, result.context_parallel_s)} of the computation, "
            f"{units.duration(result.context_parallel_s)} an iteration, attention waits for keys and values of other "
            "parts of its sequences."
        )
    if result.expert_parallel_s:
        lines.append(
            "Tokens on their way to experts on other GPUs and back, which nothing hides, take "
            f"{_share(result, result.expert_parallel_s)} of the computation, "
            f"{units.duration(result.expert_parallel_s)} an iteration."
        )
    several, name = of.group.has_several, rows.named(result, of.group)
    lines += sharding.sentences(of.scenario, result, name, several=several)
    return [*lines, *_bare_schedules(of.schedules), *([] if of.slow_links is None else _slow_links(of.slow_links))]


def _share(result: Result, seconds: float) -> str:
    return units.percent(seconds / result.compute_s)


def _bare_schedules(names: tuple[str, ...]) -> list[str]:
    """Return that strategies on GPUs are not NCCL's algorithms of their names."""
    if not names:
        return []
    schedules = "is the bare schedule of that name, not NCCL's algorithm"
    if len(names) > 1:
        schedules = "are the bare schedules of these names, not NCCL's algorithms"
    return [
        f"{units.listed([*names])} {schedules} (NCCL_ALGO): messages alone, without its channels, protocols and "
        "kernels; native is what NCCL would do."
    ]


def _bubble(of: Bubble) -> str:
    """Return how long the stages of a pipeline wait, and what more microbatches would gain."""
    cut = ""
    if of.virtual_gain > NOTEWORTHY:
        cut = f", {of.virtual_stages} virtual stages {units.short(of.virtual_gain)} times"
    return (
        f"For {units.percent(of.share)} of the computing time, stages wait in the pipeline's bubble ({of.stages} "
        f"stages, {of.microbatches} microbatches): twice as many microbatches would make a sample "
        f"{units.short(of.gain)} times faster{cut}."
    )


def _slow_links(of: SlowLinks) -> list[str]:
    """Return what the slow links cost, and where less of a link may be faster than more of it, and why."""
    change = of.iteration_s / of.healthy_s if of.healthy_s > 0 else 1.0
    takes = f"it is {units.duration(of.healthy_s)} with all links whole"
    names = units.listed([_link(one) for one in of.links])
    if change > _CHANGE:
        effect = f"{names} makes an iteration {units.percent(change - 1)} longer: {takes}"
    elif change < 1 / _CHANGE:
        effect = f"{names} makes an iteration {units.percent(1 - change)} shorter: {takes}"
    else:
        spread = ", because adaptive routing sends what crosses over the other links, which carry it"
        effect = f"{names} costs nothing{spread if of.is_spread else ''}"
    lines = [f"{effect}."]
    if of.cards:
        lines.append(
            "NCCL cuts buffers into equal parts for the NICs of a node, so all wait for the slowest; a NIC that is "
            f"removed is left out and leaves {of.cards - 1}/{of.cards} of its node's rate, which is faster than one "
            "slower than that."
        )
    if of.has_ports:
        lines.append(
            "Every node has its part of each exchange, so all wait for the slow port; without that node the others "
            "would be as fast as before."
        )
    if of.fabric:
        routes = "Routes are hashed (ecmp)" if of.is_hashed else f"Routes in a {of.fabric} are the shortest"
        lines.append(
            f"{routes} and do not avoid a slow link; a link that is removed is avoided, and all routes over it are "
            "chosen anew, so removing it may make an iteration shorter, even than with all links whole."
        )
    return lines


def _link(one: Degraded) -> str:
    return f"{one.link} removed" if one.factor == 0 else f"{one.link} at {units.percent(one.factor)}"
