"""Lets Hugging Face's accelerate use the backend "paceline" on CPUs.

On CPUs accelerate replaces every backend but "mpi" with "gloo", and then refuses to start because the backend is not
the one that was asked for. transformers' `Trainer` has its process group from accelerate. `paceline.as_gloo`, which
torch loads whenever it is imported, calls `allow`; only a request for "paceline" is treated differently.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "paceline"
_STATE = "accelerate.state"


def allow() -> None:
    """Make accelerate accept the backend once it is imported, or now if it already is. Idempotent."""
    known = sys.modules.get(_STATE)
    if known is not None and hasattr(known, "PartialState"):
        keep_backend(known)
    elif not any(isinstance(finder, _AfterState) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterState())


def keep_backend(state: ModuleType) -> None:
    """Make `PartialState` of accelerate's module `state` keep the backend "paceline" on CPUs. Idempotent.

    A version of accelerate without the method that chooses the backend is left as it is.
    """
    partial_state = getattr(state, "PartialState", None)
    original = getattr(partial_state, "_prepare_backend", None)
    if original is None or hasattr(original, "_keeps_paceline"):
        return

    @functools.wraps(original)
    def prepare_backend(self: object, *args: Any, **kwargs: Any) -> tuple[str | None, object]:  # noqa: ANN401
        chosen, kind = original(self, *args, **kwargs)
        requested = kwargs.get("backend", args[2] if len(args) > 2 else None)
        return (NAME if requested == NAME and chosen == "gloo" else chosen), kind

    prepare_backend._keeps_paceline = True  # type: ignore[attr-defined]
    partial_state._prepare_backend = prepare_backend  # type: ignore[union-attr]


class _AfterState:
    """Finds accelerate's module through the other finders, and changes it when it has been executed."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _STATE or self._asking:
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
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            keep_backend(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec
