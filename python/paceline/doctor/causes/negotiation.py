"""All ranks are ready, and nothing moves: coordinators still agree."""

from __future__ import annotations

from paceline import human
from paceline.doctor.analysis import Analysis
from paceline.doctor.diagnosis import Diagnosis, nanoseconds, percent
from paceline.doctor.intervals import Intervals, length, overlap, union, without
from paceline.doctor.parts import median

_LATE, _SLEEP, _REPORT = "late wake-up", "sleep", "report"


def diagnose(analysis: Analysis) -> Diagnosis | None:
    """What agreement costs where nothing hides it, and what the coordinators did in that time."""
    lost = analysis.mean.negotiation
    if not lost:
        return None
    late, asleep, reporting = (_on_any_rank(analysis, what) for what in (_LATE, _SLEEP, _REPORT))
    in_late = in_sleep = in_report = 0
    for accounts in analysis.accounts.values():
        idle = union(one for account in accounts for wait in account.waits for one in wait.idle)
        in_late += length(overlap(idle, late))
        awake = without(idle, late)
        in_sleep += length(overlap(awake, asleep))
        in_report += length(overlap(without(awake, asleep), reporting))
    steps = sum(len(accounts) for accounts in analysis.accounts.values())
    causes = {_LATE: in_late / steps, _SLEEP: in_sleep / steps, _REPORT: in_report / steps}
    main = max(causes, key=lambda what: causes[what])
    if causes[main] < lost / 3:
        main = "votes"
    late_spans = _counted(analysis, _LATE)
    votes = sum(_within(analysis, rank.rank, [vote.begin for vote in rank.votes]) for rank in analysis.recording.ranks)
    sleeps = [end - begin for begin, end in _counted(analysis, _SLEEP)]
    longest = max((end - begin for begin, end in late_spans), default=0)
    per = " a step" if analysis.has_steps else " in all"
    return Diagnosis(
        name="negotiation",
        seconds=lost / 1e9,
        share=lost / analysis.mean.step,
        headline="agreeing on what is ready",
        says=f"for {nanoseconds(lost)}{per} all ranks are ready, nothing moves, and coordinators agree: "
        f"{human.short(votes / steps)} operations of theirs{per}; {_words(main, causes.get(main, 0), lost, longest)}",
        evidence={
            "cause": main,
            "coordinator_operations_per_step": votes / steps,
            "late_wake_ups": len(late_spans),
            "late_wake_up_longest_s": longest / 1e9,
            "late_wake_up_s": causes[_LATE] / 1e9,
            "sleep_s": causes[_SLEEP] / 1e9,
            "sleep_median_s": median(sleeps) / 1e9 if sleeps else 0.0,
            "report_s": causes[_REPORT] / 1e9,
            "spun_s": sum(rank.spun for rank in analysis.recording.ranks) / 1e9,
        },
        tries=_remedies(main),
    )


def _on_any_rank(analysis: Analysis, what: str) -> Intervals:
    """A vote ends with the last rank: what one coordinator does, all wait for."""
    return union((span.begin, span.end) for rank in analysis.recording.ranks for span in rank.coordinator.get(what, ()))


def _counted(analysis: Analysis, what: str) -> Intervals:
    """Spans within typical steps."""
    found: Intervals = []
    for rank in analysis.recording.ranks:
        spans = union((span.begin, span.end) for span in rank.coordinator.get(what, ()))
        found += overlap(spans, _steps(analysis, rank.rank))
    return found


def _steps(analysis: Analysis, rank: int) -> Intervals:
    return [(account.begin, account.end) for account in analysis.accounts.get(rank, ())]


def _within(analysis: Analysis, rank: int, moments: list[int]) -> int:
    return len(overlap([(at, at + 1) for at in sorted(set(moments))], _steps(analysis, rank)))


def _words(main: str, spent: float, lost: float, longest: float) -> str:
    share = percent(min(1.0, spent / lost))
    return {
        # S. Pumma et al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning".
        _LATE: f"{share} of it as the system woke a coordinator late (oversleep, at worst {nanoseconds(longest)}): "
        "all others waited for its vote",
        _SLEEP: f"{share} of it a coordinator sleeps, to collect what becomes ready within a cycle",
        _REPORT: f"{share} of it ranks tell each other of tensors that they have not agreed on before",
        "votes": "most of it voting",
    }[main]


def _remedies(main: str) -> list[str]:
    plan = "--coordinator graph, if it was another one: gradients that come in each step are planned, not agreed on"
    general = "let fewer things be agreed on: DistributedOptimizer(groups=…), backward_passes_per_step=2"
    cores = (
        "leave the coordinator a core: OMP_NUM_THREADS one lower, fewer DataLoader workers, or "
        "HOROVOD_THREAD_AFFINITY with a core of its own for each local rank"
    )
    shorter = "HOROVOD_CYCLE_TIME lower than it was (milliseconds; default 1)"
    return {
        _LATE: [plan, cores, general],
        _SLEEP: [plan, shorter, general],
        _REPORT: ["give tensors the same names in every step; HOROVOD_CACHE_CAPACITY above the number of tensors"],
        "votes": [plan, shorter, general, cores],
    }[main]
