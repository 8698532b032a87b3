"""The hooks of a recorded step: while attached to a model, they write marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.torch.recorder.backward import inside_backward, on_backward
from paceline.torch.recorder.clock import Clock, Mark
from paceline.torch.recorder.modules import ModuleTable, is_compiled_in_place, survey
from paceline.torch.recorder.step import EventKind

RawEvent = tuple[EventKind, int, Mark]


@dataclass(frozen=True)
class Gradient:
    """Description of one parameter's gradient."""

    elements: int
    dtype: str
    """torch's dtype name without `torch.`, such as `float32`."""
    itemsize: int
    sparse: bool
    shape: tuple[int, ...] | None = None
    """None if it is not known."""


class StepHooks:
    """Marks module calls, ready gradients, and start and end of forward and backward."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        """Survey the model without attaching hooks."""
        self.table: ModuleTable
        self.table, self._modules, self._parameters = survey(model)
        self.gradients: dict[int, Gradient] = {}
        self._clock = clock
        self._events: list[RawEvent] = []
        self._undo: list[Callable[[], None]] = []
        self._in_forward = False
        self._forward_at = 0

    def attach(self) -> None:
        """Attach all hooks; after an error none stays attached."""
        try:
            for index, module in enumerate(self._modules):
                self._watch_module(index, module)
            for index, parameter in self._with_gradients():
                handle = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._gradient_hook(index)
                )
                self._undo.append(handle.remove)
            self._undo.append(on_backward(self._backward_begins, self._backward_ends))
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Remove every hook; they can be attached again."""
        while self._undo:
            self._undo.pop()()

    def release(self) -> None:
        """Remove every hook and release the model."""
        self.detach()
        self._modules = []
        self._parameters = []

    def index_of_modules(self) -> dict[int, int]:
        """Return the table's index of each module by `id`."""
        return {id(module): index for index, module in enumerate(self._modules)}

    def mark(self, kind: EventKind, key: int = 0) -> None:
        """Record a mark now."""
        self._events.append((kind, key, self._clock.mark()))

    def begin_step(self, previous_end: Mark | None) -> None:
        """Discard earlier marks; `previous_end` is the end of the previous step."""
        self._events = [] if previous_end is None else [(EventKind.STEP_START, 0, previous_end)]
        self._in_forward = False

    def take(self) -> list[RawEvent]:
        """Return the marks since `begin_step`."""
        return self._events

    def _with_gradients(self) -> Iterator[tuple[int, nn.Parameter]]:
        """Yield the parameters in which autograd accumulates gradients, with their index."""
        for index, parameter in enumerate(self._parameters):
            if parameter.requires_grad and parameter.is_leaf:
                yield index, parameter

    def _watch_module(self, index: int, module: nn.Module) -> None:
        if is_compiled_in_place(module):
            self._wrap_compiled_call(index, module)
            return
        before = module.register_forward_pre_hook(self._call_hook(index), prepend=True, with_kwargs=True)
        self._undo.append(before.remove)
        if index == 0:
            self._undo.append(module.register_forward_hook(self._root_returned).remove)

    def _call_hook(self, index: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def called(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not torch.compiler.is_compiling():  # otherwise the mark would be compiled into the graph
                self._called(index, args, kwargs)

        return called

    def _called(self, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if index == 0 or not self._in_forward:
            # Checkpoint recomputation and evaluation between two steps are not forward passes of the step.
            if inside_backward() or not torch.is_grad_enabled():
                return
            if self._in_forward:  # an exception, which the loop caught, ended the previous forward
                del self._events[self._forward_at :]
            self._in_forward = index == 0
            self._forward_at = len(self._events)
            if index == 0 or not self._open_pass():
                collated = is_lightning(self._modules[index])
                self.mark(EventKind.FORWARD_START, batch_of(args, kwargs, collated=collated))
        self.mark(EventKind.CALL, index)

    def _open_pass(self) -> bool:
        """Return whether there was a forward since the last backward."""
        for kind, _, _ in reversed(self._events):
            if kind in (EventKind.FORWARD_START, EventKind.CALL):
                return True
            if kind in (EventKind.GRADIENT, EventKind.BACKWARD_START, EventKind.BACKWARD_END):
                return False
        return False

    def _root_returned(self, _module: nn.Module, _args: object, _output: object) -> None:
        if self._in_forward and not torch.compiler.is_compiling():
            self._in_forward = False
            self.mark(EventKind.FORWARD_END)

    def _wrap_compiled_call(self, index: int, module: nn.Module) -> None:
        """Mark calls of a module on which `.compile()` was called: torch compiles its hooks away."""
        original: Callable[..., object] = module._compiled_call_impl  # type: ignore[assignment]

        def called(*args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self._called(index, args, kwargs)
            output = original(*args, **kwargs)
            if index == 0:
                self._root_returned(module, args, output)
            return output

        def undo() -> None:
            module._compiled_call_impl = original

        module._compiled_call_impl = called
        self._undo.append(undo)

    def _gradient_hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            self.mark(EventKind.GRADIENT, index)
            if index not in self.gradients:
                self.gradients[index] = describe(parameter)

        return ready

    def _backward_begins(self) -> None:
        self._in_forward = False
        self.mark(EventKind.BACKWARD_START)

    def _backward_ends(self) -> None:
        self.mark(EventKind.BACKWARD_END)


def describe(parameter: torch.Tensor) -> Gradient:
    """Describe the gradient of `parameter`; sparse gradients count as dense."""
    gradient = parameter if parameter.grad is None else parameter.grad
    return Gradient(
        elements=parameter.numel(),
        dtype=str(gradient.dtype).removeprefix("torch."),
        itemsize=gradient.dtype.itemsize,
        sparse=gradient.layout is not torch.strided,
        shape=tuple(parameter.shape),
    )


def is_lightning(module: nn.Module) -> bool:
    """Return whether this is a LightningModule: it is called with what the loader gives, such as inputs and labels."""
    return any(kind.__name__ == "LightningModule" for kind in type(module).__mro__)


def batch_of(args: Sequence[Any], kwargs: Mapping[str, Any], *, collated: bool = False) -> int:
    """Return the batch size from the arguments of a forward: the first tensor's first dimension, or 0 without a tensor.

    A list of tensors (images of different sizes) is a batch of its length, unless it is known that lists are what a
    loader `collated`, such as inputs and labels.
    """
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            return int(argument.shape[0]) if argument.ndim else 1
        if not collated and isinstance(argument, list) and argument and isinstance(argument[0], torch.Tensor):
            return len(argument)
        if isinstance(argument, Mapping):
            inner = batch_of((), argument, collated=collated)
        elif isinstance(argument, (list, tuple)):
            inner = batch_of(argument, {}, collated=collated)
        else:
            inner = 0
        if inner:
            return inner
    return 0
