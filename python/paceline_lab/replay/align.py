"""One clock for ranks on several machines: the first rank's.

A rank with another clock asks the first rank for the time, several times, and uses the quickest answer (D. Mills,
RFC 5905, section 10: the clock filter), before the iterations and after them. In between, its clock is assumed to drift
linearly. The runtime aligns the times of its timelines in the same way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline._internal.clock import Clock

if TYPE_CHECKING:
    from paceline.job.job import Job

_ASKED = 32


@dataclass(frozen=True)
class Offset:
    """The offset of this rank's clock, in nanoseconds."""

    at: int
    """By this rank's clock."""
    ahead: int
    error: int = 0
    """The largest possible error: half of the quickest round trip."""


def offset(ranks: Job, clock: Clock, names: Sequence[str]) -> Offset:
    """Return the offset to the first rank's clock; all ranks call this together.

    `names` distinguishes clocks, by rank. Raises JobError.
    """
    best = Offset(clock.now(), 0)
    for other in range(1, ranks.size):
        if names[other] == names[0]:
            continue
        if ranks.rank == 0:
            _answer(ranks, clock, other)
        elif ranks.rank == other:
            best = _ask(ranks, clock)
    return best


def _answer(ranks: Job, clock: Clock, other: int) -> None:
    question, answer = array("q", [0]), array("q", [0])
    for _ in range(_ASKED):
        ranks.recv(question, other)
        answer[0] = clock.now()
        ranks.send(answer, other)


def _ask(ranks: Job, clock: Clock) -> Offset:
    question, answer = array("q", [0]), array("q", [0])
    offsets = []
    for _ in range(_ASKED):
        sent_at = clock.now()
        ranks.send(question, 0)
        ranks.recv(answer, 0)
        half = (clock.now() - sent_at + 1) // 2
        offsets.append(Offset(sent_at + half, answer[0] - (sent_at + half), half))
    return min(offsets, key=lambda one: one.error)


@dataclass(frozen=True)
class Common:
    """Converts this rank's clock to the first rank's, between two alignments."""

    before: Offset
    after: Offset

    def __call__(self, moment: int) -> int:
        """Return the moment by the first rank's clock."""
        span = self.after.at - self.before.at
        gained = (self.after.ahead - self.before.ahead) * (moment - self.before.at) // span if span else 0
        return moment + self.before.ahead + gained

    @property
    def error_s(self) -> float:
        """Largest error in seconds."""
        return max(self.before.error, self.after.error) * 1e-9
