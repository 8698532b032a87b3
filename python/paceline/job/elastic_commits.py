"""The commits that a rank of an elastic job holds."""

from __future__ import annotations

from typing import Any

Snapshot = Any
"""The data from which a state can be restored."""


class Commits:
    """Snapshots by commit number. There are two, because another rank may not have reached the last commit."""

    def __init__(self) -> None:
        """Start without snapshots."""
        self._held: dict[int, Snapshot] = {}
        self._synchronized: list[Snapshot] = []

    @property
    def numbers(self) -> list[int]:
        """Numbers of the snapshots that are held, in rising order."""
        return list(self._held)

    def add(self, snapshot: Snapshot) -> None:
        """Add a commit, and keep the one before it."""
        self._synchronized.clear()
        number = self.numbers[-1] + 1 if self._held else 0
        self._held = dict([*list(self._held.items())[-1:], (number, snapshot)])

    def adopt(self, number: int, snapshot: Snapshot) -> None:
        """Make this the only commit; all ranks have it."""
        self._synchronized.clear()
        self._held = {number: snapshot}

    def synchronized(self, snapshot: Snapshot) -> None:
        """Keep the state that `sync` left, until there is a later commit.

        It has no number, so that no rank is asked to go back to it: others may have failed before they had it.
        """
        self._synchronized = [snapshot]

    def last(self) -> Snapshot | None:
        """Return the last snapshot, or the one that `sync` has left since then; None if there is none."""
        if self._synchronized:
            return self._synchronized[0]
        return self._held[self.numbers[-1]] if self._held else None

    def back_to(self, number: int) -> bool:
        """Forget later commits. If this one is not held, return False and forget all."""
        self._synchronized.clear()
        if number not in self._held:
            self._held = {}
            return False
        self._held = {each: snapshot for each, snapshot in self._held.items() if each <= number}
        return True
