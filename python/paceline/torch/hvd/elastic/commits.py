"""The last two commits of this process."""

from __future__ import annotations

from typing import Any

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
        """What `sync` has left. It comes back until there is a later commit, and has no number, so that no rank is asked
        to go back to it: others may have failed before they had it.
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
