"""The driver's data about slots and workers, and the actions that it requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from paceline.settings.table import LEAST_START_S


@dataclass(frozen=True, order=True)
class Slot:
    """A place for one process; the slots of a host are numbered from 0."""

    host: str
    number: int

    def __str__(self) -> str:
        """Return `slot 1 of node2`."""
        return f"slot {self.number} of {self.host}"


class State(Enum):
    """The state of a worker."""

    STARTED = "started"
    """It has not requested a place yet, or its connection was cut while it waited for one."""
    WAITING = "waiting"
    """It has requested a place and has none."""
    PLACED = "placed"
    """It is a rank of the last world."""
    ENDED = "ended"


@dataclass
class Worker:
    """A worker process."""

    number: int
    slot: Slot
    deadline: float
    """The deadline for what it does next: request a place, meet the other ranks, or leave."""
    state: State = State.STARTED
    commits: tuple[int, ...] = ()
    """Numbers of the commits that it holds, the latest last."""
    generation: int = 0
    """The last world in which it was a rank; 0 before the first."""
    done: bool = False
    """It waits for a place although its training function has returned: the world failed as its ranks said so."""
    killed: bool = False
    """Its kill has been requested."""
    retired: bool = False
    """It is to leave, because its slot is gone or training has ended without it."""
    dismissed: bool = False
    """It was told to leave."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A worker's place in a world."""

    generation: int
    rank: int
    size: int
    local_rank: int
    """Rank on its host."""
    local_size: int
    node: int
    """Number of its host."""
    nodes: int
    commit: int | None
    """The commit to return to. Rank 0 holds it and sends it to those that do not. None: there is no commit."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int
    """Negative for a signal."""
    words: str
    """`rank 1 (pid 7) was killed by SIGKILL`, for people."""
    follows: bool = False
    """It failed because another rank failed."""
    host_lost: bool = False
    """Its host was lost, too, so nothing can be started there."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a job."""

    least: int
    """Fewest ranks of a world (`--min-np`)."""
    most: int
    """Most ranks (`--max-np`)."""
    resets: int | None = None
    """Number of worlds that may follow the first (`--reset-limit`)."""
    start_s: float = LEAST_START_S
    """Time for a started process to request a place, and for a rank of a new world to meet the others."""
    return_s: float = 40.0
    """Time for a rank to request a place again after its world has ended."""
    fruitless: int = 5
    """Consecutive worlds, or deaths in one slot, without a commit that end the job or close the slot; and how often too
    few slots may be offered before a world has begun."""


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
    """Tell the worker that processes will join or leave: it requests a place again after its next commit."""

    worker: int


@dataclass(frozen=True)
class Retire:
    """Tell the worker to leave."""

    worker: int


@dataclass(frozen=True)
class Release:
    """Tell the worker, whose training function has returned, that it was the last one: no world follows."""

    worker: int


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class End:
    """The job is over; stop what still runs. Without a reason, it succeeded."""

    reason: str | None
    remedy: str | None = None


Action = Start | Kill | Give | Notify | Retire | Release | Say | End
