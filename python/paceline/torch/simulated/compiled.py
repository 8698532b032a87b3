"""Compiled parts of a script: whole models, blocks in place, forwards and functions. Nothing is really compiled.

In the compiled parts, chains of memory-bound operators count as fused, and in their backward passes. A loss that a
script computes outside of what it compiles runs operator by operator.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_WITHOUT_FUSION = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""torch's backends for debugging, which run the operators one by one."""
_NOTE = "torch.compile: chains of memory-bound operators count as fused in what is compiled"


@dataclass
class Compiled:
    """The compiled modules, and whether what runs now is compiled."""

    changed: Callable[[], None] = lambda: None
    """Called where a compiled function begins and ends."""
    noted: Callable[[str], None] = lambda text: None
    _modules: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)
    _functions: int = 0
    """Compiled functions that run now."""
    _inside: list[bool] = field(default_factory=list)
    """Whether each of the modules that run now is compiled, outermost first."""

    def now(self) -> bool:
        """Return whether an operator that runs now, not in the backward pass, is compiled."""
        return self._functions > 0 or (bool(self._inside) and self._inside[-1])

    def enter(self, module: nn.Module) -> None:
        """A module begins."""
        is_compiled = module in self._modules
        if is_compiled:
            self.noted(_NOTE)
        self._inside.append(self.now() or is_compiled)

    def leave(self) -> None:
        """The innermost module ends."""
        self._inside.pop()

    def end_step(self) -> None:
        """Forget what runs, which an exception may have ended."""
        self._inside.clear()

    def attach(self) -> None:
        """Replace torch's ways to compile."""

        def compiled(model: Any = None, **options: Any) -> Any:  # noqa: ANN401
            if model is None:
                return functools.partial(self._compile, options=options)
            return self._compile(model, options)

        def in_place(module: nn.Module, *_: object, **options: Any) -> None:  # noqa: ANN401
            self._compile(module, options)

        torch.compile = compiled
        nn.Module.compile = in_place  # type: ignore[method-assign, assignment]

    def _compile(self, what: Any, options: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return what is to be called instead: a module itself, or a function around a function."""
        if options.get("disable") or options.get("backend") in _WITHOUT_FUSION or isinstance(what, type):
            return what
        if isinstance(what, nn.Module):
            self._modules.add(what)
            return what

        @functools.wraps(what)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self.noted(_NOTE)
            self._functions += 1
            self.changed()
            try:
                return what(*args, **kwargs)
            finally:
                self._functions -= 1
                self.changed()

        return run
