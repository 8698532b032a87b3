"""Decides which processes run and which workers form the next world: a state machine without clock or sockets.

Events are methods, which take the time where it matters and return actions. `patience` says when `tick` is due.

- A worker that is killed by a signal, or fails because another did, is replaced in its slot. One that fails by itself
  (an exception, an exit code) would most likely fail again: its slot is closed, and the job continues without it if
  `least` workers are left.
- When a world has ended, the driver waits for its living ranks, and kills those that do not return. The next world
  starts as soon as there are `least` workers; later ones are admitted after a commit.
- Commits are kept in the memory of ranks. When all ranks that hold one are gone, the job has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from paceline._internal.units import count
from paceline.launch.elastic.order import agreed, places
from paceline.launch.elastic.roster import (
    Action,
    End,
    Exit,
    Give,
    Kill,
    Limits,
    Notify,
    Place,
    Retire,
    Say,
    Slot,
    Start,
    State,
    Worker,
)


class Driver:
    """The state of an elastic job."""

    def __init__(self, limits: Limits) -> None:
        """Start without processes: `offer` slots."""
        self.limits = limits
        self.workers: dict[int, Worker] = {}
        """All living workers."""
        self.generation = 0
        """Generation of the last world; 0 before the first."""
        self.intact = False
        """Whether the last world has not ended."""
        self.over = False
        self._slots: list[Slot] = []
        self._closed: dict[Slot, str] = {}
        """Closed slots, in which nothing is started any more, and the reason."""
        self._next = 0
        self._ranks: dict[Slot, int] = {}
        self._size = 0
        self._deaths: Counter[Slot] = Counter()
        self._fruitless = 0
        self._commit: int | None = None
        """The commit that the last world started from."""
        self._short_until: float | None = None
        """The deadline for enough slots to be offered."""
        self._notified = False
        """Whether the ranks of the last world know that another will follow."""
        self._held = False
        """Whether a world has had a common state."""
        self._finished = False
        self._why = ""
        """Reason for the end of the last world."""
        self._death = ""
        """The last."""
        self._actions: list[Action] = []

    # Events

    def offer(self, slots: Iterable[Slot], now: float) -> list[Action]:
        """Allow processes in these slots only, in at most `most` of them at a time."""
        self._slots = list(slots)
        for worker in list(self._alive()):
            if worker.slot not in self._slots and not worker.retired:
                worker.retired = True
                if worker.state is State.PLACED:
                    self._say(f"{worker.slot} is gone: its rank leaves after the next commit")
                else:
                    self._retire(worker, now)
        return self._settle(now)

    def asked(self, number: int, commits: Iterable[int], why: str, now: float) -> list[Action]:
        """Handle a worker that requests a place and holds these commits. `why`: the reason that its world ended."""
        worker = self.workers.get(number)
        if worker is None or worker.killed:
            return []
        if worker.state is State.PLACED:
            self._ended(why, now)
        worker.state, worker.commits = State.WAITING, tuple(commits)
        if worker.retired:
            self._retire(worker, now)
        return self._settle(now)

    def synced(self, number: int) -> list[Action]:
        """Handle a worker that has the common state."""
        self._held = self._held or number in self.workers
        return self._take()

    def finished(self, number: int) -> list[Action]:
        """Handle a worker that has finished training, as all workers then have."""
        self._finished = self._finished or number in self.workers
        return self._take()

    def exited(self, number: int, how: Exit, now: float) -> list[Action]:
        """Handle the end of a worker's process."""
        worker = self.workers.pop(number, None)
        if worker is None:
            return []
        placed = worker.state is State.PLACED
        worker.state = State.ENDED
        if self.over:
            return self._take()
        if worker.retired:
            if placed:
                self._ended(how.words, now)
            return self._settle(now)
        if how.code == 0:
            self._finished = True
            self._why = self._why or how.words
            if not self.workers:
                self._end(None)
            return self._settle(now)
        if placed:
            self._ended(how.words, now)
        self._died(worker, how)
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Handle the passing of time."""
        for worker in list(self._alive()):
            if worker.killed or now < worker.deadline:
                continue
            if worker.state is State.STARTED:
                self._kill(worker, f"has not asked for its place within {self.limits.start_s:g} s (hvd.init())")
            elif worker.state is State.PLACED and not self.intact:
                self._kill(worker, f"has not come back within {self.limits.return_s:g} s after its world ended")
            elif worker.retired and worker.state is State.WAITING:
                self._kill(worker, f"has not left within {self.limits.start_s:g} s")
        if self._short_until is not None and now >= self._short_until:
            usable = len(self._usable())
            have = "has" if usable == 1 else "have"
            self._end(
                f"{count(usable, 'slot')} {have} been offered for {self.limits.start_s:g} s, and "
                f"--min-np is {self.limits.least}"
            )
        return self._settle(now)

    def patience(self) -> float | None:
        """Return when `tick` is due next; None if only an event can change the state."""
        due = [worker.deadline for worker in self._alive() if not worker.killed and self._due(worker)]
        if self._short_until is not None:
            due.append(self._short_until)
        return min(due, default=None)

    def _due(self, worker: Worker) -> bool:
        """Return whether the worker has a deadline."""
        if worker.state is State.PLACED:
            return not self.intact
        return worker.state is State.STARTED or worker.retired

    def abandon(self, reason: str) -> list[Action]:
        """End the job."""
        self._end(reason)
        return self._take()

    # Decisions

    def _alive(self) -> Iterable[Worker]:
        return self.workers.values()

    def _in(self, state: State) -> list[Worker]:
        return [worker for worker in self._alive() if worker.state is state]

    def _ended(self, why: str, now: float) -> None:
        """End the world; its ranks will return."""
        if not self.intact:
            return
        self.intact = False
        self._why = why
        for worker in self._in(State.PLACED):
            worker.deadline = now + self.limits.return_s

    def _kill(self, worker: Worker, why: str) -> None:
        worker.killed = True
        self._say(f"the process in {worker.slot} {why}; it is killed")
        self._do(Kill(worker.number))

    def _retire(self, worker: Worker, now: float) -> None:
        worker.deadline = now + self.limits.start_s
        self._do(Retire(worker.number))

    def _usable(self) -> list[Slot]:
        return [slot for slot in self._slots if slot not in self._closed]

    def _died(self, worker: Worker, how: Exit) -> None:
        slot = worker.slot
        self._death = how.words
        self._deaths[slot] += 1
        if self._finished:
            self._end(f"{how.words}, after other ranks had finished")
        elif how.host_lost:
            for each in self._slots:
                if each.host == slot.host:
                    self._closed.setdefault(each, how.words)
            self._say(f"{how.words}; nothing more is started there")
        elif how.code >= 0 and not how.follows and not worker.killed:
            self._closed[slot] = how.words
            self._say(f"{how.words}; it is not restarted, because it would most likely fail again")
        elif self._deaths[slot] >= self.limits.fruitless:
            self._closed[slot] = f"{how.words}, the {self._deaths[slot]}th time without a commit"
            self._say(f"{self._closed[slot]}; it is not replaced any more")
        else:
            self._say(f"{how.words}; it is replaced")

    def _settle(self, now: float) -> list[Action]:
        """Start missing processes, and form a world if possible."""
        if not self.over and not self._finished:
            self._start(now)
            self._check(now)
        if not self.over and self._finished and self._in(State.WAITING):
            self._end(f"a rank ended before others had finished; {self._why}" if self._why else "a rank ended early")
        if not self.over and not self._finished:
            self._form()
        return self._take()

    def _start(self, now: float) -> None:
        if self._next == 0 and len(self._usable()) < self.limits.least:
            return  # a single process could end before the others have room
        taken = {worker.slot for worker in self._alive()}
        for slot in self._slots:
            if slot not in taken and slot not in self._closed and len(self.workers) < self.limits.most:
                worker = Worker(self._next, slot, now + self.limits.start_s)
                self._next += 1
                self.workers[worker.number] = worker
                self._do(Start(worker.number, slot))

    def _check(self, now: float) -> None:
        """Check whether the job can continue."""
        usable = self._usable()
        if len(usable) >= self.limits.least:
            self._short_until = None
        elif len(self._slots) >= self.limits.least:
            why = [why for slot, why in self._closed.items() if slot in self._slots][-1]
            self._end(f"{why}; {count(len(usable), 'slot')} left, and --min-np is {self.limits.least}")
        elif self._short_until is None:
            self._short_until = now + self.limits.start_s
        lost = self._held and not self.intact and not self._in(State.PLACED)
        if lost and not any(worker.commits for worker in self._alive()):
            self._end(
                f"all ranks that held the last commit have died, the last: {self._death or self._why}; "
                "commits live in their memory: start the job again from a checkpoint"
            )

    def _form(self) -> None:
        waiting = [worker for worker in self._in(State.WAITING) if not worker.retired and not worker.killed]
        if self.intact:
            leaving = [worker for worker in self._in(State.PLACED) if worker.retired]
            if (waiting or leaving) and not self._notified:
                self._notified = True
                for worker in self._in(State.PLACED):
                    self._do(Notify(worker.number))
            return
        if len(waiting) < self.limits.least or self._in(State.PLACED):
            return
        if self.generation == 0 and any(not worker.retired for worker in self._in(State.STARTED)):
            return  # at the start the driver waits for all
        commit = agreed(waiting)
        if not self._may_reset(commit):
            return
        self.generation += 1
        placed = places(waiting, self._ranks, self.generation)
        self._ranks = {worker.slot: place.rank for worker, place in placed}
        if self.generation > 1:
            self._say(_began(placed[0][1], self._size))
        self._size = len(placed)
        self.intact, self._notified = True, False
        for worker, place in placed:
            worker.state = State.PLACED
            self._do(Give(worker.number, place))

    def _may_reset(self, commit: int | None) -> bool:
        if commit is not None and (self._commit is None or commit > self._commit):
            self._deaths.clear()
            self._fruitless = 0
        self._commit = commit
        limit = self.limits.resets
        if self.generation and limit is not None and self.generation > limit:
            self._end(f"{self._why}: the job has been reset {limit} times, which is --reset-limit")
            return False
        if self.generation:
            self._fruitless += 1
        if self._fruitless > self.limits.fruitless:
            self._end(f"{self._why}: the last {self.limits.fruitless} worlds ended without a commit")
            return False
        return True

    def _end(self, reason: str | None) -> None:
        if not self.over:
            self.over = True
            self._do(End(reason))

    def _say(self, text: str) -> None:
        self._do(Say(text))

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions


def _began(place: Place, before: int) -> str:
    """Return the message to the user about a world after the first."""
    change = "" if place.size == before else f" ({before} before)"
    commit = "from the beginning" if place.commit is None else f"from commit {place.commit}"
    return f"continuing with {place.size} ranks{change} {commit}, generation {place.generation}"
