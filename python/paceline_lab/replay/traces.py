"""Traces for slower networks: fewer bytes, the same tensors and times."""

from __future__ import annotations

from paceline._core import Distributed, Gradient, Trace, Worker
from paceline.errors import InvalidArgumentError
from paceline.job.arrays import DTYPES

MOST_SHRINK = 1_000_000
"""The largest divisor of bytes."""


def shrunk(trace: Trace, divisor: float) -> Trace:
    """Return the trace with all bytes divided, to whole elements and at least one. Raises InvalidArgumentError."""
    if divisor == 1:
        return trace
    if not 1 <= divisor <= MOST_SHRINK:
        raise InvalidArgumentError(
            f"shrink: must be 1-{MOST_SHRINK}, not {divisor:g}", remedy="{shrink=4} (a quarter of the bytes)"
        )
    element = DTYPES[trace.dtype]

    def divided(size: int) -> int:
        return max(1, round(size / divisor / element)) * element

    return trace.replace(
        workers=[
            Worker(
                worker.forward,
                # The shape would be that of the whole.
                [Gradient(one.tensor, one.ready_s, divided(one.bytes)) for one in worker.gradients],
                backward_s=worker.backward_s,
                optimizer_s=worker.optimizer_s,
            )
            for worker in trace.workers
        ],
        distribution=[
            Distributed(one.tensor, None if one.bytes is None else divided(one.bytes)) for one in trace.distribution
        ],
        frozen=[(name, divided(size)) for name, size in trace.frozen],
    )
