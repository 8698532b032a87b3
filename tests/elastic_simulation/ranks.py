"""Virtual ranks: the real loop and membership around a model of training and of its collectives.

What a rank has learned is the list of (generation, step) that led to it, so that a state that is lost or mixed shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import greenlet
from paceline.errors import JobError
from paceline.job import elastic_loop
from paceline.job.elastic_commits import Commits
from paceline.job.elastic_loop import WorldChange
from paceline.job.elastic_member import ADDRESS, WORKER, Membership

from elastic_simulation.system import Network, Virtual
from elastic_simulation.world import Task, World

LIMIT_S = 30.0
"""PACELINE_TIMEOUT."""
MEET_S = 20.0


@dataclass
class Plan:
    """What the script of all ranks does."""

    steps: int = 6
    every: int = 1
    """Steps between two commits."""
    start_s: float = 1.0
    """From the start of a process to `hvd.init()`."""
    late: dict[int, float] = field(default_factory=dict)
    """The same for some workers."""
    step_s: float = 0.2
    after_s: float = 2.0
    """What a rank does when training has ended, such as saving the model."""


class Ledger:
    """What nobody in the job knows as a whole: who has committed what, and who has finished."""

    def __init__(self, world: World) -> None:
        """Nothing has happened."""
        self.world = world
        self.violations: list[str] = []
        self.committed: tuple[Any, ...] | None = None
        """The last state that all ranks of a world have committed."""
        self.finished: set[int] = set()
        """Generations of which a rank has got through the end of training."""

    def violated(self, what: str) -> None:
        """Record a violation of an invariant."""
        self.violations.append(what)
        self.world.note(f"VIOLATION {what}")


class Meeting:
    """The collectives of one world."""

    def __init__(self, world: World, ledger: Ledger, generation: int, size: int) -> None:
        """`size` ranks are to come."""
        self.world, self.ledger, self.generation, self.size = world, ledger, generation, size
        self.ranks: dict[int, Process] = {}
        self.notices: dict[int, str] = {}
        """What each rank knows of the first failure in this world."""
        self._calls: dict[int, int] = {}
        self._arrived: dict[tuple[str, int], dict[int, Any]] = {}
        self._done: dict[tuple[str, int], set[int]] = {}

    def call(self, rank: int, name: str, value: Any, limit_s: float = LIMIT_S) -> list[Any]:
        """Exchange values with all ranks. Some may get through and others not. Raises JobError."""
        number = self._calls.get(rank, 0)
        self._calls[rank] = number + 1
        key = (name, number)
        arrived, done = self._arrived.setdefault(key, {}), self._done.setdefault(key, set())
        if rank in self.notices:
            raise JobError(self.notices[rank])
        arrived[rank] = value
        if len(arrived) == self.size:
            for each in arrived:
                self._complete(each, done)
        task, until = self.ranks[rank].task, self.world.now + limit_s
        while True:
            if rank in done:
                return [arrived[each] for each in sorted(arrived)]
            if rank in self.notices:
                raise JobError(self.notices[rank])
            if self.world.now >= until:
                missing = [each for each in range(self.size) if each not in arrived] or ["one that is silent"]
                raise JobError(f"{name} has waited {limit_s:g} s for rank {missing[0]}")
            task.wait(until)

    def _complete(self, rank: int, done: set[int]) -> None:
        def complete() -> None:
            blocked = max(process.system.blocked_until for process in self.ranks.values())
            if any(process.task.stopped for process in self.ranks.values()):
                blocked = max(blocked, self.world.now + 0.5)
            if blocked > self.world.now:
                self.world.after(blocked - self.world.now, complete)
            elif rank not in self.notices:
                done.add(rank)
                self.world.note(f"rank {rank} of world {self.generation} gets through")
                self.ranks[rank].task.wake()

        self.world.after(self.world.delay(), complete)

    def gone(self, rank: int, words: str) -> None:
        """A rank has died or left: the others learn it, each in its time."""
        process = self.ranks.get(rank)
        if process is None:
            return
        for each, other in list(self.ranks.items()):
            if each != rank:
                self.world.after(self.world.delay(), lambda each=each, other=other: self._hear(each, other, words))

    def _hear(self, rank: int, process: Process, words: str) -> None:
        self.world.note(f"rank {rank} of world {self.generation} hears that {words}")
        self.notices.setdefault(rank, words)
        process.task.wake()

    def join(self, rank: int, process: Process) -> None:
        """Wait for all ranks. Raises JobError."""
        self.ranks[rank] = process
        process.meetings.append((self, rank))
        self.call(rank, "join", None, MEET_S)


class Process:
    """A worker's process."""

    def __init__(self, here: Here, slot: str, environment: dict[str, str], ended: Callable[[Process], None]) -> None:
        """`ended` is called when it is over."""
        self.here, self.slot, self.environment, self._ended = here, slot, environment, ended
        self.world, self.ledger = here.world, here.ledger
        self.number = int(environment[WORKER])
        self.pid = 100 + self.number
        self.code: int | None = None
        self.reason: str | None = None
        self.follows = False
        self.hangs = False
        """It starts and never asks for a place."""
        self.raises = False
        """Its next step raises an exception of the script."""
        self.leaves = False
        """Its next step ends the process with exit code 0."""
        self.finished = False
        self.place: Any = None
        self.state: tuple[Any, ...] = ()
        self.held = Commits()
        self.meetings: list[tuple[Meeting, int]] = []
        self.faults: set[str] = set()
        """What was done to it."""
        self.task = Task(self.world, f"worker {self.number}", self._main)
        self.system = Virtual(self.world, here.network, lambda: self.task)

    @property
    def name(self) -> str:
        return f"worker {self.number} in {self.slot}"

    # The process

    def _main(self) -> None:
        code, reason, follows = 0, None, False
        try:
            self._script()
        except SystemExit as error:
            code = int(error.code or 0)
        except JobError as error:
            code, reason, follows = 1, f"JobError: {error}", True
        except ValueError as error:
            code, reason = 1, f"ValueError: {error}"
            if not self.raises:
                self.ledger.violated(f"{self.name} raised {reason}")
        except greenlet.GreenletExit:
            raise
        except BaseException as error:  # a bug of what is simulated
            code = 1
            self.ledger.violated(f"{self.name} raised {type(error).__name__}: {error}")
        # In the hub: what follows may kill others.
        self.world.after(0.0, lambda: self.end(code, reason, follows=follows))

    def end(self, code: int, reason: str | None = None, *, follows: bool = False) -> None:
        """End it, from the hub."""
        if self.code is not None:
            return
        self.code, self.reason, self.follows = code, reason, follows
        self.world.note(f"{self.name} ends with {code}{f' ({reason})' if reason else ''}")
        self.task.kill()
        words = f"rank of worker {self.number} has left the job" if code >= 0 else f"rank of worker {self.number} died"
        for meeting, rank in self.meetings:
            meeting.gone(rank, words)
        self.system.close()
        self._ended(self)

    def _script(self) -> None:
        plan = self.here.plan
        self.system.sleep(plan.late.get(self.number, plan.start_s))
        while self.hangs:
            self.system.sleep(1000.0)
        environment = self.environment
        self.member = Membership(
            environment[ADDRESS],
            self.number,
            self.here.secret,
            environment["PACELINE_RUN_ID"],
            system=self.system,
        )
        elastic_loop.train(self.member, self)
        self.finished = True
        self.world.note(f"{self.name} has finished")
        self.system.sleep(plan.after_s)

    # What the loop calls

    def join(self) -> None:
        self._join()
        commit = self.place.commit
        if commit is not None and self.held.back_to(commit):
            self.state = self.held.last()

    def _join(self) -> None:
        def join() -> None:
            place = self.member.place
            assert place is not None
            result = self.member.exchange(f"address of {place.rank}".encode())
            if result != [f"address of {rank}".encode() for rank in range(place.size)]:
                self.ledger.violated(f"{self.name} got the addresses {result}")
            self.here.meeting(place).join(place.rank, self)

        elastic_loop.join_world(self.member, join)
        self.place = self.member.place
        self.here.has_joined(self)
        self.world.note(f"{self.name} is rank {self.place.rank} of {self.place.size} in world {self.place.generation}")

    def synchronize(self) -> None:
        if self.place is None:
            self._join()
        place = self.place
        if place.rank == 0 and place.commit is not None and place.commit not in self.held.numbers:
            self.ledger.violated(f"{self.name} is rank 0 and has not commit {place.commit}")
        self.state = self._call("sync", self.state)[0]
        committed = self.ledger.committed
        if committed is not None and self.state[: len(committed)] != committed:
            self.ledger.violated(f"{self.name} trains from {self.state}, and {committed} was committed by all")
        self.held.adopt(0 if place.commit is None else place.commit, self.state)
        self.member.commits = self.held.numbers
        self.member.synced()

    def train(self) -> None:
        plan = self.here.plan
        while len(self.state) < plan.steps:
            self.system.sleep(plan.step_s * (1.0 if self.world.calm else 0.5 + self.world.random.random()))
            if self.raises:
                raise ValueError("no such file")
            if self.leaves:
                raise SystemExit(0)
            step = (self.place.generation, len(self.state))
            together = self._call("step", (step, self.state))
            if any(other != together[0] for other in together):
                self.ledger.violated(f"ranks of world {step[0]} step from different states: {together}")
            self.state = (*self.state, step)
            if len(self.state) % plan.every == 0:
                self.commit()

    def commit(self) -> None:
        self.held.add(self.state)
        self.check()

    def check(self) -> None:
        answer = self._call("check", (self.member.updated(), self.state))
        self.here.has_committed(self)
        self.ledger.committed = max(self.ledger.committed or (), self.state, key=len)
        if any(updated for updated, _ in answer):
            raise WorldChange

    def wait_for_all(self) -> None:
        if self.place.size > 1:
            self._call("end", None)
        self.ledger.finished.add(self.place.generation)
        self.world.note(f"training has ended for {self.name} in world {self.place.generation}")

    def _call(self, name: str, value: Any) -> list[Any]:
        return self.here.meeting(self.place).call(self.place.rank, name, value)

    def commits(self) -> list[int]:
        return self.held.numbers

    def leave(self) -> None:
        self.here.meeting(self.place).gone(self.place.rank, f"rank {self.place.rank} has left the job")


class Here:
    """What all processes share: the script, the network, and the meetings."""

    def __init__(self, world: World, network: Network, plan: Plan, secret: str) -> None:
        """Nobody is there yet."""
        self.world, self.network, self.plan, self.secret = world, network, plan, secret
        self.ledger = Ledger(world)
        self.processes: dict[int, Process] = {}
        self.has_committed: Callable[[Process], None] = lambda process: None
        """Called when a commit of all ranks is known to one."""
        self.has_joined: Callable[[Process], None] = lambda process: None
        """Called when a rank has met the others of its world."""
        self._meetings: dict[int, Meeting] = {}

    def meeting(self, place: Any) -> Meeting:
        """Return the meeting of a world."""
        made = Meeting(self.world, self.ledger, place.generation, place.size)
        return self._meetings.setdefault(place.generation, made)
