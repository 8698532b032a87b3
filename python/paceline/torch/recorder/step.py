"""From the marks of one step to its durations. Pure functions: the tests own the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from paceline.torch.recorder.modules import ModuleTable


class Kind(IntEnum):
    """What happened at a mark."""

    STEP_START = 0
    """The previous step's end, where it was seen."""
    FORWARD_START = 1
    """`key` is the batch, 0 if it could not be told."""
    CALL = 2
    """`key` is the module."""
    FORWARD_END = 3
    BACKWARD_START = 4
    GRADIENT = 5
    """`key` is the parameter."""
    BACKWARD_END = 6
    OPTIMIZER_END = 7
    OPTIMIZER_START = 8
    """Of one rank of several: a step of the optimizer begins; of steps inside of each other, each."""
    EXCHANGED = 9
    """Of one rank of several: others that exchange gradients are through with what the mark before this is of."""
    WRAPPER_START = 10
    """Of one rank of several: what is around the model was called; it may exchange something first."""


class Event(NamedTuple):
    """One mark of a step, its time in seconds since the step's first mark."""

    kind: Kind
    key: int
    at_s: float


@dataclass(frozen=True)
class StepTimes:
    """One step taken apart; times in seconds."""

    layers: tuple[int, ...]
    """The modules that ran as layers in the last pass, in order."""
    layer_s: tuple[float, ...]
    accumulation_s: float
    """Passes before the last one (gradient accumulation)."""
    loss_s: float
    ready_s: dict[int, float]
    """Per parameter with a gradient, since the start of the last pass's backward."""
    backward_s: float
    optimizer_s: float
    """From the end of the backward to the end of the optimizer's step: clipping and unscaling are in it."""
    input_s: float | None
    """From the end of the previous step to the first forward."""
    passes: int
    batch: int
    """Samples over all passes; 0 if it could not be told."""
    saw_backward_start: bool
    exchange_s: float = 0.0
    """Of one rank of several, what was cut out of the step (`paceline.torch.recorder.communication_hooks`)."""

    @property
    def total_s(self) -> float:
        """The whole step, with what lies before the forward where that was seen."""
        compute = sum(self.layer_s) + self.accumulation_s + self.loss_s + self.backward_s + self.optimizer_s
        return compute + self.exchange_s + (self.input_s or 0.0)

    @property
    def shape(self) -> tuple[tuple[int, ...], int, frozenset[int]]:
        """What must agree between steps before a median over them means anything."""
        return self.layers, self.passes, frozenset(self.ready_s)


def take_apart(events: Sequence[Event], table: ModuleTable) -> StepTimes | None:
    """Take one step apart; None if it made no gradient, since then there is nothing to synchronise."""
    passes = _passes(_without_foreign_backwards(events))
    while passes and not _of(passes[-1], Kind.GRADIENT):
        passes.pop()  # a forward after the last backward: time of the optimizer's part
    if not passes:
        return None
    last = passes[-1]
    step_start = next((e.at_s for e in events if e.kind is Kind.STEP_START), None)
    end = events[-1].at_s

    gradients = _of(last, Kind.GRADIENT)
    begins = _of(last, Kind.BACKWARD_START)
    first_gradient = last.index(gradients[0])
    forward = last[: last.index(begins[0])] if begins else last[:first_gradient]
    starts = _of(forward, Kind.FORWARD_START)
    forward_ends = _of(forward, Kind.FORWARD_END)
    backward_start = next(e.at_s for e in (*begins, *reversed(forward_ends), gradients[0]))
    # No call seen at all (the model is compiled in a way that hides it): the forward began when the last step ended.
    forward_start = starts[0].at_s if starts else (step_start if step_start is not None else events[0].at_s)
    calls = _of(forward, Kind.CALL)
    # A child called by itself after the model's own forward has no end that a hook sees; then the loss is its time too.
    ended = bool(forward_ends) and (not calls or forward.index(forward_ends[-1]) > forward.index(calls[-1]))
    forward_end = forward_ends[-1].at_s if ended else backward_start

    following: list[int | None] = [*(c.key for c in calls[1:]), None]
    layers = [c for c, after in zip(calls, following, strict=True) if table.is_layer(c.key, after)]
    edges = [forward_start, *(c.at_s for c in layers[1:]), forward_end]
    modules = tuple(c.key for c in layers) or (0,)

    ready = dict.fromkeys((e.key for p in passes[:-1] for e in _of(p, Kind.GRADIENT)), 0.0)
    ready |= {e.key: max(0.0, e.at_s - backward_start) for e in gradients}
    ends = _of(last, Kind.BACKWARD_END)
    backward_end = max([gradients[-1].at_s, *(e.at_s for e in ends)])
    first_start = next((e.at_s for e in passes[0] if e.kind is Kind.FORWARD_START), forward_start)
    batches = [next((e.key for e in p if e.kind is Kind.FORWARD_START), 0) for p in passes]
    return StepTimes(
        layers=modules,
        layer_s=tuple(max(0.0, b - a) for a, b in pairwise(edges)),
        accumulation_s=forward_start - first_start,
        loss_s=max(0.0, backward_start - forward_end),
        ready_s=ready,
        backward_s=backward_end - backward_start,
        optimizer_s=max(0.0, end - backward_end),
        input_s=None if step_start is None or not starts else first_start - step_start,
        passes=len(passes),
        batch=sum(batches) if all(batches) else 0,
        saw_backward_start=bool(begins),
    )


def _of(events: Sequence[Event], kind: Kind) -> list[Event]:
    return [e for e in events if e.kind is kind]


def _without_foreign_backwards(events: Sequence[Event]) -> list[Event]:
    """Drop backward passes that made none of our gradients: those of another model in the same process."""
    kept: list[Event] = []
    open_at: int | None = None
    for event in events:
        if event.kind is Kind.BACKWARD_START:
            open_at = len(kept)
        elif event.kind is Kind.BACKWARD_END and open_at is not None:
            if not any(e.kind is Kind.GRADIENT for e in kept[open_at:]):
                del kept[open_at]
                open_at = None
                continue
            open_at = None
        kept.append(event)
    return kept


def _passes(events: Sequence[Event]) -> list[list[Event]]:
    """Cut a step where a forward follows a backward."""
    passes: list[list[Event]] = [[]]
    went_back = False
    for event in events:
        if event.kind is Kind.FORWARD_START and went_back:
            passes.append([])
            went_back = False
        went_back = went_back or event.kind in (Kind.BACKWARD_START, Kind.GRADIENT)
        passes[-1].append(event)
    return passes
