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

    @property
    def numbers(self) -> list[int]:
        """Of those that are held, the last one last."""
        return list(self._held)

    def add(self, snapshot: Snapshot) -> None:
        """A new commit; of those before, one is kept."""
        number = self.numbers[-1] + 1 if self._held else 0
        self._held = dict([*list(self._held.items())[-1:], (number, snapshot)])

    def adopt(self, number: int, snapshot: Snapshot) -> None:
        """From now on this is the only one, and all ranks have it."""
        self._held = {number: snapshot}

    def last(self) -> Snapshot | None:
        """The last one."""
        return self._held[self.numbers[-1]] if self._held else None

    def back_to(self, number: int) -> bool:
        """Forget later ones. False if this one is not held; then nothing is."""
        if number not in self._held:
            self._held = {}
            return False
        self._held = {each: snapshot for each, snapshot in self._held.items() if each <= number}
        return True
