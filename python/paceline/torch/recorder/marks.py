"""Marks phases of a training script in the timeline: input, forward, backward, clipping, optimizer, waiting.

It uses torch's global hooks for modules and optimizers; only calls of the outermost module count. Clipping gradients is
a part of the optimizer's work, as in recorded traces, with a name of its own. A collective that the script waits for is
marked within the phase that calls it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from paceline._core import Engine
from paceline.job.input_watch import InputWatch
from paceline.torch.backend import blocks
from paceline.torch.recorder.clipping import on_clipping
from paceline.torch.recorder.closures import Arguments, Closure, around_closure

if TYPE_CHECKING:
    from paceline.torch.backend.completion import Completion


class Marks:
    """Writes marks to an engine's timeline until it is removed."""

    def __init__(self, engine: Engine, completion: Completion | None = None) -> None:
        """Register the hooks. `completion`: that of the job of torch.distributed whose timeline it is, if it is one."""
        self._engine, self._completion = engine, completion
        self._thread: int | None = None
        """The one that computes the forward pass."""
        self._depth = 0
        self._began = 0
        self._forward_end: int | None = None
        self._step_began: int | None = None
        self._step_end: int | None = None
        self._blocks = blocks.Blocks()
        if completion is not None:
            completion.wait_listeners.append(self._waited_for)
        self._unclip = on_clipping(self._clipped)
        self._input = InputWatch(engine)
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        self._input.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._blocks.remove()
        self._unclip()
        if self._completion is not None:
            self._completion.wait_listeners.remove(self._waited_for)
            self._completion = None

    def waited(self, began: int) -> None:
        """Mark that the script has waited for sums since `began`, by time.monotonic_ns()."""
        if self._forward_end is not None:
            self._mark("backward", self._forward_end, began)
            self._forward_end = None
        now = time.monotonic_ns()
        self._engine.mark("wait", "wait for sums", began, now)
        if self._step_began is not None:
            self._step_began = now

    def _waited_for(self, operation: str, began: int) -> None:
        """Mark that the script has waited since `began`, for an operation of a block of FSDP2 or for its own."""
        if (name := blocks.current()) is not None:
            self._engine.mark("wait", f"wait for {name}", began, time.monotonic_ns())
        elif threading.get_ident() == self._thread:
            self._engine.mark("collective", operation, began, time.monotonic_ns())

    def _clipped(self, function: str, began: int) -> None:
        """Mark that the script has clipped gradients since `began`: their backward pass had ended."""
        if self._forward_end is not None:
            self._mark("backward", self._forward_end, began)
            self._forward_end = None
        self._engine.mark("optimizer", function, began, time.monotonic_ns())

    def _mark(self, name: str, begin: int, end: int) -> None:
        self._engine.mark(name, name, begin, end)

    def _enter(self, *_: Any) -> None:  # noqa: ANN401 - whatever torch passes
        if self._depth == 0:
            self._blocks.find()
            self._thread = threading.get_ident()
            self._began = time.monotonic_ns()
            if self._step_end is not None:
                self._mark("input", self._step_end, self._began)
                self._step_end = None
        self._depth += 1

    def _leave(self, *_: Any) -> None:  # noqa: ANN401
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._forward_end = time.monotonic_ns()
            self._mark("forward", self._began, self._forward_end)

    def _before_step(self, _optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        watched = around_closure(args, kwargs, self._watch_closure)
        if watched is None:
            self._optimizer_begins()
        return watched

    def _watch_closure(self, closure: Closure) -> Closure:
        """Return the closure to call instead, at whose end the optimizer's own work begins."""

        def called(*args: object, **kwargs: object) -> object:
            if self._step_began is not None:  # Not the first call in this step.
                self._mark("optimizer", self._step_began, time.monotonic_ns())
                self._step_began = None
            value = closure(*args, **kwargs)
            self._optimizer_begins()
            return value

        return called

    def _optimizer_begins(self) -> None:
        now = time.monotonic_ns()
        if self._forward_end is not None:
            self._mark("backward", self._forward_end, now)
            self._forward_end = None
        self._step_began = now

    def _after_step(self, *_: Any) -> None:  # noqa: ANN401
        now = time.monotonic_ns()
        if self._step_began is not None:
            self._mark("optimizer", self._step_began, now)
            self._step_began = None
        self._step_end = now
