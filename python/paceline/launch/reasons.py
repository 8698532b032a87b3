"""Why a rank failed: it tells its agent through a pipe, so that the launcher names the first cause and no victim.

A rank whose peer fails ends with a JobError, often before the peer itself, which has more to clean up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from paceline.failure import MOST, PIPE


class Reasons:
    """An agent's ends of the pipes."""

    def __init__(self) -> None:
        """No rank has started."""
        self._pipes: dict[int, int] = {}

    @contextmanager
    def told_by(self, rank: int, environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
        """What the rank finds in its environment, and the descriptor that it inherits. Raises OSError."""
        mine, its = os.pipe()
        os.set_blocking(mine, False)
        self._pipes[rank] = mine
        try:
            yield {**environment, PIPE: str(its)}, its
        finally:
            os.close(its)

    def of(self, rank: int) -> tuple[str | None, bool]:
        """The reason of a rank that has ended, and whether it failed because of another."""
        pipe = self._pipes.pop(rank)
        try:
            told = json.loads(os.read(pipe, MOST))
            return str(told["reason"]), bool(told["follows"])
        except (OSError, ValueError, TypeError, KeyError):  # the script's own process may have written anything
            return None, False
        finally:
            os.close(pipe)
