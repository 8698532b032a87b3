"""Converts the marks of a step to durations. Pure functions, so tests control the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from paceline.torch.recorder.modules import ModuleTable


class EventKind(IntEnum):
    """The event at a mark."""

    STEP_START = 0
    """End of the previous step, if known."""
    FORWARD_START = 1
    """`key` is the batch size, 0 if unknown."""
    CALL = 2
    """`key` is the module."""
    FORWARD_END = 3
    BACKWARD_START = 4
    GRADIENT = 5
    """`key` is the parameter."""
    BACKWARD_END = 6
    OPTIMIZER_END = 7
    OPTIMIZER_START = 8
    """One rank of several: an optimizer step begins; nested steps are marked separately."""
    EXCHANGED = 9
    """One rank of several: the hooks that communicate gradients are done with the previous mark's gradient."""
    WRAPPER_START = 10
    """One rank of several: the model's wrapper was called; it may communicate first."""
    COLLECTIVE_START = 11
    """One rank of several: the script calls a collective after the backward pass; `key` is 1 if it may run on."""
    COLLECTIVE_END = 12
    SHARDING_START = 13
    """Sharded: FSDP2 begins to gather or free parameters, or to reduce gradients; such work is not nested."""
    SHARDING_END = 14
    CLIPPING_START = 15
    """Sharded: the script begins to clip gradients."""
    CLIPPING_END = 16


class Event(NamedTuple):
    """One mark of a step, its time in seconds since the step's first mark."""

    kind: EventKind
    key: int
    at_s: float


@dataclass(frozen=True)
class StepTimes:
    """The durations of one step, in seconds."""

    layers: tuple[int, ...]
    """Modules that ran as layers in the last pass, in order."""
    layer_s: tuple[float, ...]
    accumulation_s: float
    """Duration of the passes before the last one (gradient accumulation)."""
    loss_s: float
    ready_s: dict[int, float]
    """Time at which each gradient is ready, since the start of the last pass's backward."""
    backward_s: float
    optimizer_s: float
    """From the end of the backward to the end of the optimizer's step, including clipping and unscaling."""
    input_s: float | None
    """From the end of the previous step to the first forward."""
    passes: int
    batch: int
    """Samples over all passes; 0 if unknown."""
    saw_backward_start: bool
    exchange_s: float = 0.0
    """One rank of several: time cut out of the step (`paceline.torch.recorder.communication_hooks`)."""
    elsewhere_s: float = 0.0
    """Sharded: the part of `optimizer_s` that stands for the shards of other ranks."""

    @property
    def total_s(self) -> float:
        """Duration of the whole step, including the time before the forward if known."""
        compute = sum(self.layer_s) + self.accumulation_s + self.loss_s + self.backward_s + self.optimizer_s
        return compute + self.exchange_s - self.elsewhere_s + (self.input_s or 0.0)

    @property
    def shape(self) -> tuple[tuple[int, ...], int, frozenset[int]]:
        """Properties that steps must share for a median over them to be meaningful."""
        return self.layers, self.passes, frozenset(self.ready_s)


def take_apart(events: Sequence[Event], table: ModuleTable) -> StepTimes | None:
    """Split one step into durations; None if it computed no gradient, and there is nothing to synchronize."""
    passes = _passes(_without_foreign_backwards(events))
    while passes and not _of(passes[-1], EventKind.GRADIENT):
        passes.pop()  # a forward after the last backward counts as optimizer time
    if not passes:
        return None
    last = passes[-1]
    step_start = next((e.at_s for e in events if e.kind is EventKind.STEP_START), None)
    end = events[-1].at_s

    gradients = _of(last, EventKind.GRADIENT)
    begins = _of(last, EventKind.BACKWARD_START)
    first_gradient = last.index(gradients[0])
    forward = last[: last.index(begins[0])] if begins else last[:first_gradient]
    starts = _of(forward, EventKind.FORWARD_START)
    forward_ends = _of(forward, EventKind.FORWARD_END)
    backward_start = next(e.at_s for e in (*begins, *reversed(forward_ends), gradients[0]))
    # Without any call (a compiled model hides them), the forward began when the last step ended.
    forward_start = starts[0].at_s if starts else (step_start if step_start is not None else events[0].at_s)
    calls = _of(forward, EventKind.CALL)
    # A child called directly after the model's forward has no visible end; its time then counts as loss.
    ended = bool(forward_ends) and (not calls or forward.index(forward_ends[-1]) > forward.index(calls[-1]))
    forward_end = forward_ends[-1].at_s if ended else backward_start

    following: list[int | None] = [*(c.key for c in calls[1:]), None]
    layers = [c for c, after in zip(calls, following, strict=True) if table.is_layer(c.key, after)]
    edges = [forward_start, *(c.at_s for c in layers[1:]), forward_end]
    modules = tuple(c.key for c in layers) or (0,)

    ready = dict.fromkeys((e.key for p in passes[:-1] for e in _of(p, EventKind.GRADIENT)), 0.0)
    ready |= {e.key: max(0.0, e.at_s - backward_start) for e in gradients}
    ends = _of(last, EventKind.BACKWARD_END)
    backward_end = max([gradients[-1].at_s, *(e.at_s for e in ends)])
    first_start = next((e.at_s for e in passes[0] if e.kind is EventKind.FORWARD_START), forward_start)
    batches = [next((e.key for e in p if e.kind is EventKind.FORWARD_START), 0) for p in passes]
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


def _of(events: Sequence[Event], kind: EventKind) -> list[Event]:
    return [e for e in events if e.kind is kind]


def _without_foreign_backwards(events: Sequence[Event]) -> list[Event]:
    """Drop backward passes without any of the model's gradients: they belong to another model."""
    kept: list[Event] = []
    open_at: int | None = None
    for event in events:
        if event.kind is EventKind.BACKWARD_START:
            open_at = len(kept)
        elif event.kind is EventKind.BACKWARD_END and open_at is not None:
            if not any(e.kind is EventKind.GRADIENT for e in kept[open_at:]):
                del kept[open_at]
                open_at = None
                continue
            open_at = None
        kept.append(event)
    return kept


def _passes(events: Sequence[Event]) -> list[list[Event]]:
    """Split a step into passes, where a forward follows a backward."""
    passes: list[list[Event]] = [[]]
    went_back = False
    for event in events:
        if event.kind is EventKind.FORWARD_START and went_back:
            passes.append([])
            went_back = False
        went_back = went_back or event.kind in (EventKind.BACKWARD_START, EventKind.GRADIENT)
        passes[-1].append(event)
    return passes
