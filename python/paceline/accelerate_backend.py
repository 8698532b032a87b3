"""Lets Hugging Face's accelerate use the backend "paceline" on CPUs.

On CPUs accelerate replaces every backend but "mpi" with "gloo", and then refuses to start because the backend is not
the one that was asked for. transformers' `Trainer` has its process group from accelerate. `paceline.as_gloo`, which
torch loads whenever it is imported, calls `allow`; only a request for "paceline" is treated differently.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from paceline._internal.lazy import when_imported

NAME = "paceline"
_STATE = "accelerate.state"


def allow() -> None:
    """Make accelerate accept the backend once it is imported, or now if it already is. Idempotent."""
    when_imported({_STATE: keep_backend})


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
