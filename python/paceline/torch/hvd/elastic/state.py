"""What ranks have in common, and how all go back to it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import torch

from paceline.errors import InvalidArgumentError
from paceline.job.elastic_member import membership
from paceline.torch.hvd.all_reduce import allreduce_
from paceline.torch.hvd.objects import broadcast_object, dumped
from paceline.torch.hvd.operators import Operator
from paceline.torch.hvd.world import size


class State:
    """To be extended: `save` keeps what `restore` brings back, and `sync` gives all ranks what rank 0 has.

    The ranks that go on are those that made the same commit; rank 0 is one of them. `ObjectState` and `TorchState` keep
    two commits, so that all survivors can go back to the same one; what extends this class alone keeps one, as under
    Horovod, and a rank that was one commit ahead gets the others' state by `sync`.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - as Horovod's, which passes them on
        """Nothing is committed yet."""
        super().__init__(**kwargs)
        self._callbacks: list[Callable[[], None]] = []
        self._commits = Commits()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these when a new world has begun, before `sync`: to scale the learning rate to its size.

        They are called on ranks that were in the world before, not on new ones, and are no place for operations.
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """A new world has begun."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Keep the state as it is now, in memory; then let ranks in or out, as `check_host_updates` does.

        If a rank dies, all go back to the last commit that all survivors have made. All ranks call this at the same
        point of their training, after `optimizer.step()`. It costs a copy of the state, and a small all-reduce.
        """
        self.save()
        self._made()
        check()

    def check_host_updates(self) -> None:
        """Let ranks in that wait, and out that are to leave, if there are any; without a copy. All ranks call this.

        Raises HostsUpdatedInterrupt on all ranks, which `run` catches.
        """
        try:
            check()
        except HostsUpdatedInterrupt:
            # All ranks are here, or will go back: what has been done since the last commit is not lost.
            self.save()
            self._made()
            raise

    def save(self) -> None:
        """Keep the state as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Bring back what was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the state of rank 0, and keep it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Do what a new world asks for, if anything."""

    # What `run` needs to know

    def _made(self) -> None:
        """`save` was called for a commit."""
        last = self._commits.numbers[-1] if self._commits.numbers else -1
        self._commits.adopt(last + 1, None)

    def _back_to(self, number: int | None) -> None:
        """Go back to this commit, if it is held; else `sync` will bring it."""
        if number is not None and self._commits.back_to(number):
            self.restore()

    def _synchronized(self, number: int) -> None:
        """`sync` was called, and this is the commit that all have now."""
        self._commits.adopt(number, None)


_PICKLES = (pickle.PicklingError, TypeError, AttributeError)
"""What pickle raises for what it cannot take."""


def _no_pickle(objects: dict[str, Any], error: Exception) -> Exception:
    """The error with the attribute whose fault it is; as it was, if it is none's."""
    for name, value in objects.items():
        try:
            dumped(value)
        except _PICKLES as why:
            return InvalidArgumentError(
                f"the elastic state's {name}: {type(value).__name__} cannot be sent to other ranks: {why}; keep what "
                "can be pickled in the state, and make the rest anew"
            )
    return error


class ObjectState(State):
    """Python objects as attributes: `ObjectState(epoch=0, batch=0)`, then `state.batch += 1`.

    What changes in place is copied (`copy.deepcopy`) at each commit, and sent as pickle when ranks synchronize.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:  # noqa: ANN401
        """`bcast_object` and `get_rank` are Horovod's, and not needed."""
        super().__init__()
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Keep the objects as they are now; of what was kept before, the last is held as well."""
        self._commits.add(self._snapshot())

    def restore(self) -> None:
        """Bring back what was kept last, if anything was."""
        snapshot = self._commits.last()
        if snapshot is not None:
            self._bring_back(snapshot)

    def sync(self) -> None:
        """Give all ranks the objects of rank 0, and keep them: `restore` brings them back.

        Raises InvalidArgumentError naming an attribute that pickle cannot take.
        """
        if self._names:
            own = {name: getattr(self, name) for name in self._names}
            try:
                objects = broadcast_object(own, 0, "hvd.elastic.objects")
            except _PICKLES as error:
                raise _no_pickle(own, error) from error
            for name, value in objects.items():
                setattr(self, name, value)
        self._commits.synchronized(self._snapshot())

    def _snapshot(self) -> Any:  # noqa: ANN401 - see Commits
        return {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def _bring_back(self, snapshot: Any) -> None:  # noqa: ANN401
        for name, value in snapshot.items():
            setattr(self, name, copy.deepcopy(value))

    def _made(self) -> None:
        """`save` has counted it."""

    def _synchronized(self, number: int) -> None:
        self._commits.adopt(number, self._snapshot())


# The last two commits of this process.


Snapshot = Any
"""Whatever a state needs to be as it was."""


class Commits:
    """Snapshots by the number of their commit. Two: another rank may not have come to make the last one."""

    def __init__(self) -> None:
        """There is none."""
        self._held: dict[int, Snapshot] = {}
        self._synchronized: list[Snapshot] = []

    @property
    def numbers(self) -> list[int]:
        """Of those that are held, the last one last."""
        return list(self._held)

    def add(self, snapshot: Snapshot) -> None:
        """A new commit; of those before, one is kept."""
        self._synchronized.clear()
        number = self.numbers[-1] + 1 if self._held else 0
        self._held = dict([*list(self._held.items())[-1:], (number, snapshot)])

    def adopt(self, number: int, snapshot: Snapshot) -> None:
        """From now on this is the only one, and all ranks have it."""
        self._synchronized.clear()
        self._held = {number: snapshot}

    def synchronized(self, snapshot: Snapshot) -> None:
        """Keep what `sync` has left, until there is a later commit.

        It has no number, so that no rank is asked to go back to it: others may have failed before they had it.
        """
        self._synchronized = [snapshot]

    def last(self) -> Snapshot | None:
        """The last one, or what `sync` has left since."""
        if self._synchronized:
            return self._synchronized[0]
        return self._held[self.numbers[-1]] if self._held else None

    def back_to(self, number: int) -> bool:
        """Forget later ones. False if this one is not held; then nothing is."""
        self._synchronized.clear()
        if number not in self._held:
            self._held = {}
            return False
        self._held = {each: snapshot for each, snapshot in self._held.items() if each <= number}
        return True


# Whether others wait to come in, or ranks are to leave: all ranks hear of it at the same commit.


class HostsUpdatedInterrupt(RuntimeError):
    """There is to be another world; `run` catches it. Nothing is lost: all ranks are at the same point."""

    def __init__(self, skip_sync: bool = False) -> None:
        """`skip_sync` is Horovod's: whether no rank comes in. Ranks are synchronized in any case."""
        super().__init__("ranks are to come or to leave; hvd.elastic.run goes on with them")
        self.skip_sync = skip_sync


def check() -> None:
    """All ranks call this at the same point, and wait for each other. Raises HostsUpdatedInterrupt on all, or on none.

    That they wait is what keeps their commits at most one apart.
    """
    member = membership()
    updated = member is not None and member.updated()
    if size() > 1:
        flag = torch.tensor([int(updated)], dtype=torch.int32)
        updated = bool(allreduce_(flag, name="hvd.elastic.updated", op=Operator.Max).item())
    if updated:
        raise HostsUpdatedInterrupt
