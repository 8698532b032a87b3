"""Keeps torch's compiler out of the backend.

While a compiled DDP model runs, C++ calls our methods, and the compiler would try to trace them, which fails because
they pass addresses. `torch.compiler.disable` would also prevent that, but it imports the compiler (seconds) and costs
time in each call; this marks the code objects themselves, as the compiler does with code that it skips.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

MODULES = (
    *("buffers", "collectives", "group", "hook", "job", "process_group", "reductions", "store_exchange"),
    *("tensor_collectives", "work"),
)


def keep_out() -> None:
    """Mark all functions and methods of the backend's modules."""
    mark = _marker()
    if mark is None:
        return
    for module in (importlib.import_module(f"paceline.torch.backend.{name}") for name in MODULES):
        for thing in vars(module).values():
            if getattr(thing, "__module__", None) != module.__name__:
                continue
            for member in vars(thing).values() if isinstance(thing, type) else (thing,):
                function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
                if isinstance(function, FunctionType):
                    for code in _codes(function.__code__):
                        mark(code)


def _marker() -> Callable[[CodeType], None] | None:
    """Return the function that marks a code object; None if this torch lacks it, and cannot compile DDP over us."""
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        never = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        return lambda code: frames.set_code_exec_strategy(code, never)
    return None


def _codes(code: CodeType) -> list[CodeType]:
    """Return the code object and all code objects inside it, including comprehensions."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code, *(each for constant in inner for each in _codes(constant))]
