"""Says when a backward pass begins and ends.

No hook of a module or a tensor sees the entry into the backward pass: the first ones fire once the gradient has passed
through the loss. So while somebody listens, `torch.autograd.backward`, through which `Tensor.backward` goes as well, is
replaced by a function that tells the listeners and calls the original. The last listener puts the original back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def inside_backward() -> bool:
    """Tell whether this thread is executing a backward pass (a checkpoint recomputing its forward, say)."""
    # What torch.utils.module_tracker and torch.utils.checkpoint ask; there is no public name for it.
    return bool(torch._C._current_graph_task_id() != -1)


class _Watch:
    """The listeners of this process and the function they share."""

    def __init__(self) -> None:
        self._listeners: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._original: Callable[..., Any] | None = None

    def add(self, listener: tuple[Callable[[], None], Callable[[], None]]) -> None:
        if self._original is None:
            original: Callable[..., Any] = torch.autograd.backward
            self._original = original

            @functools.wraps(original)
            def backward(*args: object, **kwargs: object) -> None:
                if inside_backward():  # a reentrant checkpoint's own pass is a part of the one under way
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


_watch = _Watch()


def on_backward(begin: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
    """Have `begin` and `end` called around every outermost backward pass of this process; returns what undoes it.

    `end` is not called for a pass that raised.
    """
    listener = (begin, end)
    _watch.add(listener)
    return lambda: _watch.remove(listener)
