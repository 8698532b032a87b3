"""Breakdown of one step of one rank: its script's activities, and its waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields

from paceline.doctor.intervals import Interval, Intervals, clip, length, overlap, union, without
from paceline.doctor.steps import Marked
from paceline.doctor.timeline_model import Block
from paceline.doctor.transfers import Transfer
from paceline.doctor.waits import Wait, wait_between

_NO_GRADIENT = 1024
"""Bytes; an operation this small that starts after all others have ended is a loss or a norm, not a gradient."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An operation that moved gradients."""

    call: str
    size: int
    """Bytes."""
    duration_ns: int
    """Nanoseconds in which it was sent, without the time shared with operations that ended earlier."""


@dataclass(frozen=True, slots=True)
class Backward:
    """Overlap of gradients with backward, in nanoseconds."""

    computing: int
    """Duration of the backward passes in which gradients became ready."""
    before: int
    """Of that, before the first gradient was ready."""
    held: int
    """Of that, while nothing was sent although gradients were ready on all ranks."""
    hidden: int
    """Of that, while gradients were sent."""


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """The breakdown of one step of one rank."""

    begin: int
    end: int
    parts: Parts
    waits: list[Wait]
    sent: list[Sent]
    moving: int
    """Nanoseconds in which gradients were sent, exposed or hidden."""
    backward: Backward
    passes: int
    """Forward passes: more than one accumulate gradients."""
    susceptible: int | None = None
    """Nanoseconds in which input pipeline and scheduling were at work and no gradient had moved; None: unknown.

    The load-imbalance-susceptible window of S. Pumma et al., "Alleviating Load Imbalance in Data Processing for
    Large-Scale Deep Learning", section V-B.2. Scheduling is at work from the first forward pass on.
    """


def break_down(
    marked: Marked, transfers: Sequence[Transfer], *, steps: bool = True, pipeline: Intervals | None = None
) -> StepBreakdown:
    """Break down a step. `transfers`: those that become ready in it, in order. Without `steps`: a whole recording.

    `pipeline`: when the input pipeline is at work, if that is known.

    Waits marked by the script are exposed communication. Without marks, the wait for gradients lasts from the readiness
    of the last one to the end of the last transfer, and the script is assumed to wait for an operation that begins and
    ends within input, forward or optimizer. Waits for blocks are marked, and their operations are nothing else.
    """
    everything = transfers
    if marked.blocks:
        transfers = [it for it in transfers if Block.of(it.name) is None]
    gradients = _gradients(marked, transfers) if steps else list(transfers)
    if steps:
        waits = [wait_between(*wait, transfers, gradients=_after_forward(marked, wait)) for wait in marked.wait]
        if not any(wait.gradients for wait in waits):
            waits += _unmarked(marked.backward, gradients)
        rest = without(_blocking(marked, transfers, gradients), union((wait.begin, wait.end) for wait in waits))
        waits += [wait_between(*interval, transfers, gradients=False) for interval in rest]
    else:
        busy = union((it.ready, it.end) for it in transfers)
        waits = [wait_between(*interval, transfers, gradients=True) for interval in busy]
    waits += [wait_between(*each, everything, gradients=False, block=block) for each, block in marked.blocks]
    exposed = union((wait.begin, wait.end) for wait in waits)
    own = {name: length(without(intervals, exposed)) for name, intervals in marked.computing}
    own["other"] += sum(wait.rest for wait in waits)
    parts = Parts(
        **own,
        straggler=sum(wait.straggler for wait in waits),
        negotiation=sum(wait.negotiation for wait in waits),
        transfer=sum(wait.transfer for wait in waits),
    )
    moving = union((it.all_begun, it.end) for it in gradients)
    return StepBreakdown(
        begin=marked.step[0],
        end=marked.step[1],
        parts=parts,
        waits=sorted(waits, key=lambda wait: wait.begin),
        sent=_sent(gradients),
        moving=length(moving),
        backward=_backward(without(marked.backward, exposed), gradients, moving),
        passes=_passes(marked) if steps else 1,
        susceptible=None if pipeline is None or not steps else _susceptible(marked, gradients, pipeline),
    )


def _susceptible(marked: Marked, gradients: Sequence[Transfer], pipeline: Intervals) -> int:
    """Return how long the pipeline is at work between the first forward pass and the first gradient's movement."""
    if not marked.forward:
        return 0
    begin = marked.forward[0][0]
    end = min([it.all_begun for it in gradients if it.all_begun >= begin], default=marked.step[1])
    return length(clip(pipeline, begin, min(end, marked.step[1])))


def _passes(marked: Marked) -> int:
    """Count forward passes, each of which may be several spans: a backward pass follows it."""
    spans = sorted([(begin, True) for begin, _ in marked.forward] + [(begin, False) for begin, _ in marked.backward])
    kinds = [is_forward for _, is_forward in spans]
    return max(1, sum(one and (place == 0 or not kinds[place - 1]) for place, one in enumerate(kinds)))


def _after_forward(marked: Marked, wait: Interval) -> bool:
    """Return whether a marked wait is for gradients: after a forward pass, and not within one."""
    ends = [end for _, end in marked.forward]
    return bool(ends) and ends[0] <= wait[0] and not any(begin == wait[1] for begin, _ in marked.forward[1:])


def _gradients(marked: Marked, transfers: Sequence[Transfer]) -> list[Transfer]:
    """Return the transfers that become ready during backward or while waiting for gradients, without later scalars."""
    inside = union([*marked.backward, *(wait for wait in marked.wait if _after_forward(marked, wait))])
    inner = [it for it in transfers if any(begin <= it.ready < end for begin, end in inside)]
    while len(inner) > 1 and inner[-1].size <= _NO_GRADIENT and inner[-1].ready >= max(it.end for it in inner[:-1]):
        inner.pop()
    return inner


def _unmarked(regions: Intervals, gradients: Sequence[Transfer]) -> list[Wait]:
    """Return the waits from the last gradient's readiness on, in every backward pass."""
    waits = []
    for begin, end in regions:
        ready = [it for it in gradients if begin <= it.ready < end]
        if ready:
            since, until = ready[-1].ready, min(end, max(it.end for it in ready))
            if since < until:
                waits.append(wait_between(since, until, gradients, gradients=True))
    return waits


def _blocking(marked: Marked, transfers: Sequence[Transfer], gradients: Sequence[Transfer]) -> Intervals:
    """Return operations that are not gradients, and begin and end within one activity of the script."""
    known = {id(it) for it in gradients}
    others = [it for it in transfers if id(it) not in known]
    inside = [
        (it.ready, it.end)
        for it in others
        for _, intervals in marked.computing
        if any(begin <= it.ready and it.end <= end for begin, end in intervals)
    ]
    return union(inside)


def _sent(gradients: Sequence[Transfer]) -> list[Sent]:
    """Return operations in order of completion; while several move, the time counts for the first to end."""
    together: dict[int, list[Transfer]] = defaultdict(list)
    for it in gradients:
        together[it.operation].append(it)
    ended = sorted(together.values(), key=lambda several: max(it.end for it in several))
    sent, before = [], 0
    for several in ended:
        end, begun = max(it.end for it in several), max(it.all_begun for it in several)
        sent.append(Sent(several[0].call, sum(it.size for it in several), max(0, end - max(begun, before))))
        before = end
    return sent


def _backward(computing: Intervals, gradients: Sequence[Transfer], moving: Intervals) -> Backward:
    passes = [
        (interval, ready)
        for interval in computing
        if (ready := [it.ready for it in gradients if interval[0] <= it.ready <= interval[1]])
    ]
    intervals = [interval for interval, _ in passes]
    waiting = without(union((it.all_ready, it.all_begun) for it in gradients), moving)
    return Backward(
        computing=length(intervals),
        before=sum(min(ready) - interval[0] for interval, ready in passes),
        held=length(overlap(intervals, waiting)),
        hidden=length(overlap(intervals, moving)),
    )


# The parts of a step, or of a mean step: they add up to it.


@dataclass(frozen=True, slots=True)
class Parts:
    """Nanoseconds of computation and the script's own work, then of exposed communication."""

    input: float = 0
    forward: float = 0
    backward: float = 0
    optimizer: float = 0
    other: float = 0
    """Outside all marks, or after the end of the operation waited for."""
    straggler: float = 0
    negotiation: float = 0
    transfer: float = 0

    @property
    def exposed(self) -> float:
        """Waiting for other ranks, agreement and data."""
        return self.straggler + self.negotiation + self.transfer

    @property
    def compute(self) -> float:
        """Time that a faster processor would reduce."""
        return self.forward + self.backward + self.optimizer

    @property
    def step(self) -> float:
        """The whole step."""
        return sum(self.values())

    def values(self) -> tuple[float, ...]:
        """Return the parts in the order of NAMES."""
        return astuple(self)


NAMES = tuple(field.name for field in fields(Parts))


def mean(several: Sequence[Parts]) -> Parts:
    """Return the mean of each part, so that the sum is the mean step."""
    return Parts(*(sum(column) / len(several) for column in zip(*(parts.values() for parts in several), strict=True)))


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value below which this share lies, interpolated between neighbors; 0.5 is the median."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Iterable[float]) -> float:
    """Return the middle value."""
    return quantile(values, 0.5)
