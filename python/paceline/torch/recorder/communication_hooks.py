"""Steps of one rank of several: computation without the exchange of gradients.

A trace says what a worker computes, and the network is forecast. But ranks wait for each other inside of their steps:

- DistributedDataParallel broadcasts buffers before the module that it wraps is called; prepares for the backward pass
  after it; fills buckets and begins all-reduces between two gradients; and waits where the backward pass ends.
- Horovod's DistributedOptimizer begins all-reduces between two gradients, and waits where its step begins, or in
  `synchronize()`. The optimizer's own step is called inside of its step.
- A script's own all-reduces stand between the backward pass and the step.

So all of this is cut out of the step, and the rest put together. What else a script does between its last gradient and
the optimizer's own step (clipping, unscaling) is cut out as well: it cannot be told from waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from paceline.torch.recorder.clock import Clock
from paceline.torch.recorder.modules import ModuleTable
from paceline.torch.recorder.step import Event, Kind, StepTimes, take_apart
from paceline.torch.recorder.step_hooks import Probe


class RankProbe(Probe):
    """Marks as well when others are through with a gradient, and what a wrapper does around the model."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        """Of a DistributedDataParallel, the module that it wraps is the model."""
        self._wrapper = model if isinstance(model, nn.parallel.DistributedDataParallel) else None
        super().__init__(model if self._wrapper is None else self._wrapper.module, clock)

    def attach(self) -> None:
        """Attach all hooks; on an error none stays."""
        super().attach()
        try:
            for parameter in self._parameters:
                if parameter.requires_grad and parameter.is_leaf:
                    self._watch_exchange(parameter)
            if self._wrapper is not None:
                self._undo.append(self._wrapper.register_forward_pre_hook(self._wrapper_called).remove)
                self._undo.append(self._wrapper.register_forward_hook(self._wrapper_returned).remove)
        except BaseException:
            self.detach()
            raise

    def release(self) -> None:
        """Remove every hook and let go of the model."""
        super().release()
        self._wrapper = None

    def _watch_exchange(self, parameter: nn.Parameter) -> None:
        """Be first to hear of a gradient, before Horovod, and again when DistributedDataParallel has heard of it, too.

        That adds its hook to the node of the graph that accumulates the gradient, and such hooks run in order, after
        those of the tensor.
        """
        hooks = parameter._post_accumulate_grad_hooks
        assert hooks, "the probe has just added one"
        # C++ reads the dictionary in the order of insertion, whatever `OrderedDict.move_to_end` was told.
        for key in list(hooks)[:-1]:
            hooks[key] = hooks.pop(key)
        node = get_gradient_edge(parameter).node
        handle = node.register_hook(self._exchanged)

        def undo() -> None:
            handle.remove()
            keep.clear()

        keep = [node]  # else it is made anew for each graph, without the hook
        self._undo.append(undo)

    def _wrapper_called(self, *_: object) -> None:
        if torch.is_grad_enabled():  # else it is an evaluation
            self._mark_exchange(Kind.WRAPPER_START)

    def _wrapper_returned(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self._mark_exchange(Kind.EXCHANGED)

    def _exchanged(self, *_: object) -> None:
        self._mark_exchange(Kind.EXCHANGED)

    def _mark_exchange(self, kind: Kind) -> None:
        if not torch.compiler.is_compiling():
            self.mark(kind)


def take_rank_apart(events: Sequence[Event], table: ModuleTable) -> StepTimes | None:
    """As `take_apart`, without the exchange."""
    computing, exchange_s = without_exchange(events)
    step = take_apart(computing, table)
    return None if step is None else replace(step, exchange_s=exchange_s)


class _Computed(NamedTuple):
    """Where what was computed ends: by the clock, what has been cut until then, and how many events were kept."""

    at_s: float | None
    cut_s: float
    kept: int


def without_exchange(events: Sequence[Event]) -> tuple[list[Event], float]:
    """Cut out of a step what is, or may be, exchange; what is left has moved together. Gives the seconds cut as well.

    Cut are: from WRAPPER_START to the start of the forward; from a gradient or the end of the forward to the EXCHANGED
    behind it; from the last gradient of a backward pass to the end of that; and from there to the OPTIMIZER_START of
    the innermost step.
    """
    kept: list[Event] = []
    cut_s = 0.0
    called_s: float | None = None
    in_backward_s: float | None = None  # the last gradient of this backward pass
    computed = _Computed(None, 0.0, 0)
    for event in events:
        if event.kind is Kind.WRAPPER_START:
            called_s = event.at_s
            continue
        if event.kind is Kind.FORWARD_START and called_s is not None:
            cut_s += event.at_s - called_s
        elif event.kind is Kind.BACKWARD_START:
            in_backward_s = None
        elif event.kind is Kind.GRADIENT:
            in_backward_s = event.at_s
        elif event.kind is Kind.EXCHANGED:
            if not kept or kept[-1].kind not in (Kind.GRADIENT, Kind.FORWARD_END):
                continue
            cut_s += event.at_s - (kept[-1].at_s + cut_s)
            if kept[-1].kind is Kind.GRADIENT:
                in_backward_s, computed = event.at_s, _Computed(event.at_s, cut_s, len(kept))
            continue
        elif event.kind is Kind.BACKWARD_END and in_backward_s is not None:
            cut_s += event.at_s - in_backward_s
        elif event.kind is Kind.OPTIMIZER_START:
            if computed.at_s is not None:
                del kept[computed.kept :]  # of another model, or an evaluation: it would stand behind the step's end
                cut_s = computed.cut_s + event.at_s - computed.at_s
                computed = _Computed(event.at_s, cut_s, len(kept))
            continue
        called_s = None
        kept.append(event._replace(at_s=event.at_s - cut_s))
        if event.kind is Kind.GRADIENT or (event.kind is Kind.BACKWARD_END and in_backward_s is not None):
            computed = _Computed(event.at_s, cut_s, len(kept))
    return kept, cut_s
