"""The hosts of a bench: this machine alone, or one process of `paceline bench` on each host of a job.

All of them follow the same plan at the same time, and agree after every look at their processes whether to go on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from paceline.job import objects

if TYPE_CHECKING:
    from paceline.job.job import Job


class Crew(Protocol):
    """Who takes part."""

    host: int
    """This process's number."""
    hosts: int

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401 - what JSON holds
        """What each says, at all."""

    def agree(self, *, failed: bool, done: bool) -> tuple[bool, bool]:
        """Whether any has failed, and whether all are done."""


class Alone:
    """One machine."""

    host, hosts = 0, 1

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401
        """Its own word."""
        return [value]

    def agree(self, *, failed: bool, done: bool) -> tuple[bool, bool]:
        """With itself."""
        return failed, done


class Ranks:
    """The ranks of a job, one on each host."""

    def __init__(self, job: Job) -> None:
        """`job` has been joined."""
        self.host, self.hosts = job.rank, job.size
        self._job = job

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401
        """What each says, at all. Raises JobError."""
        said = objects.gather(self._job, json.dumps(value))
        found: list[Any] = json.loads(objects.share(self._job, f"[{','.join(said)}]"))
        return found

    def agree(self, *, failed: bool, done: bool) -> tuple[bool, bool]:
        """Whether any has failed, and whether all are done. Raises JobError."""
        import numpy as np

        counts = np.array([int(failed), int(not done)])
        self._job.all_reduce(counts)
        return bool(counts[0]), not counts[1]
