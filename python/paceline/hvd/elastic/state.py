"""The common state of ranks, and how they return to an earlier one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from paceline.errors import InvalidArgumentError
from paceline.hvd.messages import any_rank
from paceline.hvd.objects import broadcast_object, dumped
from paceline.hvd.process_sets import global_process_set
from paceline.hvd.world import members_of, size
from paceline.job.elastic_commits import Commits
from paceline.job.elastic_loop import WorldChange
from paceline.job.elastic_member import membership


class State:
    """Base class of elastic state: `save` keeps a state, `restore` brings it back, `sync` copies rank 0's to all.

    The ranks that continue are those that made the same commit; rank 0 is one of them. `ObjectState` and `TorchState`
    keep two commits, so that all survivors can return to the same one. A class that only extends this one keeps one, as
    in Horovod, and a rank that was one commit ahead gets the others' state from `sync`.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - as Horovod's, which passes them on
        """Start without a commit.

        Args:
            **kwargs: Passed on to the next class, as in Horovod.
        """
        super().__init__(**kwargs)
        self._callbacks: list[Callable[[], None]] = []
        self._commits = Commits()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Register functions to call when a new world has begun, before `sync`: to rescale the learning rate, say.

        They are called on ranks that were in the world before, not on new ones, and must not start operations.

        Args:
            callbacks: Functions without arguments.
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Run `reset` and the callbacks: a new world has begun."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Keep the current state in memory, and then let ranks join or leave as `check_host_updates` does.

        If a rank dies, all return to the last commit that all survivors have made. All ranks call this at the same
        point of the training, after `optimizer.step()`. It costs a copy of the state and a small all-reduce.

        Raises:
            HostsUpdatedInterrupt: Ranks are about to join or leave; `run` catches it.
            JobError: A rank is gone.
        """
        self.save()
        self._made()
        check()

    def check_host_updates(self) -> None:
        """Let ranks join or leave, if any are about to; only then is the state copied. All ranks call this together.

        Raises:
            HostsUpdatedInterrupt: Ranks are about to join or leave; `run` catches it.
            JobError: A rank is gone.
        """
        try:
            check()
        except HostsUpdatedInterrupt:
            # All ranks are here, or will go back: progress since the last commit is not lost.
            self.save()
            self._made()
            raise

    def save(self) -> None:
        """Keep the current state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the last state that was kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0, and keep it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to a new world, if necessary."""

    # Used by `run`

    def _made(self) -> None:
        """`save` was called for a commit."""
        last = self._commits.numbers[-1] if self._commits.numbers else -1
        self._commits.adopt(last + 1, None)

    def _back_to(self, number: int | None) -> None:
        """Go back to this commit, if it is available; otherwise `sync` will provide it."""
        if number is not None and self._commits.back_to(number):
            self.restore()

    def _synchronized(self, number: int) -> None:
        """`sync` was called, and this is now the commit of all ranks."""
        self._commits.adopt(number, None)


_PICKLES = (pickle.PicklingError, TypeError, AttributeError)
"""Errors that pickle raises for an object that it cannot serialize."""


def _no_pickle(objects: dict[str, Any], error: Exception) -> Exception:
    """Return an error that names the attribute at fault, or the error unchanged if there is none."""
    for name, value in objects.items():
        try:
            dumped(value)
        except _PICKLES as why:
            return InvalidArgumentError(
                f"the elastic state's {name}: {type(value).__name__} cannot be sent to other ranks: {why}",
                remedy="only objects in the state that can be pickled",
            )
    return error


class ObjectState(State):
    """Python objects as attributes.

    Objects are copied with `copy.deepcopy` at each commit, and pickled when ranks synchronize.

    Example:
        >>> state = hvd.elastic.ObjectState(epoch=0, batch=0)
        >>> state.batch += 1
        >>> state.commit()
        >>> state.batch
        1
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Take the objects.

        Args:
            bcast_object: Accepted for compatibility with Horovod, and ignored.
            get_rank: Accepted for compatibility with Horovod, and ignored.
            **kwargs: The objects by name.
        """
        super().__init__()
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keep the current objects, and the previous commit."""
        self._commits.add(self._snapshot())

    def restore(self) -> None:
        """Return to the objects that were last kept, if any."""
        snapshot = self._commits.last()
        if snapshot is not None:
            self._bring_back(snapshot)

    def sync(self) -> None:
        """Copy the objects of rank 0 to all ranks, and keep them: `restore` brings them back.

        Raises:
            InvalidArgumentError: An attribute cannot be pickled; the message names it.
            JobError: A rank is gone.
        """
        if self._names:
            own = {name: getattr(self, name) for name in self._names}
            try:
                objects = broadcast_object(own, 0, "hvd.elastic.objects")
            except _PICKLES as error:
                named = _no_pickle(own, error)
                raise named from error
            for name, value in objects.items():
                setattr(self, name, value)
        self._commits.synchronized(self._snapshot())

    def _snapshot(self) -> Any:  # noqa: ANN401 - see Commits
        return {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def _bring_back(self, snapshot: Any) -> None:  # noqa: ANN401
        for name, value in snapshot.items():
            setattr(self, name, copy.deepcopy(value))

    def _made(self) -> None:
        """`save` has already counted it."""

    def _synchronized(self, number: int) -> None:
        self._commits.adopt(number, self._snapshot())


class HostsUpdatedInterrupt(WorldChange, RuntimeError):
    """Ranks are to join or leave; `run` catches it. Nothing is lost, because all ranks are at the same point."""

    def __init__(self, skip_sync: bool = False) -> None:
        """Create the exception.

        Args:
            skip_sync: Horovod's flag for a change in which no rank joins; here ranks are always synchronized.
        """
        super().__init__("ranks are about to join or leave; hvd.elastic.run continues with them")
        self.skip_sync = skip_sync


def check() -> None:
    """Let ranks join or leave: raise HostsUpdatedInterrupt on all ranks or on none. All ranks call this together.

    Because the ranks wait for each other here, their commits are at most one apart.

    Raises:
        HostsUpdatedInterrupt: Ranks are to join or leave.
    """
    member = membership()
    updated = member is not None and member.updated()
    if size() > 1:
        updated = any_rank(members_of(global_process_set), "hvd.elastic.updated", updated)
    if updated:
        raise HostsUpdatedInterrupt
