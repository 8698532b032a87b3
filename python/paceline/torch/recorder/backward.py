"""Callbacks at the start and end of backward passes.

No hook of a module or tensor fires at the start of the backward pass: the first ones fire once the gradient has passed
through the loss. So while there are listeners, `torch.autograd.backward`, which `Tensor.backward` also calls, is
replaced by a function that notifies them and calls the original. Removing the last listener restores the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def inside_backward() -> bool:
    """Return whether this thread is in a backward pass, for example in a checkpoint's recomputed forward."""
    # As in torch.utils.module_tracker and torch.utils.checkpoint; there is no public API.
    return bool(torch._C._current_graph_task_id() != -1)


class _Listeners:
    """The listeners of this process, and the function that notifies them."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._original: Callable[..., Any] | None = None

    def add(self, listener: tuple[Callable[[], None], Callable[[], None]]) -> None:
        if self._original is None:
            original: Callable[..., Any] = torch.autograd.backward
            self._original = original

            @functools.wraps(original)
            def backward(*args: object, **kwargs: object) -> None:
                if inside_backward():  # A reentrant checkpoint's pass is part of the current one.
                    original(*args, **kwargs)
                    return
                listeners = list(self._listeners)
                for begin, _ in listeners:
                    begin()
                original(*args, **kwargs)
                for _, end in listeners:
                    end()

            torch.autograd.backward = backward
        self._listeners.append(listener)

    def remove(self, listener: tuple[Callable[[], None], Callable[[], None]]) -> None:
        self._listeners.remove(listener)
        if not self._listeners and self._original is not None:
            torch.autograd.backward = self._original
            self._original = None


_listeners = _Listeners()


def on_backward(begin: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
    """Call `begin` and `end` around every outermost backward pass of this process; return a function that undoes this.

    `end` is not called if the pass raises.
    """
    listener = (begin, end)
    _listeners.add(listener)
    return lambda: _listeners.remove(listener)
