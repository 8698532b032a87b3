"""One rank's iterations of a plan.

The rules are those of the simulator: a step begins when the step before it on its stream and all that it waits for have
ended. Compute is a duration, not work: its stream sleeps on this thread, only until moments at which something has to
happen, and makes up for a late wake-up. This thread also hands over what is exchanged in the background. Every other
stream has a thread of its own.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline._core import PlanStep
from paceline._internal.clock import Lateness
from paceline._internal.load import Load, load

from paceline_lab.replay.worker_schedule import BACKGROUND, COMPUTE, Factors, WorkerSchedule

Mark = Callable[[str, str, int, int], None]
"""Category, name, begin and end of a span of the timeline."""
MARK = "iteration"
"""Category of whole iterations there."""
_FAREWELL_S = 1.0
"""How long a rank that has failed waits for its other streams, which may be in an exchange that fails later."""


class Exchange(Protocol):
    """The interface to the exchanges."""

    def meet(self) -> int:
        """Return a moment in the near future, the same at all ranks."""

    def run(self, step: PlanStep) -> None:
        """Exchange, and wait for it."""

    def issue(self, step: PlanStep) -> None:
        """Begin an exchange in the background."""

    def held(self, step: PlanStep) -> bool:
        """Return whether the result of the last one that was begun has arrived."""

    def wait(self, step: PlanStep) -> None:
        """Wait for that result."""


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
    """The last exchange in the background began; without any, the computation ended."""
    end: int
    """All steps had ended; if the next iteration does not wait for exchanges, the computation."""
    late: Lateness
    load: Load


class Player:
    """Plays the schedule of one worker."""

    def __init__(
        self, schedule: WorkerSchedule, exchange: Exchange, clock: Timekeeper, *, together: bool, mark: Mark
    ) -> None:
        """`together`: all ranks start each iteration at the same moment."""
        self._plan, self._factors = schedule.plan, schedule.factors
        self._steps = self._plan.steps
        self._exchange, self._clock, self._together, self._mark = exchange, clock, together, mark
        self._exchanges_only = self._plan.exchanges_only
        streams: dict[str, list[PlanStep]] = {}
        for step in self._steps:
            streams.setdefault(step.stream, []).append(step)
        self._compute, self._background = streams.pop(COMPUTE, []), streams.pop(BACKGROUND, [])
        self._others = streams
        self._handing_over: defaultdict[int, list[PlanStep]] = defaultdict(list)
        for step in self._background:
            self._handing_over[max(step.after, default=-1)].append(step)
        self._heard = {before for steps in streams.values() for step in steps for before in step.after}

    def play(self) -> list[Iteration]:
        """Play all iterations, until the last one's exchanges have ended. Raises JobError."""
        played: list[Iteration] = []
        at, before = 0, load()
        for number, factors in enumerate(self._factors):
            ended = Ended(len(self._steps))
            threads = [
                threading.Thread(target=self._run, args=(steps, factors, ended), name=stream, daemon=True)
                for stream, steps in self._others.items()
            ]
            for thread in threads:
                thread.start()
            try:
                if number == 0 or self._together:
                    at = self._exchange.meet()
                    self._clock.lateness()
                    self._clock.sleep_until(at)
                begin = at
                ended.begin()
                at, handed = self._iterate(at, factors, ended, first=number == 0)
            except BaseException as error:
                ended.fail(error)
                for thread in threads:
                    thread.join(_FAREWELL_S)
                raise
            for thread in threads:
                thread.join()
            ended.check()
            if threads:
                at = max(at, self._clock.now())
            self._mark(MARK, f"{MARK} {number}", begin, at)
            after = load()
            played.append(Iteration(begin, handed, at, self._clock.lateness(), after.since(before)))
            before = after
        for step in self._background:
            self._exchange.wait(step)
        self._exchange.meet()  # Anything else would take cores from ranks that are still replaying.
        return played

    def _iterate(self, at: int, factors: Factors, ended: Ended, *, first: bool) -> tuple[int, int]:
        """Compute, and hand over; return when the computation ended and the last exchange was handed over."""
        handed = self._hand_over(-1)
        for step in self._compute:
            if self._exchanges_only and handed is not None:
                at = max(at, handed)
            at = self._arrived(at, step, ended, first=first)
            end = at + round(step.duration_s * factors.of(step.kind) * 1e9)
            if step.number in self._handing_over or step.number in self._heard:
                self._clock.sleep_until(end)
            ended.add(step.number)
            handed = self._hand_over(step.number) or handed
            if end > at:
                self._mark(step.kind, step.name, at, end)
            at = end
        if not self._plan.ends_with_compute:
            self._clock.sleep_until(at)
        return at, at if handed is None else handed

    def _hand_over(self, after: int) -> int | None:
        """Begin the exchanges in the background that wait for this step; return when, if there are any."""
        for step in self._handing_over.get(after, ()):
            self._exchange.issue(step)
        return self._clock.now() if after in self._handing_over else None

    def _arrived(self, at: int, step: PlanStep, ended: Ended, *, first: bool) -> int:
        """Return when a step of computation can begin: now, unless all had arrived while the one before it ran."""
        awaited = step.after if first else (*step.after, *step.after_previous)
        if not self._missing(awaited, ended):
            return at
        self._clock.sleep_until(at)
        missing = self._missing(awaited, ended)
        if not missing:
            return at
        for before in missing:
            if before.stream == BACKGROUND:
                self._exchange.wait(before)
            else:
                ended.wait(before.number)
        now = max(at, self._clock.now())
        self._mark("wait", f"wait for {step.name}", at, now)
        return now

    def _missing(self, awaited: Sequence[int], ended: Ended) -> list[PlanStep]:
        steps = [self._steps[number] for number in awaited]
        return [
            step
            for step in steps
            if not (self._exchange.held(step) if step.stream == BACKGROUND else step.number in ended)
        ]

    def _run(self, steps: Sequence[PlanStep], factors: Factors, ended: Ended) -> None:
        """Run the steps of a stream beside the computation."""
        try:
            ended.wait_for_begin()
            for step in steps:
                for before in step.after:
                    ended.wait(before)
                if step.exchanged is None:
                    self._clock.sleep_until(self._clock.now() + round(step.duration_s * factors.of(step.kind) * 1e9))
                else:
                    self._exchange.run(step)
                ended.add(step.number)
        except BaseException as error:
            ended.fail(error)


class Ended:
    """The steps that have ended, or the error because of which the others never will."""

    def __init__(self, count: int) -> None:
        """None of `count` steps has ended."""
        self._events = [threading.Event() for _ in range(count)]
        self._begun = threading.Event()
        self._error: BaseException | None = None

    def begin(self) -> None:
        """The moment has come at which all ranks begin."""
        self._begun.set()

    def wait_for_begin(self) -> None:
        """Wait for that moment."""
        self._begun.wait()

    def __contains__(self, number: int) -> bool:
        """Return whether a step has ended."""
        return self._events[number].is_set()

    def add(self, number: int) -> None:
        """A step has ended."""
        self._events[number].set()

    def wait(self, number: int) -> None:
        """Wait for a step. The runtime bounds how long an exchange takes. Raises JobError if another has failed."""
        self._events[number].wait()
        self.check()

    def fail(self, error: BaseException) -> None:
        """Wake everybody: what is waited for will not come."""
        self._error = self._error or error
        for event in (self._begun, *self._events):
            event.set()

    def check(self) -> None:
        """Raise the error of another stream. Raises JobError."""
        if self._error is not None:
            raise self._error
