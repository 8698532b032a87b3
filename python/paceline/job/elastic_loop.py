"""The loops of a rank of an elastic job: from world to world until training has ended.

They know nothing of torch and of the runtime, so that a simulation can run them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from paceline.errors import JobError
from paceline.job.elastic_member import LauncherGoneError, Membership

T = TypeVar("T")


class WorldChange(Exception):
    """The world ends because ranks are to join or leave; no rank has failed."""


class Training(Protocol):
    """A rank's work in a world."""

    def join(self) -> None:
        """Connect to the other ranks of the next world, and go back to its commit. Raises JobError."""

    def synchronize(self) -> None:
        """Get the state that all ranks have. Raises JobError."""

    def train(self) -> None:
        """Call the training function. Raises JobError, WorldChange."""

    def wait_for_all(self) -> None:
        """Wait until the training functions of all ranks have returned. Raises JobError."""

    def commits(self) -> list[int]:
        """Return the numbers of the commits that this rank holds, in rising order."""

    def leave(self) -> None:
        """Leave the world, which has ended."""


def train(member: Membership, training: Training) -> None:
    """Train in world after world, until all ranks of one have finished.

    Raises LauncherGoneError, SystemExit if this process is to leave, and what the training function raises.
    """
    joins = False
    while True:
        why, done = "", False
        try:
            if joins:
                training.join()
            training.synchronize()
            training.train()
            done = True
            training.wait_for_all()  # ranks that go back need those that have finished
        except LauncherGoneError:
            raise
        except JobError as error:
            why = f"{error}"
        except WorldChange:
            pass
        else:
            member.finished()
            return
        member.commits, member.why = training.commits(), why
        # If one rank got through the wait, all have returned from their functions: this world was the last one.
        if done and not member.again():
            return
        training.leave()
        joins = True


def join_world(member: Membership, join: Callable[[], T]) -> T:
    """Return what `join` returns in the first world in which it succeeds. Raises LauncherGoneError, SystemExit."""
    while True:
        place = member.ask()
        try:
            return join()
        except JobError as error:
            member.why = f"rank {place.rank}: {error}"
