"""The loop around an elastic training function."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from paceline.errors import InvalidArgumentError
from paceline.hvd.elastic.state import State
from paceline.hvd.lifecycle import init, shutdown
from paceline.hvd.process_sets import barrier
from paceline.hvd.world import current, is_initialized, size
from paceline.job import elastic_loop
from paceline.job.elastic_member import Membership, membership

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)
_changes: list[tuple[Callable[[], None], Callable[[], None]]] = []


def on_world_change(enter: Callable[[], None], leave: Callable[[], None]) -> None:
    """Let a front know when this process enters a world of an elastic job, and before it leaves one."""
    _changes.append((enter, leave))


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate an elastic training function, so that it resumes when ranks die, join or leave.

    - When a rank dies, an operation of the others raises `HorovodInternalError`; all ranks return to the last commit.
    - When ranks are about to join or leave, `state.commit()` raises `HostsUpdatedInterrupt`; nothing is lost.

    Then the ranks form a new world (`hvd.rank()` and `hvd.size()` may have changed), the reset callbacks run, the state
    is synchronized, and the function is called again. It must find its progress in the state. Without `paceline run
    --elastic`, or another launcher with a driver, the function is called once, and its error is raised.

    Args:
        func: The training function; its first argument is a `State`.

    Returns:
        A function with the same arguments.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     while state.batch < 3:
        ...         state.batch += 1
        ...         state.commit()
        ...     return state.batch
        >>> train(hvd.elastic.ObjectState(batch=0))
        3
    """

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        member = membership()
        result: list[R] = []

        def train() -> None:
            result[:] = [func(state, *args, **kwargs)]

        if member is None:
            _synchronize(state, None)
            train()
            if size() > 1:
                barrier()
        else:
            elastic_loop.train(member, _Rank(state, train))
        return result[0]

    return cast(Callable[Concatenate[S, P], R], wrapper)


def _synchronize(state: State, member: Membership | None) -> None:
    """Give all ranks the same state, with the driver's number."""
    if not is_initialized():
        init()
    here = current()
    if len(here.sets) > 1 or here.size != here.job.size:
        raise InvalidArgumentError(
            "hvd.elastic.run works with all ranks of the job, as their numbers change",
            remedy="hvd.init() without comm= and process sets",
        )
    state.sync()
    commit = member.place.commit if member is not None and member.place is not None else None
    state._synchronized(0 if commit is None else commit)
    if member is not None:
        member.commits = state._commits.numbers
        member.synced()


class _Rank:
    """This rank, as the loop sees it."""

    def __init__(self, state: State, train: Callable[[], None]) -> None:
        self._state = state
        self.train = train

    def join(self) -> None:
        init()
        member = membership()
        if member is not None and member.place is not None:
            self._state._back_to(member.place.commit)
        for enter, _ in _changes:
            enter()
        self._state.on_reset()

    def synchronize(self) -> None:
        _synchronize(self._state, membership())

    def wait_for_all(self) -> None:
        if size() > 1:
            barrier()

    def commits(self) -> list[int]:
        return self._state._commits.numbers

    def leave(self) -> None:
        """Leave, and keep nothing of the world."""
        for _, leave in _changes:
            leave()
        shutdown()
        # What failed is held by cycles of exceptions and their frames, with connections and memory of the old world.
        gc.collect()
