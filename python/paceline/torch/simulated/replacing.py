"""Replaces what modules of torch define."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def answering(answer: object) -> Callable[..., Any]:
    """Return a function that takes anything and returns `answer`."""
    return lambda *_, **__: answer


def replace(module: ModuleType, name: str, new: object) -> None:
    """Replace an attribute of a module, also in torch's modules that have imported it; nothing if it has none."""
    old = getattr(module, name, None)
    if old is None:
        return
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("torch.distributed") and vars(other).get(name) is old:
            setattr(other, name, new)
    setattr(module, name, new)
