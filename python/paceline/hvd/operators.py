"""Horovod's reductions, by its numbers."""

from __future__ import annotations

import enum
import warnings


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
