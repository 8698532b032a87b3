"""Replaces what modules of torch define, at once or when the script imports them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
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


class _AfterImport:
    """Finds modules through the other finders, and calls a function when one of them has been executed."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.get(name)
        if change is None or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def when_imported(changes: dict[str, Callable[[ModuleType], None]]) -> None:
    """Call each function with the module of its name, now or after its import: importing it here takes seconds."""
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport({n: change for n, change in changes.items() if n not in sys.modules}))
