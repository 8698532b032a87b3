"""Takes steps apart into durations. Pure functions on marks, which are seconds of one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Forward(NamedTuple):
    """A call of a model: when each layer could begin, in the order of the calls."""

    module: int
    """The outermost layer."""
    layers: tuple[tuple[int, float], ...]
    end: float
    batch: int
    """0 if unknown."""

    @property
    def begin(self) -> float:
        """When the first layer could begin."""
        return self.layers[0][1] if self.layers else self.end

    @property
    def middle(self) -> float:
        """A time that is surely within the step."""
        return (self.begin + self.end) / 2


class Backward(NamedTuple):
    """A call of a tape's `gradient`."""

    opened: float
    """When the tape began to watch."""
    begin: float
    """When the target (the loss) had a value."""
    ready: tuple[tuple[int, float], ...]
    """Parameters, and when the gradient of each had a value."""
    end: float

    @property
    def middle(self) -> float:
        """A time that is surely within the step."""
        return (self.begin + self.end) / 2


class Update(NamedTuple):
    """An optimizer's step, from when it has all gradients."""

    optimizer: int
    begin: float
    end: float

    @property
    def middle(self) -> float:
        """A time that is surely within the step: an update ends it."""
        return self.end


Mark = Forward | Backward | Update


@dataclass(frozen=True)
class StepTimes:
    """The durations of one step, in seconds."""

    layers: tuple[int, ...]
    layer_s: tuple[float, ...]
    accumulation_s: float
    """Duration of the passes before the last one."""
    loss_s: float
    ready_s: dict[int, float]
    """When each gradient is ready, since the start of the last pass's backward."""
    backward_s: float
    optimizer_s: float
    input_s: float | None
    """From the end of the previous step to the first forward."""
    period_s: float | None
    """From the end of the previous step to the end of this one."""
    passes: int
    batch: int
    modules: tuple[int, ...]
    """The outermost layers that were called."""

    @property
    def shape(self) -> tuple[tuple[int, ...], int, frozenset[int]]:
        """Properties that steps must share for a median over them to be meaningful."""
        return self.layers, self.passes, frozenset(self.ready_s)


def take_apart(
    marks: Sequence[Mark],
    held: frozenset[int],
    of_module: dict[int, frozenset[int]],
    *,
    before: float | None,
    alone: bool,
) -> StepTimes | None:
    """Return the durations of a step; None if it computed no gradient of the optimizer's parameters.

    Args:
        marks: Those of the step; the last `Update` ends it.
        held: The optimizer's parameters.
        of_module: Parameters of each outermost layer.
        before: The end of the previous step, if known.
        alone: Whether nothing waits for other ranks between the backward pass and the update.
    """
    updates = [mark for mark in marks if isinstance(mark, Update)]
    backwards = [mark for mark in marks if isinstance(mark, Backward)]
    backwards = sorted((one for one in backwards if held & dict(one.ready).keys()), key=lambda one: one.begin)
    if not backwards or not updates:
        return None
    forwards = sorted((mark for mark in marks if isinstance(mark, Forward)), key=lambda one: one.begin)
    trained = [one for one in forwards if of_module.get(one.module, frozenset()) & held]
    forwards = trained or forwards
    last, update = backwards[-1], max(updates, key=lambda one: one.end)
    reached = backwards[-2].begin if len(backwards) > 1 else float("-inf")
    own = [one for one in forwards if reached < one.begin <= last.begin]

    calls = [call for one in own for call in one.layers]
    start = calls[0][1] if calls else last.opened
    end = max((one.end for one in own), default=last.begin)
    # Layers that do not depend on each other may begin in another order than they were called.
    edges = [start]
    for _, at in calls[1:]:
        edges.append(max(edges[-1], at))
    edges.append(max(edges[-1], end))
    begin = max(last.begin, edges[-1])

    ready = {key: 0.0 for one in backwards[:-1] for key, _ in one.ready if key in held}
    # A mark waits for a thread. The update had all gradients when it began.
    limit = update.begin if update.begin > begin else float("inf")
    ready |= {key: max(0.0, min(at, limit) - begin) for key, at in last.ready if key in held}
    latest = max(ready.values(), default=0.0)
    backward = max(latest, min(last.end, limit) - begin) if alone else latest
    first = backwards[0].opened
    if forwards and forwards[0].begin <= backwards[0].begin:
        first = forwards[0].begin
    optimizer = update.end - max(begin + backward, update.begin if not alone else float("-inf"))
    edges_of_passes = [float("-inf"), *(one.begin for one in backwards)]
    passes = [[one.batch for one in forwards if low < one.begin <= high] for low, high in pairwise(edges_of_passes)]
    batches = [some[0] if some else 0 for some in passes]
    return StepTimes(
        layers=tuple(layer for layer, _ in calls) or (-1,),
        layer_s=tuple(b - a for a, b in pairwise(edges)),
        accumulation_s=max(0.0, start - first),
        loss_s=max(0.0, begin - edges[-1]),
        ready_s=ready,
        backward_s=backward,
        optimizer_s=max(0.0, optimizer),
        input_s=None if before is None else max(0.0, first - before),
        period_s=None if before is None else update.end - before,
        passes=len(backwards),
        batch=sum(batches) if all(batches) else 0,
        modules=tuple(dict.fromkeys(one.module for one in own)),
    )
