"""The answer of a forecast: its headline, facts and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline._core import Degraded
from paceline._internal import block, units
from paceline._internal.block import Fact, Pair
from paceline.catalog.models.workload import Workload
from paceline.catalog.strategies import SWITCHES, find_strategy
from paceline.forecast.remedies import least_gpus
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sharded import Sharded
from paceline.forecast.verdict.advice import Bubble, Details, Verdict
from paceline.forecast.verdict.bottleneck import MIN_GAIN, largest
from paceline.forecast.verdict.groups import Group, is_too_large
from paceline.forecast.verdict.remedy import Proposed
from paceline.forecast.verdict.slow_links import SlowLinks
from paceline.forecast.wording import bottleneck, remedies, rows, sharding, terms

_CHANGE = 1.0005
"""Smaller ratios of two times with slow links and without are none."""
_UNEVEN = 1.01
"""Workers whose iterations differ by less are equally fast."""
_NO_GAIN = f"{(MIN_GAIN - 1) * 100:.1f}%"


@dataclass(frozen=True)
class Answer:
    """The answer about one configuration."""

    headline: str
    facts: tuple[Fact, ...] = ()
    memory: tuple[Fact, ...] = ()
    """Where it does not fit: the parts of its memory."""
    remedy: str = ""
    """Where it does not fit: what to type."""
    otherwise: str = ""
    """Where it does not fit: the headline if it did."""
    notes: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether nothing says that it does not."""
        return not self.otherwise

    def lines(self) -> list[str]:
        """Return the answer for people, without its notes."""
        facts = block.block(self.facts)
        if self.fits:
            return [*block.headline(self.headline), *(["", *facts] if facts else [])]
        return [
            *block.headline(self.headline, "bad"),
            "",
            *block.block(self.memory),
            *(block.suggestion(self.remedy) if self.remedy else []),
            "",
            *block.headline(self.otherwise),
            *(["", *facts] if facts else []),
        ]

    def sentences(self) -> list[str]:
        """Return the answer as `--json` and reports have it: a string for each fact."""
        tried = [f"try: {self.remedy}"] if self.remedy else []
        rest = [*tried, self.otherwise] if self.otherwise else []
        return [self.headline, *block.sentences(self.memory), *rest, *block.sentences(self.facts)]


def answer(
    one: Verdict, groups: Sequence[Group], *, has_table: bool = True, proposed: Proposed | None = None
) -> Answer:
    """Return the answer about a configuration.

    Args:
        one: The verdict on it.
        groups: All configurations, from which it differs in what its headline names.
        has_table: Whether a table follows, which has figures of its own.
        proposed: What was tried where it does not fit; None: nothing was.
    """
    group, result = one.group, one.result
    if one.is_empty:
        return Answer(headline(group, result, groups))
    facts = [*_details(one, has_table=has_table), _setup(group, result)]
    known, remarks = figures(result), notes(one.details)
    return framed(
        group, result, groups, known, before=_timing(group, result), after=facts, remarks=remarks, proposed=proposed
    )


def brief(group: Group, result: Result) -> Answer:
    """Return the answer about a result for which no change is tried: what takes no further simulation."""
    if result.iteration_s <= 0:
        return Answer(headline(group, result, [group]))
    workload = group.scenario(result).workload
    line = Fact("Bottleneck", bottleneck.path(result, group.noun, workload), tone="limit")
    path = [line] if result.critical_path and _has_bottleneck(result, workload) else []
    exchanged = [*sharding.exposed(group.scenario(result), result), *within(result), *asynchronous(result)]
    facts = [*path, *exchanged, _setup(group, result)]
    return framed(group, result, [group], figures(result), before=_timing(group, result), after=facts)


def framed(
    group: Group,
    result: Result,
    groups: Sequence[Group],
    known: str,
    *,
    before: Sequence[Fact],
    after: Sequence[Fact],
    remarks: Sequence[str] = (),
    in_full: bool = False,
    proposed: Proposed | None = None,
) -> Answer:
    """Return an answer whose headline is that it does not fit, where it does not.

    Args:
        group: The configuration.
        result: Its forecast.
        groups: All configurations, from which the headline tells it.
        known: What the headline says otherwise.
        before: Facts that come before its memory.
        after: Facts that come after that.
        remarks: The notes on them.
        in_full: Whether memory has its parts where it fits, too.
        proposed: What was tried where it does not fit.
    """
    scenario, own, about = group.scenario(result), result.sharded, subject(group, result, groups)
    known += _assumed_network(scenario, result)
    noted = (
        *remarks,
        *_over_linear(result, scenario.workload),
        *_over_peak(result),
        *([] if own is None else sharding.assumed(scenario)),
    )
    if own is None or own.fits is not False:
        memory = sharding.memory(scenario, result, in_full=in_full)
        return _by_vendor(Answer(f"{about}: {known}", (*before, *memory, *after), notes=noted), scenario)
    answer = Answer(
        f"{about}: {own.verdict}, {sharding.need(own)}{sharding.chance(own)}",
        (*before, *after),
        memory=(
            *sharding.memory(scenario, result, in_full=True),
            *_state(scenario, own),
            *([] if proposed is None else remedies.facts(proposed)),
        ),
        remedy="" if proposed is None else remedies.line(proposed),
        otherwise=f"If it fit: {known}",
        notes=noted,
    )
    return _by_vendor(answer, scenario)


def _assumed_network(scenario: Scenario, result: Result) -> str:
    """Return what a headline adds where the step depends on a network that is assumed."""
    is_said = scenario.assumed_network and scenario.spans_nodes and rows.is_waiting(result)
    return f" (assumed {scenario.assumed_network})" if is_said else ""


def _by_vendor(answer: Answer, scenario: Scenario) -> Answer:
    """Return an answer that calls the library of collectives as the vendor of the GPUs does."""
    name = terms.collectives(scenario.cluster, scenario.workload)
    if name == terms.NCCL:
        return answer
    headline, *_ = terms.renamed([Fact("", answer.headline)], name)
    return replace(
        answer,
        headline=str(headline.values[0]),
        facts=tuple(terms.renamed(answer.facts, name)),
        memory=tuple(terms.renamed(answer.memory, name)),
    )


def _state(scenario: Scenario, own: Sharded) -> list[Fact]:
    """Return the line `Model state`, where all GPUs together are too few for it."""
    workload, capacity = scenario.workload, own.capacity_bytes
    gpus = 0 if workload is None or not capacity else least_gpus(workload, capacity)
    if workload is None or gpus <= scenario.workers * workload.gpus:
        return []
    return [Fact("Model state", f"alone fills {units.count(gpus, 'GPU')}, sharded over all")]


def _timing(group: Group, result: Result) -> list[Fact]:
    return [
        *times(result, group.scenario(result).workload),
        *([Fact("Likely", rows.interval(result))] if rows.is_forecast(result) else []),
    ]


def _setup(group: Group, result: Result) -> Fact:
    return Fact("Setup", *rows.setup(result, group.scenario(result).workload, group.noun), *_alone(result))


def headline(group: Group, result: Result, groups: Sequence[Group]) -> str:
    """Return the headline of a result, which is not about memory."""
    known = "nothing to synchronize" if result.iteration_s <= 0 else figures(result)
    return f"{subject(group, result, groups)}: {known}"


def subject(group: Group, result: Result, groups: Sequence[Group]) -> str:
    """Return `resnet-50, DDP (NCCL), 64 GPUs`, with the network's rate if it differs between configurations."""
    scenario = group.scenario(result)
    every = [other for one in groups for other in one.results]
    each = ", one per node" if scenario.one_a_node and result.workers > 1 else ""
    ranks = rows.ranks(result, scenario.workload, group.noun)
    # One rank alone exchanges nothing, under any strategy.
    name = [] if _is_without_strategy(result) else [rows.spoken(result, group)]
    return ", ".join([result.trace, *name, f"{ranks}{each}", *rows.differing(result, every)])


def _is_without_strategy(result: Result) -> bool:
    return result.workers == 1 and result.servers == 0


def figures(result: Result) -> str:
    """Return the figures of a headline: tokens/s and MFU, or time and samples/s, or time and bus bandwidth."""
    mfu = "" if result.mfu is None else f", MFU {units.percent(result.mfu)}"
    if result.tokens_per_s_per_gpu is not None:
        real = result.real_tokens_per_s_per_gpu
        share = "" if real is None else f" ({units.digits(real)} without padding)"
        return f"{units.digits(result.tokens_per_s_per_gpu)} tokens/s per GPU{share}{mfu}"
    time = f"{units.duration(result.iteration_s)}/iteration"
    if result.samples_per_s is None or not result.compute_s:
        rate = result.bus_bandwidth_bps
        return time if rate is None else f"{units.duration(result.iteration_s)}, bus bandwidth {units.rate(rate)}"
    return f"{time}, {units.digits(result.samples_per_s)} samples/s{mfu}"


def times(result: Result, of: Workload | None) -> Iterator[Fact]:
    """Return what the headline does not say of time, rate and scaling; `of`: the model."""
    if result.samples_per_s is None or result.scaling_efficiency is None or not result.compute_s:
        return
    mark = " [1]" if rows.is_over_linear(result) else ""
    scaling = (
        f"{units.percent(result.scaling_efficiency)} of linear{mark}" if rows.is_against_linear(result, of) else ""
    )
    if result.tokens_per_s_per_gpu is not None:
        time = f"{units.duration(result.iteration_s)}, {units.digits(result.samples_per_s, 3)} samples/s"
        yield Fact("Iteration", ", ".join(filter(None, [time, scaling])))
    elif scaling:
        yield Fact("Scaling", f"{scaling} ({rows.compute_alone(result)})")


def _alone(result: Result) -> list[str]:
    """Return the time of computation alone, unless it stands beside the scaling."""
    if result.tokens_per_s_per_gpu is None or result.compute_s <= 0 or rows.is_alone(result):
        return []
    return [rows.compute_alone(result)]


def _over_linear(result: Result, workload: Workload | None) -> list[str]:
    is_noted = rows.is_over_linear(result) and rows.is_against_linear(result, workload)
    return [f"[1] {rows.OVER_LINEAR}"] if is_noted else []


def _details(one: Verdict, *, has_table: bool) -> Iterator[Fact]:
    """Return bottleneck, changes that would help, exposed communication, and how other strategies do."""
    group, result = one.group, one.result
    assert one.bound is not None  # it is not empty
    workload = group.scenario(result).workload
    if _has_bottleneck(result, workload):
        yield bottleneck.fact(one.bound, group.noun, workload)
    if helps := [*bottleneck.effects(one.bound.tried, workload), *_still(one), *of_pipeline(one.details.bubble)]:
        yield Fact("Would help", *sorted(helps, key=_by_gain))
    if result.sharded is not None or not has_table:
        yield from sharding.exposed(group.scenario(result), result)
        yield from _coordinator(result)
    yield from within(result)
    yield from asynchronous(result)
    yield from pipeline(one.details.bubble)
    if not _is_without_strategy(result) and (strategy := _strategy(one)):
        yield Fact("Strategy", *strategy)
    if one.details.slow_links is not None:
        yield _slow_links(one.details.slow_links)


def _has_bottleneck(result: Result, workload: Workload | None) -> bool:
    """Whether its bottleneck says something: one GPU computes, unless it waits for its host."""
    return not rows.is_alone(result) or bottleneck.waits_for_host(result, workload)


def _by_gain(pair: Pair) -> float:
    figure = pair[0].removesuffix("x").replace(",", "")
    return -float(figure) if pair[0].endswith("x") else 0.0


def _coordinator(result: Result) -> Iterator[Fact]:
    if result.coordinator_s is None or result.copy_s is None or result.collective_s is None:
        return
    parts = {
        "coordinator": result.coordinator_s,
        "copies of the fusion buffer": result.copy_s,
        "collectives": result.collective_s,
    }
    yield Fact("Coordinator", *[(units.duration(seconds), name) for name, seconds in parts.items()])


def within(result: Result) -> Iterator[Fact]:
    """Return what exchanges within the computation take, which nothing hides."""
    for label, name, seconds in (
        ("TP", "all-reduces between TP GPUs", result.tensor_parallel_s),
        ("CP", "attention waits for keys and values", result.context_parallel_s),
        ("EP", "tokens to experts and back", result.expert_parallel_s),
    ):
        if seconds:
            share = units.percent(seconds / result.compute_s)
            yield Fact(label, f"{units.duration(seconds)}, {share} of compute: {name}, never hidden")


def asynchronous(result: Result) -> Iterator[Fact]:
    """Return how stale gradients are, how far workers are apart, and how long the bound holds them back."""
    own = result.asynchronous
    if own is None:
        return
    mean, others = f"{own.mean_staleness:.3g}", f"90% at most {own.p90_staleness:,}, largest {own.max_staleness:,}"
    yield Fact(
        "Staleness", f"mean {mean}, median {own.median_staleness:,}, {others}", "others' updates since a worker's pull"
    )
    if own.slowest_s > _UNEVEN * own.fastest_s:
        fastest, slowest = units.duration(own.fastest_s), units.duration(own.slowest_s)
        yield Fact("Workers", f"{fastest}/iteration of the fastest, {slowest} of the slowest")
    if own.bound is not None:
        share = units.percent(own.blocked_s / result.iteration_s if result.iteration_s > 0 else 0.0)
        ahead = f"at most {units.count(own.bound, 'iteration')} ahead"
        yield Fact("Blocked", f"{units.duration(own.blocked_s)} an iteration, {share} ({ahead})")


def pipeline(of: Bubble | None) -> Iterator[Fact]:
    """Return how long the stages of a pipeline wait."""
    if of is not None:
        shape = f"{of.stages} stages, {of.microbatches} microbatches"
        yield Fact("Pipeline", f"bubble is {units.percent(of.share)} of compute ({shape})")


def of_pipeline(of: Bubble | None) -> list[Pair]:
    """Return what more microbatches and virtual stages would gain."""
    if of is None:
        return []
    pairs = [(units.factor(of.gain), f"--microbatches {2 * of.microbatches} (per sample)")]
    if of.virtual_gain > MIN_GAIN:
        pairs.append((units.factor(of.virtual_gain), f"--virtual-stages {of.virtual_stages}"))
    return pairs


def _still(one: Verdict) -> list[Pair]:
    """Name a strategy that is faster, but needs what was not asked for."""
    if (best := one.still) is None:
        return []
    servers = f", with {units.count(best.servers, 'parameter server')}" if best.servers else ""
    text = f"{best.strategy}{servers}{_on_switches(best)}{_unmeasured(best, one.group)}"
    return [(units.factor(one.result.iteration_s / best.iteration_s), text)]


def _switches(result: Result) -> list[str]:
    """Return what the strategy of a result needs of switches."""
    knobs = SWITCHES & find_strategy(result.strategy).knobs
    return ["multicast" if knob == "multicast" else "SHARP" for knob in sorted(knobs)]


def _on_switches(result: Result) -> str:
    able = _switches(result)
    return f", on switches with {units.listed(able)}" if able else ""


def _without(best: Result | None) -> str:
    """Return ` without SHARP`, if a faster strategy needs that; the others are compared without it."""
    if best is None:
        return ""
    needs = [*(["parameter servers"] if best.servers else []), *_switches(best)]
    return f" without {units.listed(needs, 'or')}" if needs else ""


def _that_fits(group: Group, fastest: Result) -> str:
    """Return ` that fits`, if a faster row does not."""
    faster = [one for one in group.results if one.iteration_s < fastest.iteration_s]
    return " that fits" if not is_too_large(fastest) and any(map(is_too_large, faster)) else ""


def _unmeasured(result: Result, group: Group) -> str:
    """Return a remark in brackets, if nobody has published a measurement of the library with this strategy."""
    ground = result.ground
    if ground is None or not ground.is_unpublished:
        return ""
    return f" (unmeasured with {terms.library(result.library)})" if result.library != "none" else " (unmeasured)"


def _strategy(one: Verdict) -> list[str]:
    """Return how the other rows do, and the best of strategies without a row."""
    group, result, fastest = one.group, one.result, one.fastest
    lines = []
    if one.is_of_library:
        gain = result.iteration_s / fastest.iteration_s
        if fastest is not result and gain > MIN_GAIN:
            name = rows.spoken(fastest, group)
            lines.append(f"{name} is {units.factor(gain)} faster{_unmeasured(fastest, group)}")
        elif group.has_several:
            is_equal = units.duration(fastest.iteration_s, 4) == units.duration(result.iteration_s, 4)
            others = f"no other{'' if group.has_one_strategy is False else ' row'}{_that_fits(group, fastest)}"
            slower = f"{others} is faster" if is_equal else f"{others} is more than {_NO_GAIN} faster"
            lines.append(slower + _without(one.still))
    elif group.has_several:
        lines += _ranking(group, fastest, _without(one.still))
    if (other := one.other) is not None:
        gain = result.iteration_s / other.iteration_s
        # After a line about rows, which differ in something else.
        name = f"{'of strategies, ' if lines else ''}{terms.strategy(result.strategy)}"
        own = terms.strategy(other.strategy)
        if gain > MIN_GAIN:
            lines.append(f"{own} would be {units.factor(gain)} faster{_on_switches(other)}{_unmeasured(other, group)}")
        elif gain < 1 / MIN_GAIN:
            lines.append(f"{name} is fastest, next is {own}, {units.factor(1 / gain)} slower")
        else:
            lines.append(f"{name} is fastest, {own} is as fast")
    return lines


def _ranking(group: Group, fastest: Result, without: str) -> list[str]:
    """Return which row is fastest, `without` what others need, which are as fast, and how much slower the first is."""
    takes = units.duration(fastest.iteration_s, 4)
    ranked = group.ranked()
    equal = [one for one in ranked if one is not fastest and units.duration(one.iteration_s, 4) == takes]
    name = rows.named(fastest, group)
    best = f"the fastest{that_fits}" if (that_fits := _that_fits(group, fastest)) else "fastest"
    if len(equal) == len(ranked) - 1:
        lines = ["all are as fast"] if len(equal) > 1 else [f"{name} and {rows.named(equal[0], group)} are as fast"]
    elif equal:
        others = rows.named(equal[0], group) if len(equal) == 1 else f"{len(equal)} others"
        lines = [f"{name} is {best}{without}, with {others}"]
    else:
        lines = [f"{name} is {best}{without}"]
    first = group.results[0]
    if first.iteration_s > fastest.iteration_s * MIN_GAIN:
        times = units.factor(first.iteration_s / fastest.iteration_s)
        slowest = rows.named(first, group)
        lines[0] += f", {times} as fast as {slowest}"
        lines.append(f"largest share of {slowest}: {bottleneck.path(largest(first), group.noun)}")
    return lines


def notes(of: Details) -> list[str]:
    """Return the notes on names of strategies and on slow links."""
    return [*_bare_schedules(of.schedules), *([] if of.slow_links is None else _routes(of.slow_links))]


def _over_peak(result: Result) -> list[str]:
    """Return why an MFU is above 100 %."""
    if result.mfu is None or result.mfu <= 1:
        return []
    return [
        "MFU counts all scores of attention, as is usual; kernels skip those of a causal mask, so it may exceed 100%"
    ]


def _bare_schedules(names: tuple[str, ...]) -> list[str]:
    """Return that strategies on GPUs are not NCCL's algorithms of their names."""
    if not names:
        return []
    are = "is a bare schedule" if len(names) == 1 else "are bare schedules"
    return [f"{units.listed([*names])} {are}: messages alone, without NCCL's channels and kernels; native is NCCL"]


def _slow_links(of: SlowLinks) -> Fact:
    """Return what the slow links cost."""
    change = of.iteration_s / of.healthy_s if of.healthy_s > 0 else 1.0
    takes = f"{units.duration(of.healthy_s)} with all links whole"
    names = ", ".join(_link(one) for one in of.links)
    if change > _CHANGE:
        effect = f"{units.percent(change - 1)} longer iterations ({takes})"
    elif change < 1 / _CHANGE:
        effect = f"{units.percent(1 - change)} shorter iterations ({takes})"
    else:
        effect = "no cost" + (" (adaptive routing uses the other links)" if of.is_spread else "")
    return Fact("Slow links", f"{names}: {effect}")


def _routes(of: SlowLinks) -> list[str]:
    """Return where less of a link may be faster than more of it, and why."""
    lines = []
    if of.cards:
        lines += [
            "NCCL cuts buffers into equal parts for the NICs of a node, so all wait for the slowest",
            f"A removed NIC leaves {of.cards - 1}/{of.cards} of its node's rate, faster than a NIC slower than that",
        ]
    if of.has_ports:
        lines.append("Every node waits for the slow port; without its node the others would be as fast as before")
    if of.fabric:
        routes = "Routes are hashed (ecmp)" if of.is_hashed else f"Routes in a {of.fabric} are the shortest"
        lines += [
            f"{routes} and do not avoid a slow link, only a removed one",
            "Removing a link chooses routes anew, so iterations may become shorter",
        ]
    return lines


def _link(one: Degraded) -> str:
    return f"{one.link} removed" if one.factor == 0 else f"{one.link} at {units.percent(one.factor)}"


def details(of: Details) -> list[Fact]:
    """Return what `--explain` adds: exposed communication, exchanges, pipeline and slow links."""
    return [
        *sharding.exposed(of.scenario, of.result),
        *within(of.result),
        *pipeline(of.bubble),
        *([] if of.slow_links is None else [_slow_links(of.slow_links)]),
    ]
