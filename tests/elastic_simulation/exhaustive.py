"""The driver with every order of messages: two ranks, one death and one late request, exhaustively.

Messages of a worker keep their order; those of different workers, the ends of processes, and what ranks do among
themselves come in any. A state is visited once. There is no clock: time limits are the random search's.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.job.elastic_commits import Commits
from paceline.launch.elastic.driver import Driver
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
    Slot,
    Start,
)

_STEPS = 2
"""Commits that a training makes."""


@dataclass(frozen=True)
class Rank:
    """A worker's process."""

    phase: str = "starting"
    place: Place | None = None
    step: int = 0
    """Of the collectives of its world."""
    state: tuple[Any, ...] = ()
    commits: tuple[tuple[int, tuple[Any, ...]], ...] = ()
    done: bool = False
    updated: bool = False
    out: tuple[tuple[Any, ...], ...] = ()
    """Messages on their way to the driver."""
    inbox: tuple[Any, ...] = ()
    """And from it."""


@dataclass
class State:
    """Everything."""

    driver: Driver
    ranks: dict[int, Rank] = field(default_factory=dict)
    """Living ones."""
    exits: tuple[tuple[int, int], ...] = ()
    """Ends of processes that the driver does not know of."""
    deaths: int = 1
    """How many are still to come."""
    committed: tuple[Any, ...] | None = None
    arrived: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """Workers that have arrived at each collective of each world."""
    sent: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """What rank 0 of each world gives to the others."""
    gone: frozenset[tuple[int, int]] = frozenset()
    """Worlds, and workers that have left them or have died."""
    members: dict[int, frozenset[int]] = field(default_factory=dict)
    """Workers of each world."""
    finished: frozenset[int] = frozenset()
    """Worlds whose end a rank has got through."""
    dead: frozenset[int] = frozenset()
    """Workers that were killed."""
    end: tuple[str | None] | None = None
    violation: str = ""

    def copy(self) -> State:
        """Return one that changes by itself."""
        other = copy.copy(self)
        other.driver = copied(self.driver)
        other.ranks, other.arrived, other.sent = dict(self.ranks), dict(self.arrived), dict(self.sent)
        other.members = dict(self.members)
        return other

    def key(self) -> Any:
        """Return what makes it different from others."""
        driver = tuple(
            (name, tuple(sorted(map(_worker, value.values()))) if name == "workers" else _frozen(value))
            for name, value in vars(self.driver).items()
            if name not in ("limits", "_actions", "_why", "_death", "_lost")
        )
        return (
            driver,
            bool(self.driver._lost),
            tuple(sorted(self.ranks.items(), key=lambda item: item[0])),
            self.exits,
            self.deaths,
            self.committed,
            _frozen(self.arrived),
            _frozen(self.sent),
            self.gone,
            self.finished,
            self.dead,
            self.end,
        )


def copied(driver: Driver) -> Driver:
    """Return a copy of a driver."""
    other = copy.copy(driver)
    for name, value in vars(driver).items():
        if isinstance(value, dict | list | set | Counter):
            setattr(other, name, copy.copy(value))
    other.workers = {number: copy.copy(worker) for number, worker in driver.workers.items()}
    return other


def _worker(worker: Any) -> tuple[Any, ...]:
    flags = (worker.done, worker.killed, worker.retired, worker.dismissed)
    return (worker.number, worker.slot, worker.state.value, worker.commits, worker.generation, *flags)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(((key, _frozen(each)) for key, each in value.items()), key=repr))
    if isinstance(value, list):
        return tuple(value)
    return frozenset(value) if isinstance(value, set) else value


@dataclass
class Reached:
    """What an exploration has reached."""

    states: int = 0
    steps: int = 0
    violations: list[list[str]] = field(default_factory=list)
    """Each with the steps that lead to it."""


def explore(ranks: int = 2, deaths: int = 1, most_states: int = 2_000_000) -> Reached:
    """Visit all states, for every `--min-np`; stop at the first violation for each."""
    reached = Reached()
    for least in range(1, ranks + 1):
        first = State(Driver(Limits(least=least, most=ranks)), deaths=deaths)
        _carry_out(first, first.driver.offer([Slot("a", number) for number in range(ranks)], 0.0))
        _explore(first, reached, most_states)
    return reached


def _explore(first: State, reached: Reached, most_states: int) -> None:
    seen = {first.key()}
    todo: list[tuple[State, Any]] = [(first, None)]
    while todo:
        state, path = todo.pop()
        some = False
        for words, following in _next(state):
            some = True
            reached.steps += 1
            if following.violation:
                reached.violations.append([*_path((words, path)), following.violation])
                return
            key = following.key()
            if key not in seen:
                seen.add(key)
                reached.states += 1
                assert reached.states < most_states, "the small world is not small"
                todo.append((following, (words, path)))
        if not some and state.end is None:
            reached.violations.append([*_path(path), f"nothing can happen any more: {state.ranks}"])
            return


def _path(path: Any) -> list[str]:
    words: list[str] = []
    while path is not None:
        words.append(path[0])
        path = path[1]
    return words[::-1]


def _next(state: State) -> Iterator[tuple[str, State]]:
    """Return everything that may happen next."""
    if state.end is not None:
        return
    for number, rank in state.ranks.items():
        if state.deaths:
            following = state.copy()
            following.deaths -= 1
            following.dead |= {number}
            _die(following, number, -9)
            yield f"worker {number} dies", following
        if rank.out:
            following = state.copy()
            following.ranks[number] = replace(rank, out=rank.out[1:])
            _hear(following, number, rank.out[0])
            yield f"the driver hears {rank.out[0]} of worker {number}", following
        yield from _moves(state, number, rank)
    for number, code in state.exits:
        following = state.copy()
        following.exits = tuple(each for each in state.exits if each != (number, code))
        words = "" if code == 0 else "killed"
        _carry_out(following, following.driver.exited(number, Exit(code=code, words=f"worker {number} {words}"), 0.0))
        yield f"the driver hears that worker {number} has ended with {code}", following


def _hear(state: State, number: int, message: tuple[Any, ...]) -> None:
    kind, *more = message
    driver = state.driver
    if kind == "ask":
        commits, done = more
        _carry_out(state, driver.requests_place(number, commits, "JobError", 0.0, done=done))
    elif kind == "synced":
        _carry_out(state, driver.synced(number))
        if number in state.ranks:
            _put(state, number, "heard")
    else:
        _carry_out(state, driver.finished(number, 0.0))
        if number in state.ranks:
            _put(state, number, "heard")


def _put(state: State, number: int, message: Any) -> None:
    if number in state.ranks:
        rank = state.ranks[number]
        state.ranks[number] = replace(rank, inbox=(*rank.inbox, message))


def _carry_out(state: State, actions: list[Action]) -> None:
    placed = {action.worker: action.place for action in actions if isinstance(action, Give)}
    if placed:
        world = next(iter(placed.values())).generation
        state.members[world] = frozenset(placed)
        state.gone |= {(world, worker) for worker in placed if worker not in state.ranks}
    for action in actions:
        match action:
            case Start(worker, _):
                state.ranks[worker] = Rank()
            case Kill(worker):
                _die(state, worker, -9)
            case Give(worker, place):
                _put(state, worker, place)
            case Notify(worker):
                if worker in state.ranks:
                    state.ranks[worker] = replace(state.ranks[worker], updated=True)
            case Retire(worker):
                if worker in state.ranks and state.ranks[worker].phase == "starting":
                    _die(state, worker, -9)  # it is not connected
                else:
                    _put(state, worker, "retire")
            case Release(worker):
                _put(state, worker, "release")
            case End(reason):
                state.end = (reason,)
                _judge(state, reason)
            case _:
                pass


def _judge(state: State, reason: str | None) -> None:
    last = max(state.finished, default=None)
    if reason is None:
        if last is None:
            state.violation = "the job succeeds, and nobody has finished"
        elif state.members[last] & state.dead:
            state.violation = "the job succeeds, and a rank of its last world has died"
    elif last is not None:
        if not state.members[last] & state.dead:
            state.violation = f"training has ended, and the job fails: {reason}"
    else:
        holds = [number for number, rank in state.ranks.items() if rank.commits]
        if not holds and state.committed is None and not state.driver._held:
            state.violation = f"nothing was lost, and the job fails: {reason}"
        elif any(len(state.ranks[number].commits[-1][1]) >= len(state.committed or ()) for number in holds):
            state.violation = f"workers {holds} hold the state, and the job fails: {reason}"


def _die(state: State, number: int, code: int) -> None:
    rank = state.ranks.pop(number, None)
    if rank is not None:
        state.gone |= {(world, number) for world, members in state.members.items() if number in members}
        state.exits = (*state.exits, (number, code))
        # What it said before counts, if it arrives: the service reads it before it hears of the end.
        for message in rank.out:
            if code == 0:
                _hear(state, number, message)


def _moves(state: State, number: int, rank: Rank) -> Iterator[tuple[str, State]]:
    """Return what a worker may do next."""

    def becomes(**fields: Any) -> State:
        following = state.copy()
        following.ranks[number] = replace(rank, **fields)
        return following

    def asks(done: bool) -> State:
        numbers = tuple(at for at, _ in rank.commits)
        following = becomes(phase="waiting", out=(*rank.out, ("ask", numbers, done)), done=done)
        if not done and rank.place is not None:
            following.gone |= {(rank.place.generation, number)}
        return following

    if rank.phase == "starting":
        yield f"worker {number} asks", asks(False)
        return
    if rank.phase == "saving":
        following = state.copy()
        _die(following, number, 0)
        yield f"worker {number} ends", following
        return
    if rank.phase in ("waiting", "synced", "finishing"):
        if rank.inbox:
            yield from _receives(state, number, rank)
        return
    place = rank.place
    assert place is not None
    world, members = place.generation, state.members[place.generation]
    at = (world, rank.step)
    if number not in state.arrived.get(at, frozenset()):
        following = state.copy()
        following.arrived[at] = following.arrived.get(at, frozenset()) | {number}
        commits = rank.commits
        if rank.phase == "check":
            held = Commits()
            held._held = dict(commits)
            held.add(rank.state)
            commits = tuple(held._held.items())
        if rank.phase == "sync" and place.rank == 0:
            following.sent[world] = rank.state
        following.ranks[number] = replace(rank, commits=commits)
        yield f"worker {number} arrives at {rank.phase} {at}", following
        return
    if state.arrived[at] == members:
        yield f"worker {number} gets through {rank.phase} {at}", _through(state, number, rank)
    if any((world, other) in state.gone for other in members if other != number):
        yield f"{rank.phase} {at} fails on worker {number}", asks(rank.phase == "end")


def _receives(state: State, number: int, rank: Rank) -> Iterator[tuple[str, State]]:
    message, rest = rank.inbox[0], rank.inbox[1:]
    following = state.copy()
    if message == "heard":
        phase = "check" if rank.phase == "synced" else "saving"
        if rank.phase == "synced" and len(rank.state) >= _STEPS:
            phase = "end"
        following.ranks[number] = replace(rank, phase=phase, inbox=rest, step=rank.step + (phase == "end"))
        if phase == "check":
            following.ranks[number] = _trains(following.ranks[number])
    elif message == "retire":
        _die(following, number, 0)
    elif message == "release":
        following.ranks[number] = replace(rank, phase="saving", inbox=rest)
    else:
        if rank.done and rank.place is not None:  # it stayed in its world until it knew of another
            following.gone |= {(rank.place.generation, number)}
        commits = tuple(each for each in rank.commits if message.commit is not None and each[0] <= message.commit)
        held = dict(commits).get(message.commit)
        state_of = held if held is not None else ()
        if message.rank == 0 and message.commit is not None and held is None:
            following.violation = f"worker {number} is rank 0 and has not commit {message.commit}"
        following.ranks[number] = replace(
            rank,
            phase="sync",
            place=message,
            step=0,
            state=state_of,
            commits=commits,
            done=False,
            updated=False,
            inbox=rest,
        )
    yield f"worker {number} hears {message}", following


def _trains(rank: Rank) -> Rank:
    assert rank.place is not None
    return replace(rank, phase="check", state=(*rank.state, rank.place.generation), step=rank.step + 1)


def _through(state: State, number: int, rank: Rank) -> State:
    following = state.copy()
    place = rank.place
    assert place is not None
    members = state.members[place.generation]
    if rank.phase == "sync":
        result = state.sent[place.generation]
        if state.committed is not None and result[: len(state.committed)] != state.committed:
            following.violation = f"worker {number} trains from {result}, and {state.committed} was committed by all"
        following.ranks[number] = replace(
            rank, phase="synced", state=result, commits=((place.commit or 0, result),), out=(*rank.out, ("synced",))
        )
    elif rank.phase == "check":
        if state.committed is None or len(rank.state) > len(state.committed):
            following.committed = rank.state
        updated = any(state.ranks[each].updated for each in members if each in state.ranks)
        if updated:
            numbers = tuple(at for at, _ in rank.commits)
            following.ranks[number] = replace(rank, phase="waiting", out=(*rank.out, ("ask", numbers, False)))
            following.gone |= {(place.generation, number)}
        elif len(rank.state) >= _STEPS:
            following.ranks[number] = replace(rank, phase="end", step=rank.step + 1)
        else:
            following.ranks[number] = _trains(rank)
    else:
        following.finished |= {place.generation}
        following.ranks[number] = replace(rank, phase="finishing", out=(*rank.out, ("finished",)))
    return following
