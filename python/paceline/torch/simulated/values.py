"""The numbers that a script reads of tensors without data, by which it may decide what to compute."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

_KEPT, _DRAWN = "_paceline_value", "_paceline_drawn"
_ALL = (torch.ops.aten.all.default, torch.ops.aten.all.dim)
_MEAN = 0.5
"""Of a uniform random number, which `torch.rand(1) > probability` compares: most layers are not dropped."""
_COMPARISONS: dict[object, Callable[[Any, Any], bool]] = {
    torch.ops.aten.gt.Scalar: operator.gt,
    torch.ops.aten.ge.Scalar: operator.ge,
    torch.ops.aten.lt.Scalar: operator.lt,
    torch.ops.aten.le.Scalar: operator.le,
}


def value_of(tensor: torch.Tensor) -> bool | int | float:
    """Return what `.item()` gives: a value that is known, 1, by which scripts may divide, or False."""
    known: bool | float | None = getattr(tensor, _KEPT, None)
    if known is not None:
        return known
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def is_drawn(tensor: torch.Tensor) -> bool:
    """Return whether it was made of a random number, which scripts draw on the host."""
    return hasattr(tensor, _DRAWN)


def keep_value(func: object, args: tuple[Any, ...], out: Any) -> None:  # noqa: ANN401
    """Keep the value of a result: `.all()` is true, and a random number is its mean."""
    if func in _ALL:
        setattr(out, _KEPT, True)
    elif func is torch.ops.aten.rand.default and out.numel() == 1:
        setattr(out, _KEPT, _MEAN)
        setattr(out, _DRAWN, True)
    elif func in _COMPARISONS and is_drawn(args[0]):
        setattr(out, _KEPT, _COMPARISONS[func](getattr(args[0], _KEPT), args[1]))
        setattr(out, _DRAWN, True)
