"""Exposed transfers of gradients, divided among three causes, and the figures behind the division."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.doctor.analysis import Analysis
from paceline.doctor.step_breakdown import Sent, StepBreakdown, median

_LATE_START = 0.5
"""If the first gradient is ready after this share of backward, buckets are larger than they should be."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Times of a mean step in nanoseconds; `small`, `overlap` and `network` add up to what is exposed."""

    small: float
    """The fixed cost of all operations except one, if it dominates."""
    overlap: float
    """The part of the rest that backward could have hidden."""
    network: float
    """The rest."""
    fixed: float
    """The fixed cost of an operation; 0 if unknown."""
    operations: float
    bytes: float
    median_bytes: float
    hidden: float
    """Transfers hidden behind backward."""
    late: float
    """Share of backward before the first gradient was ready."""
    held: float
    """Time of backward in which gradients were ready on all ranks and nothing was sent."""
    bus_bandwidth_bps: float | None

    @property
    def exposed(self) -> float:
        """Time not hidden behind backward."""
        return self.small + self.overlap + self.network

    @property
    def hidden_share(self) -> float:
        """Hidden share of the time in which gradients are sent."""
        return self.hidden / (self.hidden + self.exposed) if self.hidden + self.exposed else 0.0


def sending(analysis: Analysis) -> Sending | None:
    """Return the cost of moving gradients; None if there is no other rank."""
    breakdowns = [breakdown for breakdowns in analysis.breakdowns.values() for breakdown in breakdowns]
    sent = [it for breakdown in breakdowns for it in breakdown.sent]
    if len(analysis.ranks) < 2 or not sent:
        return None
    fixed = fixed_part([breakdown.sent for breakdown in breakdowns])
    divided = [_divide(breakdown, fixed) for breakdown in breakdowns]
    count = len(breakdowns)
    computing = sum(breakdown.backward.computing for breakdown in breakdowns)
    return Sending(
        small=sum(small for small, _, _ in divided) / count,
        overlap=sum(overlap for _, overlap, _ in divided) / count,
        network=sum(network for _, _, network in divided) / count,
        fixed=fixed,
        operations=len(sent) / count,
        bytes=sum(it.size for it in sent) / count,
        median_bytes=median(it.size for it in sent),
        hidden=sum(breakdown.backward.hidden for breakdown in breakdowns) / count,
        late=sum(breakdown.backward.before for breakdown in breakdowns) / computing if computing else 0.0,
        held=sum(breakdown.backward.held for breakdown in breakdowns) / count,
        bus_bandwidth_bps=_bus_bandwidth(breakdowns, analysis.recording.world_size),
    )


def _divide(breakdown: StepBreakdown, fixed: float) -> tuple[float, float, float]:
    """Divide a step's exposed transfers: the fixed part of operations, what backward could have hidden, the rest."""
    waits = [wait for wait in breakdown.waits if wait.gradients]
    exposed = float(sum(wait.transfer for wait in waits))
    small = min(exposed, fixed * sum(max(0, wait.operations - 1) for wait in waits))
    backward = breakdown.backward
    late = backward.before if backward.before > _LATE_START * backward.computing else 0
    overlap = min(exposed - small, late + backward.held)
    return small, overlap, exposed - small - overlap


def _bus_bandwidth(breakdowns: Sequence[StepBreakdown], ranks: int) -> float | None:
    """Return the bus bandwidth as nccl-tests defines it for an all-reduce.

    That is 2 (n - 1) / n times bytes over time; the median of steps, in bit/s.
    """
    rates = [
        8e9 * 2 * (ranks - 1) / ranks * sum(it.size for it in breakdown.sent) / breakdown.moving
        for breakdown in breakdowns
        if breakdown.moving and all(it.call == "all_reduce" for it in breakdown.sent)
    ]
    return median(rates) if rates else None


# The fixed cost of an operation.


_TINY = 16 << 10
"""Bytes; 0.13 ms at 1 Gbit/s. Smaller operations cost only latency."""
_LARGE = 256 << 10
"""Bytes; operations of this size are not small, whatever the fit says."""


def fixed_part(steps: Sequence[Sequence[Sent]]) -> float:
    """Return a of time = a + b x bytes, in nanoseconds, if it is most of the operations' time; otherwise 0.

    If all are tiny, it is the average time of one in the median step. Otherwise it is fitted by least squares to the
    median time of each size, weighted by their number; with a single size it cannot be determined.
    """
    sent = [it for step in steps for it in step]
    if not sent or median(it.size for it in sent) >= _LARGE:
        return 0.0
    if max(it.size for it in sent) <= _TINY:
        return median(sum(it.duration_ns for it in step) / len(step) for step in steps if step)
    fixed = _intercept(sent)
    return fixed if fixed > median(it.duration_ns for it in sent) / 2 else 0.0


def _intercept(sent: Sequence[Sent]) -> float:
    by_size: dict[int, list[int]] = defaultdict(list)
    for it in sent:
        by_size[it.size].append(it.duration_ns)
    points = [(float(size), median(took), len(took)) for size, took in by_size.items()]
    if len(points) < 2:
        return 0.0
    total = sum(weight for _, _, weight in points)
    mean_size = sum(size * weight for size, _, weight in points) / total
    mean_took = sum(took * weight for _, took, weight in points) / total
    spread = sum(weight * (size - mean_size) ** 2 for size, _, weight in points)
    slope = sum(weight * (size - mean_size) * (took - mean_took) for size, took, weight in points) / spread
    return min(max(0.0, mean_took - max(0.0, slope) * mean_size), *(took for _, took, _ in points))
