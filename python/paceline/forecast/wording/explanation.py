"""What `paceline simulate --explain` says, as sentences, as lines for people, and as `--json` has it."""

from __future__ import annotations

from typing import Any

from paceline._internal import units
from paceline._internal.console import Column, render, wrapped
from paceline.forecast.verdict.explain import Change, Explanation, Knee
from paceline.forecast.wording import bottleneck, labels, rows, terms
from paceline.forecast.wording import verdict as verdicts


def change(one: Change) -> str:
    """Return what a change is called."""
    return terms.measure(one.measure, one.links)


def subject(of: Explanation) -> str:
    """Return the row that it is about: `ring with 16 workers (vgg-16, 10 Gbit/s)`."""
    result, workload = of.result, of.scenario.workload
    with_ = "on" if _has_groups(of) or result.sharded is not None else "with"
    name = rows.named(result, of.group) if result.sharded is not None else result.strategy
    return f"{name} {with_} {rows.ranks(result, workload)}{_row(of)}"


def _has_groups(of: Explanation) -> bool:
    """Whether a data-parallel rank is several GPUs."""
    return of.scenario.workload is not None and of.scenario.workload.gpus > 1


def _row(of: Explanation) -> str:
    """Return ` (vgg-16, 10 Gbit/s)`: what varies between groups besides workers."""
    result, firsts = of.result, [group.results[0] for group in of.groups]
    words = [
        shown
        for name, shown in (
            ("trace", result.trace),
            ("bandwidth_bps", units.rate(result.bandwidth_bps)),
            ("latency_s", f"latency {units.duration(result.latency_s)}"),
            ("compute_speedup", f"compute speedup {result.compute_speedup:g}"),
        )
        if rows.varies([getattr(one, name) for one in firsts])
    ]
    return f" ({', '.join(words)})" if words else ""


def sentences(of: Explanation) -> list[str]:
    """Return what dominates, the knee, and the possible error; the changes go between the last two."""
    about = subject(of)
    dominated = f"{about} takes no time." if of.bound is None else f"{about}: {bottleneck.bound(of.bound)}."
    worker = "data-parallel rank" if _has_groups(of) else "worker"
    return [dominated, _knee_in_words(of.knee, worker), f"Likely: {rows.interval(of.result)}."]


def text(of: Explanation, width: int) -> list[str]:
    """Return lines for people."""
    dominated, knee, likely = sentences(of)
    details = [fact.sentence for fact in verdicts.details(of.details)]
    *before, after = [wrapped(sentence, width) for sentence in (dominated, *details, knee, likely)]
    lines = [line for paragraph in before for line in paragraph]
    columns = [Column("what if", left=True), Column("iteration"), Column("times\nfaster"), Column("", left=True)]
    cells = [
        [
            change(one),
            "-" if one.iteration_s is None else units.duration(one.iteration_s),
            "-" if one.gain is None else units.digits(one.gain, 3),
            terms.remark(one.about),
        ]
        for one in of.changes
    ]
    return [*lines, "", *render(columns, [cells], highlight_first=False), "", *after]


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


def _bound_at(knee: Knee) -> str:
    if not knee.computes:
        return "nothing is computed"
    if knee.bound is None:
        return "nothing to do"
    why, best = bottleneck.bound(knee.bound), knee.best
    return why if best is None else f"{why}: {bottleneck.gain(best)}"


def _knee_in_words(knee: Knee, worker: str) -> str:
    if not knee.computes:
        return "Nothing is computed, so adding workers never stops paying off."
    if knee.workers is None:
        return (
            f"Up to {units.count(knee.tried, worker)}, the most that were tried, each further one adds more than half "
            "of the samples/s of one alone."
        )
    verb = " it is" if knee.bound is not None and knee.bound.is_known else ""
    return (
        f"From {units.count(knee.workers, worker)} on, each further one adds less than half of the samples/s of one "
        f"alone: with twice as many, {knee.tried},{verb} {_bound_at(knee)}."
    )
