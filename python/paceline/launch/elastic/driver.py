"""Decides which processes run and which workers form the next world: a state machine without clock or sockets.

Events are methods, which take the time where it matters and return actions. `patience` says when `tick` is due.

- A worker that is killed by a signal, or fails because another did, is replaced in its slot. One that fails by itself
  (an exception, an exit code) would most likely fail again: its slot is closed, and the job continues without it if
  `least` workers are left.
- When a world has ended, the driver waits for its living ranks, and kills those that do not return. The next world
  starts as soon as there are `least` workers; later ones are admitted after a commit.
- Commits are kept in the memory of ranks. When all ranks that hold one are gone, the job has failed.
- Ranks finish together, after a barrier: when one has finished, the training functions of all have returned. From then
  on only the ranks of that world matter. A process that is not one of them is dismissed, whatever it was started for.
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
    Release,
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
        self._lost_hosts: dict[str, str] = {}
        """Hosts on which nothing is started any more, and the reason."""
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
        self._unsynced: set[int] = set()
        """Ranks of the last world that have not said that they have the common state."""
        self._held = False
        """Whether all ranks of a world have had a common state, without which nobody can commit."""
        self._finished = False
        """Whether the last world was the last one: a rank of it has finished."""
        self._lost = ""
        """How the first rank of the last world died, if one has."""
        self._awaited: set[int] = set()
        """Ranks of the last world that have not given their addresses, for which the others wait."""
        self._shortages = 0
        """How often too few slots were offered since the last world began."""
        self._why = ""
        """Reason for the end of the last world."""
        self._death = ""
        """The last."""
        self._actions: list[Action] = []

    # Events

    def offer(self, slots: Iterable[Slot], now: float) -> list[Action]:
        """Allow processes in these slots only, in at most `most` of them at a time."""
        self._slots = list(slots)
        self._close_lost()
        for worker in self._alive():
            if self._finished or worker.dismissed:
                continue
            if worker.slot in self._slots:
                if worker.retired and self._staying() < self.limits.most:
                    worker.retired = False  # its slot was gone for a moment
            elif not worker.retired:
                worker.retired = True
                if worker.state is State.PLACED:
                    self._say(f"{worker.slot} is gone: its rank leaves after the next commit")
        return self._settle(now)

    def requests_place(
        self, number: int, commits: Iterable[int], why: str, now: float, *, done: bool = False
    ) -> list[Action]:
        """Handle a worker that requests a place and holds these commits. `why`: the reason that its world ended.

        `done`: its training function has returned, so it needs no place if the others have finished.
        """
        worker = self.workers.get(number)
        if worker is None or worker.killed:
            return []
        if worker.state is State.PLACED:
            self._ended(why, now)
        worker.state, worker.commits, worker.done = State.WAITING, tuple(commits), done
        return self._settle(now)

    def disconnected(self, number: int, now: float) -> list[Action]:
        """Handle a worker whose connection was cut: if it waits for a place, it must request it again."""
        worker = self.workers.get(number)
        if worker is not None and worker.state is State.WAITING and not worker.killed:
            worker.state = State.STARTED
            if not worker.dismissed:
                worker.deadline = now + self.limits.start_s
        return self._settle(now)

    def gave(self, number: int, now: float) -> list[Action]:
        """Handle a rank that has given its address in a round in which all ranks of the world exchange theirs."""
        if self.intact and not self._awaited:  # the first one in its round
            self._await(now)
        self._awaited.discard(number)
        return self._take()

    def synced(self, number: int) -> list[Action]:
        """Handle a worker that has the common state."""
        self._unsynced.discard(number)
        self._held = self._held or not self._unsynced
        return self._take()

    def finished(self, number: int, now: float) -> list[Action]:
        """Handle a worker that has finished training, as all workers of its world then have."""
        worker = self.workers.get(number)
        if worker is not None and worker.state is State.PLACED:
            self._finish(now)
        return self._settle(now)

    def exited(self, number: int, how: Exit, now: float) -> list[Action]:
        """Handle the end of a worker's process."""
        worker = self.workers.pop(number, None)
        if worker is None:
            return []
        placed, waited, member = worker.state is State.PLACED, worker.state is State.WAITING, self._member(worker)
        worker.state = State.ENDED
        if self.over:
            return self._take()
        if self._finished:
            if member and how.code:
                self._end(f"{how.words}, after other ranks had finished")
        elif how.code == 0 and (placed or (member and (waited or self.generation == 0) and not worker.retired)):
            self._why = self._why or how.words
            self._finish(now)
        else:
            if member and self.generation and how.code and not worker.dismissed:
                self._lost = self._lost or how.words
            if placed:
                self._ended(how.words, now)
            if not worker.retired:
                self._died(worker, how)
        return self._settle(now)

    def lost(self, host: str, why: str, now: float) -> list[Action]:
        """Handle a host on which nothing can be started any more, whether anything runs there or not."""
        if not self.over and not self._finished:
            self._close(host, why)
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        """Handle the passing of time."""
        for worker in list(self._alive()):
            if worker.killed or now < worker.deadline or not self._due(worker):
                continue
            if worker.dismissed:
                self._kill(worker, f"has not left within {self.limits.start_s:g} s")
            elif worker.state is State.STARTED:
                self._kill(worker, f"has not asked for its place within {self.limits.start_s:g} s (hvd.init())")
            elif self.intact:
                self._kill(worker, f"has not met the other ranks within {self.limits.start_s:g} s")
            else:
                self._kill(worker, f"has not come back within {self.limits.return_s:g} s after its world ended")
        if self._short_until is not None and now >= self._short_until and not self._finished:
            usable = len(self._usable())
            have = "has" if usable == 1 else "have"
            self._end(
                f"{count(usable, 'slot')} {have} been offered for {self.limits.start_s:g} s, and "
                f"--min-np is {self.limits.least}",
                f"--min-np {max(1, usable)}, or hosts with more slots",
            )
        return self._settle(now)

    def patience(self) -> float | None:
        """Return when `tick` is due next; None if only an event can change the state."""
        due = [worker.deadline for worker in self._alive() if not worker.killed and self._due(worker)]
        if self._short_until is not None and not self._finished:
            due.append(self._short_until)
        return min(due, default=None)

    def _due(self, worker: Worker) -> bool:
        """Return whether the worker has a deadline."""
        if worker.state is State.PLACED:
            # Once ranks have finished, those of their world take as long as they like.
            return not self._finished and (not self.intact or worker.number in self._awaited)
        return worker.dismissed or worker.state is State.STARTED

    def abandon(self, reason: str) -> list[Action]:
        """End the job."""
        self._end(reason, "ping HOST (are the hosts up?)")
        return self._take()

    # Decisions

    def _alive(self) -> Iterable[Worker]:
        return self.workers.values()

    def _staying(self) -> int:
        return sum(not worker.retired for worker in self._alive())

    def _in(self, state: State) -> list[Worker]:
        return [worker for worker in self._alive() if worker.state is state]

    def _member(self, worker: Worker) -> bool:
        """Return whether the worker is a rank of the last world; before the first, all workers are."""
        return worker.generation == self.generation

    def _await(self, now: float) -> None:
        """All ranks of the world are to give their addresses."""
        placed = self._in(State.PLACED)
        self._awaited = {worker.number for worker in placed}
        for worker in placed:
            worker.deadline = now + self.limits.start_s

    def _finish(self, now: float) -> None:
        """No world follows the last one. Dismiss the processes that are not of it."""
        if self._finished:
            return
        self._finished = True
        if self._lost:
            self._end(f"{self._lost}, as other ranks finished")
        for worker in self._alive():
            worker.retired = worker.retired or not self._member(worker)

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

    def _dismiss(self, now: float) -> None:
        """Tell processes that are to leave, and are needed no more, to do so."""
        stays = any(worker.commits for worker in self._alive() if not worker.retired)
        for worker in list(self._alive()):
            if not worker.retired or worker.dismissed or worker.killed or worker.state is State.PLACED:
                continue
            if self.generation and self._member(worker):
                if self._finished or (worker.done and self._in(State.PLACED)):
                    continue  # its world is the last one, or may turn out to be
                if self._held and worker.commits and not stays:
                    continue  # nobody else holds the state: it gives it to those who stay
            worker.dismissed = True
            worker.deadline = now + self.limits.start_s
            self._do(Retire(worker.number))

    def _usable(self) -> list[Slot]:
        return [slot for slot in self._slots if slot not in self._closed]

    def _died(self, worker: Worker, how: Exit) -> None:
        slot = worker.slot
        self._death = how.words
        self._deaths[slot] += 1
        if how.host_lost:
            self._close(slot.host, how.words)
        elif how.code == 0:
            self._closed[slot] = how.words
            self._say(f"{how.words} before it had a place; it is not restarted")
        elif how.code > 0 and not how.follows and not worker.killed:
            self._closed[slot] = how.words
            self._say(f"{how.words}; it is not restarted, because it would most likely fail again")
        elif self._deaths[slot] >= self.limits.fruitless:
            self._closed[slot] = f"{how.words}, the {self._deaths[slot]}th time without a commit"
            self._say(f"{self._closed[slot]}; it is not replaced any more")
        else:
            self._say(f"{how.words}; it is replaced")

    def _close(self, host: str, why: str) -> None:
        """Start nothing on this host any more."""
        if host not in self._lost_hosts:
            self._lost_hosts[host] = why
            self._say(f"{why}; nothing more is started there")
        self._close_lost()

    def _close_lost(self) -> None:
        for slot in self._slots:
            if slot.host in self._lost_hosts:
                self._closed.setdefault(slot, self._lost_hosts[slot.host])

    def _settle(self, now: float) -> list[Action]:
        """Start missing processes, and form a world if possible; or see the last one through."""
        if not self.over and self._finished:
            self._see_through()
        elif not self.over:
            self._start(now)
            self._check(now)
            if not self.over:
                self._form(now)
        if not self.over:
            self._dismiss(now)
        return self._take()

    def _see_through(self) -> None:
        """Release the ranks of the last world that ask for another one; end the job when none is left."""
        members = [worker for worker in self._alive() if self._member(worker)]
        for worker in members:
            if worker.state is State.WAITING and not worker.killed and not worker.dismissed:
                if not worker.done:
                    self._end(
                        f"a rank ended before others had finished; {self._why}" if self._why else "a rank ended early"
                    )
                    return
                worker.state = State.PLACED
                self._do(Release(worker.number))
        if not members:
            self._end(None)

    def _start(self, now: float) -> None:
        if self._next == 0 and len(self._usable()) < self.limits.least:
            return  # a single process could end before the others have room
        taken = {worker.slot for worker in self._alive()}
        for slot in self._slots:
            # Those that are to leave do not count: they may wait for others, to whom they give the state.
            if slot not in taken and slot not in self._closed and self._staying() < self.limits.most:
                worker = Worker(self._next, slot, now + self.limits.start_s)
                self._next += 1
                self.workers[worker.number] = worker
                self._do(Start(worker.number, slot))

    def _check(self, now: float) -> None:
        """Check whether the job can continue."""
        usable = self._usable()
        if len(usable) >= self.limits.least:
            self._short_until = None
            self._shortages = 0 if self.intact else self._shortages
        elif len(self._slots) >= self.limits.least:
            why = [why for slot, why in self._closed.items() if slot in self._slots][-1]
            left = f"{count(len(usable), 'slot')} left, and --min-np is {self.limits.least}"
            self._end(f"{why}; {left}", "the output of that rank, or a smaller --min-np")
        elif self._short_until is None:
            self._short_until = now + self.limits.start_s
            self._shortages += 1
            offered = f"{count(len(usable), 'slot')} {'is' if len(usable) == 1 else 'are'} offered"
            if self._shortages >= self.limits.fruitless:
                self._end(
                    f"{offered}, and --min-np is {self.limits.least}: too few {self._shortages} times without a world "
                    "between",
                    "hosts that stay longer than ranks take to start, or a smaller --min-np",
                )
            elif self._next:
                self._say(f"{offered}, and --min-np is {self.limits.least}: waiting {self.limits.start_s:g} s for more")
        lost = self._held and not self.intact and not self._in(State.PLACED)
        if lost and not any(worker.commits for worker in self._alive()):
            self._end(
                f"all ranks that held the last commit have died, the last: {self._death or self._why}; "
                "commits live in their memory",
                "the same command again, from a checkpoint of the script",
            )

    def _form(self, now: float) -> None:
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
        if any(not worker.retired and self._member(worker) for worker in self._in(State.STARTED)):
            return  # at the start the driver waits for all; later for those whose connection was cut
        waiting = self._with_state(waiting)
        commit = agreed(waiting)
        if commit is None and self._held:
            return  # whoever holds the state is about to die or to come back
        if not self._may_reset(commit):
            return
        self.generation += 1
        placed = places(waiting, self._ranks, self.generation)
        self._ranks = {worker.slot: place.rank for worker, place in placed}
        if self.generation > 1:
            self._say(_began(placed[0][1], self._size))
        self._size = len(placed)
        self.intact, self._notified = True, False
        self._lost, self._shortages = "", 0
        self._unsynced = {worker.number for worker, _ in placed}
        for worker, place in placed:
            worker.state, worker.generation = State.PLACED, self.generation
            self._do(Give(worker.number, place))
        self._await(now)

    def _with_state(self, waiting: list[Worker]) -> list[Worker]:
        """Return the ranks of the next world: those that stay, and if none of them has the state, one that leaves.

        With `--max-np 1` that is a rank too many until the next commit: nobody else can give the state.
        """
        if not self._held or any(worker.commits for worker in waiting):
            return waiting
        leaving = [worker for worker in self._in(State.WAITING) if worker.commits and not worker.dismissed]
        return waiting[: max(1, self.limits.most - 1) if leaving else None] + leaving[:1]

    def _may_reset(self, commit: int | None) -> bool:
        if commit is not None and (self._commit is None or commit > self._commit):
            self._deaths.clear()
            self._fruitless = 0
        self._commit = commit
        limit = self.limits.resets
        if self.generation and limit is not None and self.generation > limit:
            reset = f"the job has been reset {limit} times, which is --reset-limit"
            self._end(f"{self._why}: {reset}", f"--reset-limit {2 * limit or 1}")
            return False
        if self.generation:
            self._fruitless += 1
        if self._fruitless > self.limits.fruitless:
            fruitless = f"the last {self.limits.fruitless} worlds ended without a commit"
            self._end(f"{self._why}: {fruitless}", "state.commit() more often, or the output of that rank")
            return False
        return True

    def _end(self, reason: str | None, remedy: str | None = "the output of that rank above") -> None:
        if not self.over:
            self.over = True
            self._do(End(reason, None if reason is None else remedy))

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
    return f"continuing with {place.size} ranks{change} {commit}, world {place.generation}"
