"""The words of `paceline simulate --explain`, for people and for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline._internal import units
from paceline._internal.block import Fact, Pair
from paceline._internal.console import Column, render
from paceline.forecast.kinds import Measure, Remark
from paceline.forecast.result import Result
from paceline.forecast.verdict.explain import Change, Explanation, Knee
from paceline.forecast.verdict.remedy import Proposed
from paceline.forecast.wording import bottleneck, labels, rows, terms
from paceline.forecast.wording import verdict as verdicts
from paceline.forecast.wording.verdict import Answer

_OF_ONE = (
    *(Measure.COMPUTE, Measure.HOST_LINK, Measure.CPU_STEP, Measure.DRIVE),
    *(Measure.LESS_OFFLOADED, Measure.FUSED_STEP),
)
"""Changes that concern one GPU."""


def answer(of: Explanation, proposed: Proposed | None = None) -> Answer:
    """Return what bounds the forecast, how far it scales, and the changes that gain nothing."""
    result = of.result
    bound = "takes no time" if of.bound is None else bottleneck.headline(of.bound)
    before = [
        Fact("Throughput" if result.compute_s > 0 else "Time", verdicts.figures(result), *_beside(of)),
        *_range(of),
        *(
            []
            if of.bound is None or bottleneck.is_said(of.bound)
            else [bottleneck.fact(of.bound, of.group.noun, of.scenario.workload)]
        ),
    ]
    setup = Fact("Setup", *rows.setup(result, of.scenario.workload, of.group.noun))
    helps = verdicts.of_pipeline(of.details.bubble)
    more = [Fact("Would help", *helps)] if helps else []
    after = [*verdicts.details(of.details), *more, *_without_gain(of), *_staggering(result), setup]
    remarks = verdicts.notes(of.details)
    return verdicts.framed(
        of.group, result, of.groups, bound, before=before, after=after, remarks=remarks, in_full=True, proposed=proposed
    )


def _bottleneck(of: Explanation) -> list[Fact]:
    if of.bound is None or bottleneck.is_said(of.bound):
        return []
    return [bottleneck.fact(of.bound, of.group.noun, of.scenario.workload)]


def further(of: Explanation) -> list[Fact]:
    """Return the facts that the verdict on the same forecast lacks."""
    return [*_range(of), *_without_gain(of)]


def _range(of: Explanation) -> list[Fact]:
    """Return how far it scales, and the range of the forecast with its basis."""
    result = of.result
    is_likely = rows.is_forecast(result)
    likely = [Fact("Likely", rows.interval(result), *rows.interval_basis(result))] if is_likely else []
    return [Fact("Scales to", *_scales_to(of.knee, _noun(of))), *_servers(result.server_shares), *likely]


def _servers(shares: Sequence[float]) -> list[Fact]:
    """Return how evenly servers are loaded, if there are several."""
    if len(shares) < 2:
        return []
    most, least = (units.percent(share) for share in (max(shares), min(shares)))
    return [Fact("Servers", f"the most loaded has {most} of the bytes, the least {least}")]


def _noun(of: Explanation) -> str:
    """Return what adds to the samples: `GPU`, or `DP rank` where one is several GPUs."""
    has_groups = of.scenario.workload is not None and of.scenario.workload.gpus > 1
    return "DP rank" if has_groups else of.group.noun


def _beside(of: Explanation) -> list[str]:
    """Return the scaling, with the time of an iteration if the figures lack it."""
    return [
        value
        for fact in verdicts.times(of.result, of.scenario.workload)
        for value in fact.values
        if isinstance(value, str)
    ]


def _scales_to(knee: Knee, noun: str) -> list[str]:
    if not knee.computes:
        return ["any number: nothing is computed"]
    if knee.workers is None:
        return [f"{units.count(knee.tried, noun)} (most tried): each added one brings >50% of a lone one"]
    return [
        f"{units.count(knee.workers, noun)}: beyond, each added one brings <50% of a lone one",
        f"at {knee.tried:,}: {_bound_at(knee)}",
    ]


def _bound_at(knee: Knee) -> str:
    if not knee.computes:
        return "nothing is computed"
    if knee.bound is None:
        return "nothing to do"
    why = bottleneck.kind(knee.bound)
    return why if knee.best is None else f"{why} ({bottleneck.gain(knee.best)})"


def _changes(of: Explanation) -> Sequence[Change]:
    """Return the changes that concern it: of one GPU, those of its computation and its host."""
    if not rows.is_alone(of.result):
        return of.changes
    return [one for one in of.changes if one.measure in _OF_ONE]


def _without_gain(of: Explanation) -> list[Fact]:
    """Return the changes that gain nothing, with what they take, and those that were not tried, with the reason."""
    slower: list[Pair] = []
    others: list[str] = []
    for one in _changes(of):
        if one.iteration_s is not None or one.about is None:
            continue
        if one.about.remark is Remark.SLOWER:
            slower.append((units.duration(one.about.seconds), _slower(one)))
        else:
            others.append(f"{terms.measure(one.measure, one.links)}: {terms.remark(one.about)}")
    return [
        *([Fact("No gain", *slower)] if slower else []),
        *([Fact("Not tried", *others)] if others else []),
    ]


def _staggering(result: Result) -> list[Fact]:
    """Return how far apart backward passes begin, and what comes before and after them with parameter servers."""
    known = result.staggering
    if known is None or result.workers == 1 or not (result.servers or known.backward.spread_s):
        return []
    begin = known.backward
    words = [
        f"backward passes begin within {units.duration(begin.spread_s)}: the first after "
        f"{units.duration(begin.min_s)}, half by {units.duration(begin.median_s)}"
    ]
    if known.pull is not None:
        words.append(
            f"last parameters arrive within {units.duration(known.pull.spread_s)}, last gradients are ready "
            f"within {units.duration(known.push.spread_s)}"
        )
    return [Fact("Staggering", *words)]


def _slower(one: Change) -> str:
    """Return what would take longer, by its option or with what it needs."""
    name, about = terms.measure(one.measure, one.links), one.about
    assert about is not None
    if one.measure is Measure.BUCKET_SIZE:
        return f"--bucket-size {terms.bucket_size(about.size)}"
    if one.measure is Measure.STRATEGY:
        return f"--strategy {about.strategy}"
    return f"{about.strategy} ({name})" if about.strategy else name


def change(one: Change) -> str:
    """Return what a change is called, by its option if it has one, and what else is to be said of it."""
    name, about = terms.measure(one.measure, one.links), one.about
    if about is None:
        return name
    if one.measure is Measure.BUCKET_SIZE and about.remark is Remark.BUCKETS:
        return f"--bucket-size {terms.bucket_size(about.size)} ({units.count(about.count, 'bucket')})"
    if one.measure in (Measure.LESS_OFFLOADED, Measure.FUSED_STEP):
        return about.strategy
    if about.remark is Remark.BY:
        return f"--strategy {about.strategy}" if one.measure is Measure.STRATEGY else f"{about.strategy} ({name})"
    return f"{name}, {terms.remark(about)}"


def table(of: Explanation) -> list[str]:
    """Return the changes that gain something, the largest gain first."""
    known = [(one, one.iteration_s, one.gain) for one in _changes(of) if one.iteration_s is not None]
    if not known:
        return []
    time = units.time_unit(seconds for _, seconds, _ in known)
    cells = [
        [change(one), units.in_unit(seconds, time), "-" if gain is None else units.factor(gain)]
        for one, seconds, gain in known
    ]
    columns = [Column("what if", left=True), Column(f"iter {time[1]}"), Column("gain")]
    return render(columns, [cells])


def lines(of: Explanation, proposed: Proposed | None = None) -> list[str]:
    """Return the answer and the table of changes, for people; `proposed`: what was tried where it does not fit."""
    changes = table(of)
    return [*answer(of, proposed).lines(), *([""] if changes else []), *changes]


def to_dict(of: Explanation) -> dict[str, Any]:
    """Return it as `--json` prints it."""
    result, own, knee = of.result, of.result.sharded, of.knee
    return {
        "strategy": result.strategy,
        **({} if own is None else {"sharding": own.sharding}),
        "workers": result.workers,
        "iteration_s": result.iteration_s,
        "bound": "" if of.bound is None else bottleneck.bound(of.bound),
        "knee": {"workers": knee.workers, "tried": knee.tried, "bound": _bound_at(knee)},
        "changes": [
            {
                "what": labels.measure(one.measure, one.links),
                "iteration_s": one.iteration_s,
                "gain": one.gain,
                "note": terms.remark(one.about),
            }
            for one in of.changes
        ],
        "interval": None if result.interval is None else vars(result.interval),
        "evidence": result.evidence,
    }
