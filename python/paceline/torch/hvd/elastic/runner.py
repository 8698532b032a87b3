"""The loop around a training function."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from paceline.errors import InvalidArgumentError, JobError
from paceline.job.elastic_member import Membership, membership
from paceline.torch.hvd import optimizer as optimizers
from paceline.torch.hvd.elastic.state import HostsUpdatedInterrupt, State
from paceline.torch.hvd.lifecycle import init, shutdown
from paceline.torch.hvd.process_sets import barrier
from paceline.torch.hvd.world import current, is_initialized, size

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate `train(state, ...)`: it is called again, in the next world, when a rank has died or others have come.

    - A rank dies: an operation of the others raises `HorovodInternalError`; all go back to the last commit.
    - Ranks are to come or leave: `state.commit()` raises `HostsUpdatedInterrupt`; nothing is lost.

    Then ranks meet anew (`hvd.rank()` and `size()` may be others), the reset callbacks are called, the state is
    synchronized, and `func` is called. What it has to know of how far it is stands in the state.

    Without `paceline run --elastic` (or another launcher that has a driver) `func` is called once; its error is raised.
    """

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        member = membership()
        again = False
        while True:
            why = ""
            try:
                if again:
                    _go_on(state)
                _synchronize(state, member)
                result = func(state, *args, **kwargs)
                if size() > 1:
                    barrier()  # who has finished is needed by whoever goes back
            except JobError as error:
                if member is None:
                    raise
                why = f"{error}"
            except HostsUpdatedInterrupt:
                if member is None:
                    raise
            else:
                if member is not None:
                    member.finished()
                return result
            _leave(state, member, why)
            again = True

    return cast(Callable[Concatenate[S, P], R], wrapper)


def _synchronize(state: State, member: Membership | None) -> None:
    """All ranks have the same state, and it has the number that the driver knows."""
    if not is_initialized():
        init()
    here = current()
    if len(here.sets) > 1 or here.size != here.job.size:
        raise InvalidArgumentError(
            "hvd.elastic.run works with all ranks of the job: their numbers change from world to world; leave process "
            "sets and init(comm=) out"
        )
    state.sync()
    commit = member.place.commit if member is not None and member.place is not None else None
    state._synchronized(0 if commit is None else commit)
    if member is not None:
        member.commits = state._commits.numbers
        member.synced()


def _leave(state: State, member: Membership, why: str) -> None:
    """The world has ended: nothing of it is to stay."""
    member.commits, member.why = state._commits.numbers, why
    optimizers.leave()
    shutdown()
    # What failed is held by cycles of exceptions and their frames, with connections and memory of the old world.
    gc.collect()


def _go_on(state: State) -> None:
    """Meet the others in the next world."""
    init()
    member = membership()
    if member is not None and member.place is not None:
        state._back_to(member.place.commit)
    optimizers.enter()
    state.on_reset()
