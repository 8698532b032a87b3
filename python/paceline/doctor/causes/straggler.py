"""Ranks wait for the slowest one: always the same, or each in turn."""

from __future__ import annotations

from collections import Counter

from paceline.doctor.account import Account
from paceline.doctor.analysis import Analysis
from paceline.doctor.diagnosis import Diagnosis, Figure, nanoseconds, percent
from paceline.doctor.parts import Parts, median
from paceline.doctor.remedies import less_often

_PERSISTENT = 0.75
"""Share of all waiting of which one rank is the cause; of two ranks that take turns each causes half."""
_NOTEWORTHY = 0.01
"""Share of a step: ranks that differ by less are as fast."""
_COMPUTING = ("input", "forward", "backward", "optimizer")
_WORDS = {"input": "input pipeline", "forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer"}


def diagnose(analysis: Analysis) -> Diagnosis | None:
    """What waiting for the slowest rank costs: the mean of what the other ranks wait, in a mean step."""
    ranks = analysis.ranks
    if len(ranks) < 2:
        return None
    blamed = [_blamed(analysis.accounts_of(index)) for index in range(analysis.count)]
    total = sum(blamed, Counter[int]())
    waited = sum(total.values())
    lost = waited / analysis.count / (len(ranks) - 1)
    step = analysis.mean.step
    if not total or not lost:
        return None
    noteworthy = [counter for counter in blamed if sum(counter.values()) > _NOTEWORTHY * step * (len(ranks) - 1)]
    slowest, most = min(total.items(), key=lambda item: (-item[1], item[0]))
    last_in = sum(_first(counter) == slowest for counter in noteworthy)
    per = " a step" if analysis.has_steps else " in all"
    evidence: dict[str, Figure] = {
        "rank": slowest,
        "persistent": most / waited >= _PERSISTENT,
        "share_of_waiting": most / waited,
        "steps_last": last_in,
        "steps_waited": len(noteworthy),
        "later_s": lost / 1e9,
    }
    if most / waited < _PERSISTENT:
        return Diagnosis(
            name="straggler",
            seconds=lost / 1e9,
            share=lost / step,
            headline="waiting for whichever rank is last",
            says=f"ranks take turns in being the last, and the others wait {nanoseconds(lost)}{per} for it; rank "
            f"{slowest} is the cause of {percent(most / waited)} of that: noise, no single slow rank",
            evidence={**evidence, "rank": None, "cause": None, "excess_s": None},
            tries=[
                "give all ranks equal work in each step: batches of equal size, sequences sorted into lengths",
                "leave each rank its own cores: OMP_NUM_THREADS = cores / ranks of the host, fewer DataLoader workers",
                f"{less_often(analysis.interface)}: unequal steps then even out before ranks wait for each other",
            ],
        )
    cause, excess, own, others = _excess(slowest, analysis.means) if analysis.has_steps else (None, 0.0, 0.0, 0.0)
    because = (
        f"; its {_WORDS[cause]} takes {nanoseconds(own)}, that of the others {nanoseconds(others)}" if cause else ""
    )
    when = (
        f"in {last_in} of the {len(noteworthy)} steps in which ranks wait" if analysis.has_steps else "most of the time"
    )
    return Diagnosis(
        name="straggler",
        seconds=lost / 1e9,
        share=lost / step,
        headline=f"waiting for rank {slowest}",
        says=f"rank {slowest} is the last {when}, and the others wait {nanoseconds(lost)}{per} for it{because}",
        evidence={**evidence, "cause": cause, "excess_s": excess / 1e9 if cause else None},
        tries=_remedies(slowest, cause),
    )


def _blamed(accounts: dict[int, Account]) -> Counter[int]:
    """Nanoseconds for which others waited, by the rank that they waited for."""
    found: Counter[int] = Counter()
    for account in accounts.values():
        for wait in account.waits:
            if wait.last is not None:
                found[wait.last] += wait.straggler
    return found


def _first(counter: Counter[int]) -> int:
    return min(counter.items(), key=lambda item: (-item[1], item[0]))[0]


def _excess(slowest: int, means: dict[int, Parts]) -> tuple[str | None, float, float, float]:
    """In what a rank takes longer than the others: the part, by how much, its own time and theirs."""
    best: tuple[str | None, float, float, float] = (None, 0.0, 0.0, 0.0)
    for name in _COMPUTING:
        own = getattr(means[slowest], name)
        others = median(getattr(parts, name) for rank, parts in means.items() if rank != slowest)
        if own - others > best[1]:
            best = (name, own - others, own, others)
    return best


def _remedies(rank: int, cause: str | None) -> list[str]:
    if cause == "input":
        return [
            f"make rank {rank}'s input pipeline as fast as the others': DataLoader(num_workers=…, prefetch_factor=…), "
            "and no work on one rank alone (logging, validation, checkpoints)",
            f"see whether rank {rank} has larger samples, or slower storage",
        ]
    return [
        f"see what else runs on rank {rank}'s machine and cores: top there, OMP_NUM_THREADS, the processor's clock",
        f"see whether rank {rank} has more to compute: larger batches, longer sequences, work that only one rank does",
    ]
