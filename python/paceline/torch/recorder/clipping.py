"""Tells listeners when a script clips its gradients, by the functions of torch.nn.utils.

torch has no hooks for that. While there are listeners, the functions are replaced in every module that has them under
their own names, so also where a script has imported them. Removing the last listener restores the originals.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.utils import clip_grad

Listener = Callable[[str, int], None]
"""Called with the function's name and when it was called, by time.monotonic_ns(), after it has returned."""
_NAMES = ("clip_grad_norm_", "clip_grad_value_")
_listeners: list[tuple[Listener, Callable[[], None]]] = []
_originals: dict[str, Callable[..., Any]] = {}


def on_clipping(listener: Listener, begins: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Call `begins` before and `listener` after each clipping of gradients in this process; return how to undo this."""
    if not _listeners:
        for name in _NAMES:
            _originals[name] = getattr(clip_grad, name)
            _replace(name, _originals[name], _reporting(name, _originals[name]))
    added = (listener, begins)
    _listeners.append(added)
    return functools.partial(_remove, added)


def _remove(added: tuple[Listener, Callable[[], None]]) -> None:
    _listeners.remove(added)
    if not _listeners:
        for name, original in _originals.items():
            _replace(name, getattr(clip_grad, name), original)


def _replace(name: str, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__dict__.get(name) is old:
            setattr(module, name, new)


def _reporting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clipped(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch's function
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        listeners = tuple(_listeners)
        for _, begins in listeners:
            begins()
        began = time.monotonic_ns()
        result = original(*args, **kwargs)
        for listener, _ in listeners:
            listener(name, began)
        return result

    return clipped
