"""The iteration of a worker, with the same dependencies as in crates/simulator/src/simulation.rs.

Compute is a duration, not work: a layer starts when the previous one has ended and its buckets have arrived, and ends
after its duration. The player sleeps only until moments at which something has to happen, and makes up for a late
wake-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.replay.clock import Lateness
from paceline.replay.load import Load, load
from paceline.replay.worker_schedule import Factors, WorkerSchedule

Mark = Callable[[str, str, int, int], None]
"""Category, name, begin and end of a span of the timeline."""
MARK = "iteration"
"""Category of whole iterations there."""


class Exchange(Protocol):
    """The interface to the buckets."""

    def meet(self) -> int:
        """Return a moment in the near future, the same at all ranks."""

    def issue(self, bucket: int) -> None:
        """Hand over this iteration's gradient."""

    def held(self, bucket: int) -> bool:
        """Return whether the sum of the last issued gradient has arrived."""

    def wait(self, bucket: int) -> None:
        """Wait for that sum."""


class Timekeeper(Protocol):
    """A clock."""

    def now(self) -> int:
        """Return nanoseconds."""

    def sleep_until(self, moment: int) -> None:
        """Return at that moment."""

    def lateness(self) -> Lateness:
        """Return the lateness since the last call."""


@dataclass(frozen=True)
class Iteration:
    """The moments of one rank in one iteration, in nanoseconds."""

    begin: int
    handed: int
    """The last gradient was handed over."""
    end: int
    """It had all sums and had run its optimiser; if layers wait for their own sums, the end of its backward pass."""
    late: Lateness
    load: Load


class Player:
    """Plays the schedule of one worker."""

    def __init__(
        self, schedule: WorkerSchedule, exchange: Exchange, clock: Timekeeper, *, together: bool, mark: Mark
    ) -> None:
        """`together`: all ranks start each iteration at the same moment."""
        self.schedule, self.exchange, self.clock, self.together, self.mark = schedule, exchange, clock, together, mark
        self._handing_over = schedule.handing_over()

    def play(self) -> list[Iteration]:
        """Play all iterations, until the last one's sums have arrived."""
        played: list[Iteration] = []
        at, before = 0, load()
        for number, factors in enumerate(self.schedule.factors):
            if number == 0 or self.together:
                at = self.exchange.meet()
                self.clock.lateness()
                self.clock.sleep_until(at)
            begin = at
            at = self._forward(at, factors, first=number == 0)
            at, handed = self._backward(at, factors)
            if not self.schedule.pull_by_layer:
                at = self._sums(at, factors)
            self.mark(MARK, f"{MARK} {number}", begin, at)
            after = load()
            played.append(Iteration(begin, handed, at, self.clock.lateness(), after.since(before)))
            before = after
        for bucket in self.schedule.order:
            self.exchange.wait(bucket)
        self.exchange.meet()  # Anything else would take cores from ranks that are still replaying.
        return played

    def _forward(self, at: int, factors: Factors, *, first: bool) -> int:
        for layer in self.schedule.layers:
            if not first and not all(map(self.exchange.held, layer.needs)):
                at = self._parameters(at, layer.name, layer.needs)
            end = at + _ns(layer.duration_s * factors.compute)
            self.mark("forward", layer.name, at, end)
            at = end
        return at

    def _parameters(self, at: int, layer: str, needs: tuple[int, ...]) -> int:
        """Return when the layer can start: now, unless its buckets arrived while the previous layer ran."""
        self.clock.sleep_until(at)
        if all(map(self.exchange.held, needs)):
            return at
        for bucket in needs:
            self.exchange.wait(bucket)
        now = self.clock.now()
        self.mark("wait", f"wait for {layer}", at, now)
        return now

    def _backward(self, at: int, factors: Factors) -> tuple[int, int]:
        handed, last = at, -1
        for ready_s, bucket in self._handing_over:
            moment = at + _ns(ready_s * factors.backward)
            if moment > last:
                self.clock.sleep_until(moment)
                last = moment
            self.exchange.issue(bucket)
            handed = self.clock.now()
        end = at + _ns(self.schedule.backward_s * factors.backward)
        if end > at:
            self.mark("backward", "backward", at, end)
        return max(end, handed) if self.schedule.exchange_only else end, handed

    def _sums(self, at: int, factors: Factors) -> int:
        self.clock.sleep_until(at)
        if not all(map(self.exchange.held, self.schedule.order)):
            for bucket in self.schedule.order:
                self.exchange.wait(bucket)
            now = self.clock.now()
            self.mark("wait", "wait for sums", at, now)
            at = now
        if not self.schedule.optimizer_s:
            return at
        end = at + _ns(self.schedule.optimizer_s * factors.compute)
        self.mark("optimizer", "optimizer", at, end)
        self.clock.sleep_until(end)
        return end


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
