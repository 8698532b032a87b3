"""Breaks down a recording into the steps of each rank, and their means for tables and diagnoses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from paceline.doctor.events import RECORD
from paceline.doctor.intervals import Interval
from paceline.doctor.step_breakdown import Parts, StepBreakdown, break_down, mean, median, quantile
from paceline.doctor.steps import Marked, marked, steps_of
from paceline.doctor.timeline_model import Rank, Recording
from paceline.doctor.transfers import Transfer, match, transfers_of
from paceline.errors import InvalidArgumentError

_WARM_UP = 3
"""Most warm-up steps to leave out: they allocate memory, and DDP rebuilds its buckets after the first step."""
_SLOW, _SLOW_SHARE = 3.0, 0.1
"""A step longer than this many medians is slow. Slow steps up to this share of all are analyzed separately."""


class Interface(Enum):
    """How a script synchronizes gradients."""

    HOROVOD = "hvd.DistributedOptimizer"
    DDP = "DistributedDataParallel"
    SERVERS = "hvd.DistributedOptimizer whose servers apply each gradient (async-ps)"
    PLAIN = "operations on arrays"


@dataclass(frozen=True, slots=True)
class Analysis:
    """The breakdown of a run."""

    recording: Recording
    has_steps: bool
    """Whether the script marks its steps; otherwise the recording counts as one step."""
    warm_up: int
    """Number of warm-up steps that are left out."""
    breakdowns: dict[int, list[StepBreakdown]]
    """Typical steps by rank, the same ones on all ranks."""
    slow: dict[int, list[StepBreakdown]]
    """The few slow steps by rank."""
    means: dict[int, Parts]
    """Mean parts of a step by rank, in nanoseconds."""
    notes: list[str]

    @property
    def ranks(self) -> list[int]:
        """Ranks that were recorded and have steps."""
        return list(self.breakdowns)

    @property
    def count(self) -> int:
        """Number of typical steps."""
        return len(next(iter(self.breakdowns.values())))

    @property
    def interface(self) -> Interface:
        """The interface, which decides the wording of remedies: that of most bytes.

        Only tensors that ranks agree on by name, as by Horovod's calls, are recorded as such.
        """
        if self.recording.is_asynchronous:
            return Interface.SERVERS
        named = total = 0
        for rank in self.recording.ranks:
            numbers = {tensor.operation for tensor in rank.tensors}
            total += sum(one.size for one in rank.operations)
            named += sum(one.size for one in rank.operations if one.number in numbers)
        if 2 * named > total or (not total and any(rank.tensors for rank in self.recording.ranks)):
            return Interface.HOROVOD
        return Interface.DDP if self.has_steps else Interface.PLAIN

    @property
    def mean(self) -> Parts:
        """Mean over ranks and typical steps."""
        return mean(list(self.means.values()))

    @property
    def durations(self) -> list[float]:
        """Durations of typical steps, each the mean over ranks, in nanoseconds."""
        return _durations(self.breakdowns)

    def breakdowns_of(self, index: int) -> dict[int, StepBreakdown]:
        """Return one typical step on all ranks."""
        return {rank: breakdowns[index] for rank, breakdowns in self.breakdowns.items()}

    @property
    def susceptible(self) -> dict[int, float]:
        """Mean time of a step in which lateness of a coordinator does most harm, in nanoseconds, by rank.

        Only ranks whose input pipeline was watched are in it.
        """
        shares: dict[int, float] = {}
        for rank, breakdowns in self.breakdowns.items():
            known = [one.susceptible for one in breakdowns if one.susceptible is not None]
            if known:
                shares[rank] = sum(known) / len(known)
        return shares

    def spread(self) -> tuple[float, float, float]:
        """Return median and quartiles of the step, in nanoseconds."""
        durations = self.durations
        return median(durations), quantile(durations, 0.25), quantile(durations, 0.75)


def analyze(recording: Recording) -> Analysis:
    """Break down a recording. Raises InvalidArgumentError if nothing happened in it."""
    notes = list(recording.notes)
    steps = {rank.rank: marks for rank in recording.ranks if (marks := steps_of(rank))}
    if not steps:
        return _as_one(recording, notes)
    bare = [str(rank.rank) for rank in recording.ranks if rank.rank not in steps]
    if bare:
        notes.append(f"rank{'s'[: len(bare) != 1]} {', '.join(bare[:8])} marked no steps and are ignored")
    fewest, most = min(map(len, steps.values())), max(map(len, steps.values()))
    if fewest != most:
        notes.append(f"ranks have between {fewest} and {most} steps; only the first {fewest} are analyzed")
    warm_up = min(_WARM_UP, max(1, fewest // 4)) if fewest > 1 else 0
    if fewest == 1:
        notes.append("there is only one step, which includes one-off work; record more")
    every = _breakdowns([rank for rank in recording.ranks if rank.rank in steps], steps, warm_up, fewest)
    if recording.is_asynchronous:
        if not recording.staleness:
            notes.append(
                "the servers of async-ps are not in this file, and they know how stale gradients were: print "
                "optimizer.staleness()"
            )
    elif not _together(every):
        notes.append("steps with the same number do not overlap on all ranks: do these ranks train together?")
    durations = _durations(every)
    usual = median(durations)
    slow = [index for index, duration in enumerate(durations) if duration > _SLOW * usual]
    if len(slow) > max(1, _SLOW_SHARE * len(durations)):
        slow = []
    typical = [index for index in range(len(durations)) if index not in set(slow)]
    return _analysis(
        recording,
        {rank: [breakdowns[index] for index in typical] for rank, breakdowns in every.items()},
        {rank: [breakdowns[index] for index in slow] for rank, breakdowns in every.items()},
        warm_up,
        notes,
    )


def _analysis(
    recording: Recording,
    typical: dict[int, list[StepBreakdown]],
    slow: dict[int, list[StepBreakdown]],
    warm_up: int | None,
    notes: list[str],
) -> Analysis:
    means = {rank: mean([breakdown.parts for breakdown in breakdowns]) for rank, breakdowns in typical.items()}
    return Analysis(recording, warm_up is not None, warm_up or 0, typical, slow, means, notes)


def _breakdowns(
    ranks: Sequence[Rank], steps: dict[int, list[Interval]], warm_up: int, count: int
) -> dict[int, list[StepBreakdown]]:
    sorted_in = {rank.rank: _by_step(transfers_of(rank), steps[rank.rank]) for rank in ranks}
    breakdowns: dict[int, list[StepBreakdown]] = {rank.rank: [] for rank in ranks}
    for index in range(warm_up, count):
        transfers = {rank.rank: sorted_in[rank.rank][index] for rank in ranks}
        match(transfers)
        for rank in ranks:
            here = steps[rank.rank][index]
            pipeline = rank.pipeline_within(here)
            breakdowns[rank.rank].append(break_down(marked(rank, here), transfers[rank.rank], pipeline=pipeline))
    return breakdowns


def _by_step(transfers: Sequence[Transfer], steps: Sequence[Interval]) -> list[list[Transfer]]:
    ends = [end for _, end in steps]
    by_step: list[list[Transfer]] = [[] for _ in steps]
    for transfer in transfers:
        index = bisect_right(ends, transfer.ready)
        if index < len(steps) and transfer.ready >= steps[index][0]:
            by_step[index].append(transfer)
    return by_step


def _durations(breakdowns: dict[int, list[StepBreakdown]]) -> list[float]:
    columns = zip(*breakdowns.values(), strict=True)
    return [sum(one.end - one.begin for one in column) / len(column) for column in columns]


def _together(breakdowns: dict[int, list[StepBreakdown]]) -> bool:
    columns = [list(column) for column in zip(*breakdowns.values(), strict=True)]
    apart = [max(one.begin for one in column) >= min(one.end for one in column) for column in columns]
    return 2 * apart.count(True) <= len(apart)


def _as_one(recording: Recording, notes: list[str]) -> Analysis:
    """Treat a recording without steps as one: from the first operation to the end of the last one."""
    transfers = {rank.rank: own for rank in recording.ranks if (own := transfers_of(rank))}
    match(transfers)
    breakdowns = {}
    for rank, own in transfers.items():
        whole = own[0].ready, max(it.end for it in own)
        if whole[0] < whole[1]:
            nothing = Marked(whole, [], [], [], [], [], [whole])
            breakdowns[rank] = [break_down(nothing, own, steps=False)]
    if not breakdowns:
        raise InvalidArgumentError(f"{recording.path}: contains neither a step nor an operation", remedy=RECORD)
    notes.append(
        "it contains no complete step (torch's optimizers mark them), so it is analyzed as one interval from the first "
        "operation to the last; steps, computation and overlap are unknown, and every operation counts as waited for"
    )
    return _analysis(recording, breakdowns, {rank: [] for rank in breakdowns}, None, notes)
