"""Recording one rank of several: computation without gradient communication.

A trace describes the computation of a worker; the network is forecast. But ranks wait for each other during a step:

- DistributedDataParallel broadcasts buffers before it calls the wrapped module, prepares the backward pass
  afterwards, fills buckets and starts all-reduces between gradients, and waits at the end of the backward pass.
- Horovod's DistributedOptimizer starts all-reduces between gradients, and waits at the start of its step, or in
  `synchronize()`. Its step calls the step of the wrapped optimizer.
- A script's own all-reduces run between the backward pass and the step.
- FSDP2 gathers parameters before the passes of each unit, and reduces gradients after them (`recorder.fsdp2`).

All of this is cut out of the step, and the rest is joined. DistributedDataParallel and FSDP2 have waited when the
backward pass returns: from there to the optimizer's own step only collectives that the script calls are cut out, and
its other work (clipping, unscaling) counts as the optimizer's. With Horovod, and in scripts that average gradients
themselves, such work cannot be distinguished from waiting, and is cut out as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from paceline.torch.recorder.clipping import on_clipping
from paceline.torch.recorder.clock import Clock, Mark
from paceline.torch.recorder.fsdp2 import ShardedUnits, without_clipping, without_sharding
from paceline.torch.recorder.modules import ModuleTable
from paceline.torch.recorder.step import Event, EventKind, StepTimes, take_apart
from paceline.torch.recorder.step_hooks import Gradient, StepHooks


class RankStepHooks(StepHooks):
    """Also marks when other hooks are done with a gradient, and the work of what wraps or shards the model."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        """Attach to the wrapped module if `model` is a DistributedDataParallel."""
        self._wrapper = model if isinstance(model, nn.parallel.DistributedDataParallel) else None
        inner = model if self._wrapper is None else self._wrapper.module
        super().__init__(inner, clock)
        self.units = ShardedUnits(inner, self._parameters, self.mark, self._accumulated)
        self.waits_in_backward = self._wrapper is not None or bool(self.units)
        """Whether ranks have waited for each other when the backward pass returns."""
        self._script = _Collectives(self.mark)

    def attach(self) -> None:
        """Attach all hooks; after an error none stays attached."""
        super().attach()
        try:
            for _, parameter in self._with_gradients():
                self._watch_exchange(parameter)
            if self.units:
                self._undo.append(self.units.detach)
                self.units.attach()
                self._undo.append(on_clipping(self._clipped, self._clipping_begins))
            if self._wrapper is not None:
                self._undo.append(self._wrapper.register_forward_pre_hook(self._wrapper_called).remove)
                self._undo.append(self._wrapper.register_forward_hook(self._wrapper_returned).remove)
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Remove every hook; they can be attached again."""
        self._script.leave()
        super().detach()

    def release(self) -> None:
        """Remove every hook and release the model."""
        super().release()
        self.units.release()
        self._wrapper = None

    def mark(self, kind: EventKind, key: int = 0) -> None:
        """Record a mark now."""
        if kind is EventKind.OPTIMIZER_START:
            self._script.leave()
        super().mark(kind, key)

    def take_apart(self, events: Sequence[Event], table: ModuleTable) -> StepTimes | None:
        """Do the same as `step.take_apart`, without communication."""
        shards = self.units.shards if self.units else None
        return take_rank_apart(events, table, waits_in_backward=self.waits_in_backward, shards=shards)

    def begin_step(self, previous_end: Mark | None) -> None:
        """Discard earlier marks; `previous_end` is the end of the previous step."""
        super().begin_step(previous_end)
        if self.waits_in_backward and self._undo:
            self._script.watch()

    def _called(self, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._script.leave()
        super()._called(index, args, kwargs)

    def _backward_ends(self) -> None:
        super()._backward_ends()
        if self.waits_in_backward:
            self._script.watch()

    def _backward_begins(self) -> None:
        self._script.leave()
        super()._backward_begins()

    def _with_gradients(self) -> Iterator[tuple[int, nn.Parameter]]:
        """Leave out what FSDP2 has sharded: gradients of shards are not accumulated by autograd."""
        for index, parameter in super()._with_gradients():
            if index not in self.units.sharded:
                yield index, parameter

    def _accumulated(self, index: int, gradient: Gradient) -> None:
        self.mark(EventKind.GRADIENT, index)
        self.gradients.setdefault(index, gradient)

    def _clipping_begins(self) -> None:
        self.mark(EventKind.CLIPPING_START)

    def _clipped(self, *_: object) -> None:
        self.mark(EventKind.CLIPPING_END)

    def _watch_exchange(self, parameter: nn.Parameter) -> None:
        """Mark a gradient before Horovod's hook runs, and again after DistributedDataParallel's.

        DistributedDataParallel adds its hook to the graph node that accumulates the gradient. Such hooks run in order,
        after the tensor's hooks.
        """
        hooks = parameter._post_accumulate_grad_hooks
        assert hooks, "attach() has just added one"
        # C++ reads the dictionary in insertion order and ignores `OrderedDict.move_to_end`.
        for key in list(hooks)[:-1]:
            hooks[key] = hooks.pop(key)
        node = get_gradient_edge(parameter).node
        handle = node.register_hook(self._exchanged)

        def undo() -> None:
            handle.remove()
            keep.clear()

        keep = [node]  # otherwise each graph gets a new node, without the hook
        self._undo.append(undo)

    def _wrapper_called(self, *_: object) -> None:
        self._script.leave()
        if torch.is_grad_enabled():  # otherwise it is an evaluation
            self._mark_exchange(EventKind.WRAPPER_START)

    def _wrapper_returned(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self._mark_exchange(EventKind.EXCHANGED)

    def _exchanged(self, *_: object) -> None:
        self._mark_exchange(EventKind.EXCHANGED)

    def _mark_exchange(self, kind: EventKind) -> None:
        if not torch.compiler.is_compiling():
            self.mark(kind)


class _Collectives:
    """Marks the collectives that a script calls by torch.distributed's functions, while it watches.

    Functional collectives, which DTensor also uses, for example for the norm of sharded gradients, are waited for by a
    function of their own. The functions are replaced only between the backward pass and the optimizer, and between
    steps, where no compiled code of the model runs that would have to be compiled again. Recorders share what they
    replace.
    """

    _NAMES = (
        *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_gather_single"),
        *("all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier"),
        *("recv", "reduce"),
        *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send"),
    )
    _RUN_ON = ("batch_isend_irecv", "irecv", "isend")
    """Functions that always return before the operation has ended."""
    _FUNCTIONAL = (
        *("all_gather_single", "all_gather_tensor", "all_reduce", "all_to_all_single", "broadcast"),
        *("reduce_scatter_single", "reduce_scatter_tensor", "wait_tensor", "wait_tensors"),
    )
    _MODULES = (
        *(("torch.distributed", _NAMES), ("torch.distributed.distributed_c10d", _NAMES)),
        ("torch.distributed._functional_collectives", _FUNCTIONAL),
    )

    _watching: ClassVar[list[_Collectives]] = []
    _replaced: ClassVar[list[tuple[object, str, object]]] = []

    def __init__(self, mark: Callable[[EventKind, int], None]) -> None:
        self._mark = mark

    def watch(self) -> None:
        """Start, unless already started."""
        if self in self._watching:
            return
        if not self._watching:
            for path, names in self._MODULES:
                module = sys.modules.get(path)
                for name in names:
                    original = getattr(module, name, None)
                    if original is not None:
                        self._replaced.append((module, name, original))
                        runs_on = names is self._NAMES and name in self._RUN_ON
                        setattr(module, name, self._marked(original, runs_on=runs_on))
        self._watching.append(self)

    def leave(self) -> None:
        """Stop. Idempotent."""
        if self in self._watching:
            self._watching.remove(self)
        while self._replaced and not self._watching:
            module, name, original = self._replaced.pop()
            setattr(module, name, original)

    @classmethod
    def _marked(cls, original: Callable[..., Any], *, runs_on: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch's function
            later = runs_on or bool(kwargs.get("async_op")) or any(each is True for each in args)
            watching = tuple(cls._watching)
            for each in watching:
                each._mark(EventKind.COLLECTIVE_START, int(later))
            try:
                return original(*args, **kwargs)
            finally:
                for each in watching:
                    each._mark(EventKind.COLLECTIVE_END, 0)

        return called


def take_rank_apart(
    events: Sequence[Event], table: ModuleTable, *, waits_in_backward: bool = False, shards: float | None = None
) -> StepTimes | None:
    """Do the same as `take_apart`, without communication (`without_exchange`).

    `shards`: how many times as many elements the model has as this rank's optimizer, if FSDP2 shards it.
    """
    sharding_s = work_s = 0.0
    if shards is not None:
        events, sharding_s = without_sharding(events)
        events, work_s = without_clipping(events)
    computing, exchange_s = without_exchange(events, waits_in_backward=waits_in_backward)
    step = take_apart(computing, table)
    if step is None:
        return None
    # Clipping may have been cut out, if it cannot be told from waiting.
    elsewhere_s = (shards - 1) * min(work_s, step.optimizer_s) if shards is not None else 0.0
    return replace(
        step,
        optimizer_s=step.optimizer_s + elsewhere_s,
        exchange_s=sharding_s + exchange_s,
        elsewhere_s=elsewhere_s,
    )


class _Computed(NamedTuple):
    """The end of the computation: its time, the seconds cut before it, and the number of events kept."""

    at_s: float | None
    cut_s: float
    kept: int
    ended: bool = False
    """Whether the backward pass returned then."""


def without_exchange(events: Sequence[Event], *, waits_in_backward: bool = False) -> tuple[list[Event], float]:
    """Cut communication, and what may be communication, out of a step. Return the joined rest, and the seconds cut.

    Cut out: from WRAPPER_START to the start of the forward; from a gradient or the end of the forward to the EXCHANGED
    after it; from the last gradient of a backward pass to the end of the pass; and from there to the OPTIMIZER_START of
    the innermost step. Of this last part only the script's collectives are cut out with `waits_in_backward`, if none of
    them may run on. Before a forward, the script's collectives are cut out, and everything from one on that may run on.
    """
    kept: list[Event] = []
    cut_s = 0.0
    called_s: float | None = None
    in_backward_s: float | None = None  # the last gradient of this backward pass
    computed = _Computed(None, 0.0, 0)
    depth, collective_s = 0, 0.0  # collectives of objects call others; since when the outermost runs
    collectives_s, runs_on = 0.0, False
    runs_on_s = 0.0  # since when a collective may run on
    for event in events:
        if event.kind is EventKind.COLLECTIVE_START:
            collective_s = event.at_s if depth == 0 else collective_s
            if event.key and not runs_on:
                runs_on, runs_on_s = True, collective_s
            depth += 1
            continue
        if event.kind is EventKind.COLLECTIVE_END:
            depth -= 1
            if depth == 0 and not (runs_on and runs_on_s <= collective_s):
                collectives_s += event.at_s - collective_s
            continue
        if event.kind is EventKind.WRAPPER_START:
            called_s = event.at_s
            continue
        if event.kind is EventKind.FORWARD_START and computed.at_s is None:
            called_s = event.at_s if called_s is None else called_s
            cut_s += collectives_s + (called_s - runs_on_s if runs_on else 0.0)
            collectives_s, runs_on = 0.0, False
        if event.kind is EventKind.FORWARD_START and called_s is not None:
            cut_s += event.at_s - called_s
        elif event.kind is EventKind.BACKWARD_START:
            in_backward_s = None
        elif event.kind is EventKind.GRADIENT:
            in_backward_s = event.at_s
        elif event.kind is EventKind.EXCHANGED:
            if not kept or kept[-1].kind not in (EventKind.GRADIENT, EventKind.FORWARD_END):
                continue
            cut_s += event.at_s - (kept[-1].at_s + cut_s)
            if kept[-1].kind is EventKind.GRADIENT:
                in_backward_s, computed = event.at_s, _Computed(event.at_s, cut_s, len(kept))
            continue
        elif event.kind is EventKind.BACKWARD_END and in_backward_s is not None:
            cut_s += event.at_s - in_backward_s
        elif event.kind is EventKind.OPTIMIZER_START:
            alone = len(kept) == computed.kept and computed.ended and not runs_on
            if computed.at_s is not None and waits_in_backward and alone:
                cut_s += collectives_s
                computed = _Computed(event.at_s, cut_s, len(kept), ended=True)
                collectives_s = 0.0
            elif computed.at_s is not None:
                del kept[computed.kept :]  # Another model or an evaluation, which would follow the step's end.
                cut_s = computed.cut_s + event.at_s - computed.at_s
                computed = _Computed(event.at_s, cut_s, len(kept))
            continue
        called_s = None
        kept.append(event._replace(at_s=event.at_s - cut_s))
        if event.kind is EventKind.GRADIENT or (event.kind is EventKind.BACKWARD_END and in_backward_s is not None):
            computed = _Computed(event.at_s, cut_s, len(kept), ended=event.kind is EventKind.BACKWARD_END)
            collectives_s, runs_on = 0.0, False
    return kept, cut_s
