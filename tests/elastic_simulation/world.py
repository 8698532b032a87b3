"""A virtual world: one thread, a clock that jumps, and tasks that run one at a time in an order that a seed decides.

Everything that happens is an event with a time. Delays are drawn from one seeded source, so equal seeds give equal
worlds, to the byte of their log.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import greenlet

MOST_TURNS = 200_000
"""A world that needs more does not end."""


class World:
    """The clock, the events to come, and the log of those that were."""

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        """`calm`: delays are short and equal, so that events come in the order in which they are caused."""
        self.random = random.Random(seed)
        self.calm = calm
        self.now = 0.0
        self.log: list[str] = []
        self.turns = 0
        """Events so far."""
        self.before_turn: Callable[[], None] = lambda: None
        self.files: dict[int, Any] = {}
        """Virtual files by their descriptors."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._hub = greenlet.getcurrent()

    def note(self, text: str) -> None:
        """Log something that has happened."""
        self.log.append(f"{self.turns} {self.now:.6f} {text}")

    def after(self, delay: float, do: Callable[[], None]) -> None:
        """Do something later."""
        assert delay >= 0
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, do))

    def delay(self) -> float:
        """Draw how long something takes that mostly takes a millisecond, and now and then a second."""
        if self.calm:
            return 0.001
        draw = self.random.random()
        if draw < 0.75:
            return 0.0001 + 0.002 * self.random.random()
        if draw < 0.97:
            return 0.05 * self.random.random()
        return 1.5 * self.random.random()

    def run(self, until: float, over: Callable[[], bool]) -> bool:
        """Run until it is over; return False if the time, or what can happen, ends first."""
        while not over():
            if not self._events or self._events[0][0] > until or self.turns > MOST_TURNS:
                return False
            self.turns += 1
            self.before_turn()
            self.now, _, do = heapq.heappop(self._events)
            do()
        return True

    def switch_to_hub(self) -> None:
        """Let others run, as the task that calls this waits."""
        self._hub.switch()

    def descriptor(self, file: object) -> int:
        """Return a number for a virtual file."""
        number = 1000 + len(self.files)
        self.files[number] = file
        return number


class Task:
    """Code that runs, waits, and can be stopped, as a process's only thread."""

    def __init__(self, world: World, name: str, run: Callable[[], None]) -> None:
        """`run` starts with the first event."""
        self.world, self.name = world, name
        self.over = False
        self.stopped = False
        self.lag = 0.0
        """Added to the time until it runs when it could: a machine that is overloaded."""
        self._run = run
        self._greenlet = greenlet.greenlet(self._main)
        self.turns = 0
        """How often it has waited and gone on."""
        self._waits = False
        self._missed = False
        self._spins = 0
        world.after(world.delay(), lambda: self._resume(0))

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self.over = True

    def wait(self, until: float | None) -> None:
        """Wait until somebody calls `wake`, or the time has come."""
        assert greenlet.getcurrent() is self._greenlet
        self._spins = 0
        self.turns += 1
        turn = self.turns
        self._waits = True
        if until is not None:
            self.world.after(max(0.0, until - self.world.now), lambda: self._resume(turn))
        self.world.switch_to_hub()

    def spun(self) -> None:
        """It has looked and not waited. Raises RuntimeError if it does nothing else."""
        self._spins += 1
        if self._spins > 5000:
            raise RuntimeError(f"{self.name} spins: it looks, and never waits")

    def wake(self) -> None:
        """Have it run soon, if it waits."""
        if self._waits:
            turn = self.turns
            self._waits = False
            self.world.after(self.world.delay() + self.lag, lambda: self._resume(turn))

    def _resume(self, turn: int) -> None:
        if self.over or turn != self.turns:
            return
        if self.stopped:
            self._missed = True
            return
        self.turns += 1
        self._waits = False
        self._greenlet.switch()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        if self._missed:
            self._missed = False
            turn = self.turns
            self.world.after(self.world.delay(), lambda: self._resume(turn))

    def kill(self) -> None:
        """End it where it waits."""
        if not self.over:
            self.over = True
            if self._greenlet:
                self._greenlet.throw(greenlet.GreenletExit)
