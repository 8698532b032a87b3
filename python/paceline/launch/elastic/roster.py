"""What the driver knows of slots and workers, and the actions it requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, order=True)
class Slot:
    """Where one process may run: a host has several, counted from 0."""

    host: str
    number: int

    def __str__(self) -> str:
        """Return `slot 1 of node2`."""
        return f"slot {self.number} of {self.host}"


class State(Enum):
    """The state of a worker."""

    STARTED = "started"
    """It has not asked for a place yet."""
    WAITING = "waiting"
    """It has asked, and has none."""
    PLACED = "placed"
    """It is a rank of the last world."""
    ENDED = "ended"


@dataclass
class Worker:
    """One process."""

    number: int
    slot: Slot
    deadline: float
    """By then it asks for a place (if it has none), or asks again (if its world has ended)."""
    state: State = State.STARTED
    commits: tuple[int, ...] = ()
    """Numbers of the commits that it can go back to, the last one last."""
    killed: bool = False
    """Somebody has been asked to kill it."""
    retired: bool = False
    """It has been told to leave, for its slot is gone."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A worker's place in a world."""

    generation: int
    rank: int
    size: int
    local_rank: int
    """Among the ranks of its host."""
    local_size: int
    node: int
    """Its host's number."""
    nodes: int
    commit: int | None
    """To which all go back that hold it; rank 0 does, and gives it to the others. None: nobody has committed."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int
    """Negative for a signal."""
    words: str
    """`rank 1 (pid 7) was killed by SIGKILL`, for people."""
    follows: bool = False
    """It failed because another rank had."""
    host_lost: bool = False
    """With its host, on which nothing can be started any more."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a job."""

    least: int
    """Fewer ranks are no world (`--min-np`)."""
    most: int
    """More are not started (`--max-np`)."""
    resets: int | None = None
    """So many worlds may follow the first (`--reset-limit`)."""
    start_s: float = 60.0
    """Within this a process that was started asks for a place."""
    return_s: float = 40.0
    """Within this a rank asks again whose world has ended."""
    fruitless: int = 5
    """So many worlds in a row, or deaths in one slot, without a commit are too many."""


# Actions that the driver requests.


@dataclass(frozen=True)
class Start:
    """Start a process in the worker's slot."""

    worker: int
    slot: Slot


@dataclass(frozen=True)
class Kill:
    """Kill the worker's process with SIGKILL, which also ends a suspended one."""

    worker: int


@dataclass(frozen=True)
class Give:
    """Tell the worker its place."""

    worker: int
    place: Place


@dataclass(frozen=True)
class Notify:
    """Tell the worker that processes are to join or leave: it asks again after its next commit."""

    worker: int


@dataclass(frozen=True)
class Retire:
    """Tell the worker to leave."""

    worker: int


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class End:
    """The job is over; stop what still runs. Without a reason it succeeded."""

    reason: str | None


Action = Start | Kill | Give | Notify | Retire | Say | End
