"""Horovod's reductions, and the runtime's reductions for them.

An average is a sum that the runtime divides by the number of ranks; averages of integers are rounded toward zero, as
are their multiples (`prescale_factor`, `postscale_factor`).
"""

from __future__ import annotations

import enum
import functools
import warnings

import torch
from torch.distributed import ReduceOp

from paceline.torch.backend.buffers import name_of
from paceline.torch.backend.reductions import WIDER_IN_PRODUCTS, Reduction, plan


class Operator(enum.IntEnum):
    """The reductions, with Horovod's numbers."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum = Operator.Average, Operator.Sum, Operator.Adasum
Min, Max, Product = Operator.Min, Operator.Max, Operator.Product

_KNOWN = {
    Operator.Average: ReduceOp.AVG,
    Operator.Sum: ReduceOp.SUM,
    Operator.Min: ReduceOp.MIN,
    Operator.Max: ReduceOp.MAX,
    Operator.Product: ReduceOp.PRODUCT,
}


def operator_of(op: int | None, average: bool | None = None) -> Operator:
    """Return the reduction of a call: `op`, or the one given by the older argument `average`, or an average.

    Raises ValueError for both at once and for an unknown one, NotImplementedError for Adasum.
    """
    if average is not None:
        if op is not None:
            raise ValueError("op and average are both given; leave out average, the older name")
        warnings.warn("average is deprecated: give op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
        op = Operator.Average if average else Operator.Sum
    if op is None:
        return Operator.Average
    try:
        operator = Operator(op)
    except ValueError:
        known = ", ".join(f"hvd.{known.name}" for known in Operator if known is not Operator.Adasum)
        raise ValueError(f"the reduction {op!r} is unknown; known are {known}") from None
    if operator is Operator.Adasum:
        raise NotImplementedError(
            "Adasum is not supported: it combines pairs of gradients by their angle, which the runtime's reductions "
            "cannot do; use op=hvd.Average, with a scaled learning rate and warm-up"
        )
    return operator


def combination(
    what: str, op: Operator, dtype: torch.dtype, size: int, *, prescale: float = 1.0, postscale: float = 1.0
) -> Reduction:
    """Return how the tensors of `size` ranks are combined. `what` names the tensor in a message.

    Raises TypeError with the remedy for a reduction or factors that a dtype does not support.
    """
    try:
        return _combination(op, dtype, size, (prescale, postscale))
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


@functools.lru_cache(256)
def _combination(op: Operator, dtype: torch.dtype, size: int, factors: tuple[float, float]) -> Reduction:
    if dtype is torch.bool and factors != (1.0, 1.0):
        raise TypeError(f"{name_of(dtype)} cannot be scaled; leave prescale_factor and postscale_factor out")
    found, (prescale, postscale) = plan(op.name, _KNOWN[op], dtype, size), factors
    if factors == (1.0, 1.0):
        return found
    multiplied = WIDER_IN_PRODUCTS.get(dtype, found.dtype)
    return Reduction(found.op, multiplied, found.prescale * prescale, found.postscale * postscale)
