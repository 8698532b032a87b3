"""Horovod's reductions, and the runtime's reductions for them.

An average is a sum that the runtime divides by the number of ranks; averages of integers are rounded toward zero, as
are their multiples (`prescale_factor`, `postscale_factor`).
"""

from __future__ import annotations

import functools

import torch
from torch.distributed import ReduceOp

from paceline.hvd.operators import Operator
from paceline.torch.backend.buffers import name_of
from paceline.torch.backend.reductions import WIDER_IN_PRODUCTS, Reduction, lowered

_KNOWN = {
    Operator.Average: ReduceOp.AVG,
    Operator.Sum: ReduceOp.SUM,
    Operator.Min: ReduceOp.MIN,
    Operator.Max: ReduceOp.MAX,
    Operator.Product: ReduceOp.PRODUCT,
}


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
    own, (prescale, postscale) = lowered(op.name, _KNOWN[op], dtype, size), factors
    if factors == (1.0, 1.0):
        return own
    multiplied = WIDER_IN_PRODUCTS.get(dtype, own.dtype)
    return Reduction(own.op, multiplied, own.prescale * prescale, own.postscale * postscale)
