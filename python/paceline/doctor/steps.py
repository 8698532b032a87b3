"""The beginning and end of a rank's steps, and the script's activities in each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.doctor.intervals import Interval, Intervals, clip, overlap, union, without
from paceline.doctor.timeline_model import Block, Rank, Span


@dataclass(frozen=True, slots=True)
class Marked:
    """Activities of the script in one step; every moment of the step belongs to one of them."""

    step: Interval
    input: Intervals
    forward: Intervals
    backward: Intervals
    optimizer: Intervals
    wait: Intervals
    other: Intervals
    blocks: list[tuple[Interval, Block]] = field(default_factory=list)
    """Waits for collectives of blocks, which are not in `wait`, in order."""

    @property
    def computing(self) -> tuple[tuple[str, Intervals], ...]:
        """All activities except waiting, by name."""
        named = ("input", "forward", "backward", "optimizer", "other")
        return tuple((name, getattr(self, name)) for name in named)


def steps_of(rank: Rank) -> list[Interval]:
    """Return the steps: each ends with the last optimizer mark before a forward pass, where the next one begins.

    Several optimizers may thus belong to one step. The rest after the last step is not a step.
    """
    forwards = [span.begin for span in rank.marks["forward"]]
    ends: list[int] = []
    for span in rank.marks["optimizer"]:
        same = ends and forwards and bisect_left(forwards, ends[-1]) == bisect_left(forwards, span.begin)
        if same:
            ends[-1] = max(ends[-1], span.end)
        else:
            ends.append(span.end)
    if not ends:
        return []
    first = min(spans[0].begin for spans in rank.marks.values() if spans)
    begins = [first, *ends[:-1]]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]


def marked(rank: Rank, step: Interval) -> Marked:
    """Divide a step among the marks in it. Where they overlap, waiting comes first, then optimizer, forward, input.

    Between its first forward pass and its end, unmarked time is backward: the gradients of an earlier part of the
    batch, or the script's own work before the optimizer.
    """
    inside = {name: _spans_within(spans, step) for name, spans in rank.marks.items()}
    named = [(span, Block.of(span.name)) for span in inside["wait"]]
    inside["wait"] = [span for span, block in named if block is None]
    clipped = {name: _clipped(spans, step) for name, spans in inside.items()}
    blocks = [(interval, block) for span, block in named if block is not None for interval in _clipped([span], step)]
    taken: Intervals = union(interval for interval, _ in blocks)
    own: dict[str, Intervals] = {}
    for name in ("wait", "optimizer", "forward", "input"):
        own[name] = without(clipped[name], taken)
        taken = union([*taken, *own[name]])
    rest = without([step], taken)
    if clipped["forward"]:
        since = clipped["forward"][0][0]
        backward, other = clip(rest, since, step[1]), clip(rest, step[0], since)
    else:
        backward = overlap(rest, clipped["backward"])
        other = without(rest, backward)
    return Marked(step, own["input"], own["forward"], backward, own["optimizer"], own["wait"], other, blocks)


def _spans_within(spans: Sequence[Span], step: Interval) -> Sequence[Span]:
    """Return the spans of a step in order; a span inside an earlier one follows it."""
    first = bisect_left(spans, step[0], key=lambda span: span.begin)
    if first and spans[first - 1].end > step[0]:
        first -= 1
    last = bisect_left(spans, step[1], key=lambda span: span.begin)
    return spans[first:last]


def _clipped(spans: Sequence[Span], step: Interval) -> Intervals:
    return union(clip(((span.begin, span.end) for span in spans), *step))
