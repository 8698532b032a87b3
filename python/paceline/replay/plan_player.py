"""One rank's iterations of a plan: its compute stream sleeps on this thread, every other stream has its own.

The rules are those of the simulator (crates/simulator/src/iteration): a step begins when the step before it on its
stream and all that it waits for have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from paceline.forecast.iteration_plan import COMPUTE, IterationPlan, PlanStep
from paceline.replay.load import load
from paceline.replay.player import MARK, Iteration, Mark, Timekeeper

_FAREWELL_S = 1.0
"""How long a rank that has failed waits for its other streams, which may be in an exchange that fails later."""


class Exchanges(Protocol):
    """The interface to the exchanges."""

    def meet(self) -> int:
        """Return a moment in the near future, the same at all ranks."""

    def run(self, step: PlanStep) -> None:
        """Exchange, and wait for it."""


class PlanPlayer:
    """Plays the plan of an iteration. All ranks start each iteration at the same moment."""

    def __init__(
        self, plan: IterationPlan, exchanges: Exchanges, clock: Timekeeper, *, slower: Sequence[float], mark: Mark
    ) -> None:
        """`slower`: for each iteration, the factor of this rank's times."""
        self._streams, self._exchanges, self._clock, self._slower = plan.streams(), exchanges, clock, slower
        self._count, self._mark = len(plan.steps), mark

    def play(self) -> list[Iteration]:
        """Play all iterations. Raises JobError."""
        played, before = [], load()
        for number, factor in enumerate(self._slower):
            ended = Ended(self._count)
            threads = [
                threading.Thread(target=self._exchange, args=(steps, factor, ended), name=stream, daemon=True)
                for stream, steps in self._streams.items()
                if stream != COMPUTE
            ]
            for thread in threads:
                thread.start()
            try:
                begin = self._exchanges.meet()
                self._clock.lateness()
                self._clock.sleep_until(begin)
                ended.begin()
                at = self._compute(begin, factor, ended)
            except BaseException as error:
                ended.fail(error)
                for thread in threads:
                    thread.join(_FAREWELL_S)
                raise
            for thread in threads:
                thread.join()
            ended.check()
            end = max(at, self._clock.now()) if threads else at
            self._mark(MARK, f"{MARK} {number}", begin, end)
            after = load()
            played.append(Iteration(begin, at, end, self._clock.lateness(), after.since(before)))
            before = after
        self._exchanges.meet()  # Anything else would take cores from ranks that are still replaying.
        return played

    def _compute(self, at: int, factor: float, ended: Ended) -> int:
        for step in self._streams.get(COMPUTE, []):
            at = self._arrived(at, step, ended)
            end = at + round(step.duration_s * factor * 1e9)
            self._clock.sleep_until(end)
            ended.add(step.number)
            self._mark(step.kind, step.name, at, end)
            at = end
        return at

    def _arrived(self, at: int, step: PlanStep, ended: Ended) -> int:
        """Return when a step of computation can begin: now, unless all had arrived while the one before it ran."""
        missing = [before for before in step.after if before not in ended]
        if not missing:
            return at
        for before in missing:
            ended.wait(before)
        now = max(at, self._clock.now())
        self._mark("wait", f"wait for {step.name}", at, now)
        return now

    def _exchange(self, steps: Sequence[PlanStep], factor: float, ended: Ended) -> None:
        try:
            ended.wait_for_begin()
            for step in steps:
                for before in step.after:
                    ended.wait(before)
                if step.exchanged is None:
                    self._clock.sleep_until(self._clock.now() + round(step.duration_s * factor * 1e9))
                else:
                    self._exchanges.run(step)
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
