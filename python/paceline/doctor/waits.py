"""Causes of a rank's waits while its script stood still: another rank, agreement, or data in transit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.doctor.intervals import Intervals, clip, length, union, without
from paceline.doctor.timeline_model import Block
from paceline.doctor.transfers import Transfer


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch of exposed communication, and its parts in nanoseconds, which add up to it."""

    begin: int
    end: int
    straggler: int
    """Until the slowest rank was ready."""
    negotiation: int
    """All ranks were ready, and nothing moved."""
    transfer: int
    """Something moved that every rank had begun."""
    rest: int
    """After the last transfer (copying, waking up), or before this rank's own last transfer if it was the slowest."""
    last: int | None
    """The rank that was waited for."""
    idle: Intervals
    """When the negotiation took place."""
    operations: int
    """Number of transfers that ended in it."""
    gradients: bool
    """Whether it was for gradients, and not for an operation within input, forward or optimizer."""
    block: Block | None = None
    """The block whose collective it was for."""

    @property
    def length(self) -> int:
        """Length in nanoseconds."""
        return self.end - self.begin


def wait_between(
    begin: int, end: int, transfers: Sequence[Transfer], *, gradients: bool, block: Block | None = None
) -> Wait:
    """Divide a wait by the transfers in flight.

    Let R be the moment at which the last rank was ready for the last of them. If data has been moving without a pause
    up to R, the rank would have waited for it in any case, so the wait for a straggler ends where that movement begins;
    otherwise it ends at R. After that, either data moves, or nothing moves although all ranks are ready: agreement.
    """
    flying = [it for it in transfers if it.ready < end and it.end > begin]
    if not flying:
        return Wait(begin, end, 0, 0, 0, end - begin, None, [], 0, gradients, block)
    slowest = max(flying, key=lambda it: it.all_ready)
    ready = min(max(slowest.all_ready, begin), end)
    moving = union((it.all_begun, it.end) for it in flying)
    since = next((max(a, begin) for a, b in moving if a < ready <= b), ready)
    over = max(since, min(end, max(it.end for it in flying)))
    moved = length(clip(moving, since, over))
    idle = without([(since, over)], moving) if since < over else []
    own = slowest.ready >= slowest.all_ready  # There was no straggler.
    ended = {it.operation for it in flying if begin < it.end <= end}
    return Wait(
        begin=begin,
        end=end,
        straggler=0 if own else since - begin,
        negotiation=over - since - moved,
        transfer=moved,
        rest=end - over + (since - begin if own else 0),
        last=slowest.last if since > begin and not own else None,
        idle=idle,
        operations=len(ended),
        gradients=gradients,
        block=block,
    )
