"""The hosts of a benchmark: this machine, or one process of `paceline bench` on each host of a job.

All of them follow the same plan, and agree after every check of their processes whether to continue.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from paceline.job import objects

if TYPE_CHECKING:
    from paceline.job.job import Job


class HostGroup(Protocol):
    """The participating hosts."""

    host: int
    """Number of this process's host, from 0."""
    hosts: int

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401 - what JSON holds
        """Return the values of all hosts, on every host."""

    def agree(self, *, failed: bool, done: bool) -> tuple[bool, bool]:
        """Return whether any host failed, and whether all are done."""


class Alone:
    """This machine alone."""

    host, hosts = 0, 1

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401
        """Return its own value."""
        return [value]

    def agree(self, *, failed: bool, done: bool) -> tuple[bool, bool]:
        """Return the values unchanged."""
        return failed, done


class Ranks:
    """The ranks of a job, one on each host."""

    def __init__(self, job: Job) -> None:
        """Use a joined job."""
        self.host, self.hosts = job.rank, job.size
        self._job = job

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401
        """Return the values of all hosts, on every host. Raises JobError."""
        texts = objects.gather(self._job, json.dumps(value))
        values: list[Any] = json.loads(objects.share(self._job, f"[{','.join(texts)}]"))
        return values

    def agree(self, *, failed: bool, done: bool) -> tuple[bool, bool]:
        """Return whether any host failed, and whether all are done. Raises JobError."""
        import numpy as np

        counts = np.array([int(failed), int(not done)])
        self._job.all_reduce(counts)
        return bool(counts[0]), not counts[1]
