"""The buckets of a trace as real buffers, all-reduced through `paceline.job`, and their sums checked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._core import UserError
from paceline.job_group import Handle
from paceline.replay.part import Part

if TYPE_CHECKING:
    from paceline.job import Job

_MARGIN_NS = 3_000_000
"""From agreeing on a moment to that moment: ranks that learn of it late must still be there in time."""
_RESIDUES = 3
_ADDING = 64
"""Ranks whose contribution to a check is not 0: sums stay below 256, which bfloat16 still tells apart."""
_MEET = "recursive-doubling"


class JobExchange:
    """All-reduces between the ranks of a job."""

    def __init__(self, job: Job, part: Part, servers: Mapping[str, int]) -> None:
        """Take memory for all buckets, and touch it. `servers` places buckets by name. Raises UserError."""
        for bucket in part.buckets:
            if bucket.pull_only:
                raise UserError(f"'{bucket.name}' has no gradient; servers of a job cannot distribute it")
        self._job, self._part = job, part
        self._dtype = "bfloat16" if part.dtype == "bfloat16" else None
        stored = "uint16" if self._dtype else part.dtype
        self._arrays = [np.zeros(bucket.elements, stored) for bucket in part.buckets]
        for array in self._arrays:
            array.fill(0)
        self._numbers = [servers.get(bucket.name, number) for number, bucket in enumerate(part.buckets)]
        self._handles: dict[int, Handle[Any]] = {}

    def meet(self) -> int:
        """A moment soon, the same at all ranks: on the first rank's machine by one clock."""
        latest = np.array([time.monotonic_ns() + _MARGIN_NS])
        self._job.all_reduce(latest, "max", strategy=_MEET, name="the moment of the next iteration")
        return int(latest[0])

    def issue(self, bucket: int) -> None:
        """Begin the all-reduce of a bucket."""
        self._handles[bucket] = self._job.all_reduce(
            self._arrays[bucket],
            dtype=self._dtype,
            name=self._part.buckets[bucket].name,
            bucket=self._numbers[bucket],
            async_=True,
        )

    def held(self, bucket: int) -> bool:
        """Whether its sum is there."""
        handle = self._handles.get(bucket)
        return handle is None or handle.done()

    def wait(self, bucket: int) -> None:
        """Until it is. Raises JobError."""
        handle = self._handles.get(bucket)
        if handle is not None:
            handle.wait()

    def check(self) -> int:
        """All-reduce known numbers in all buckets; gives how many sums were compared. Raises ArithmeticError."""
        for bucket in self._part.order:
            self._arrays[bucket][:] = self._stored(self._contribution(bucket, self._job.rank))
            self.issue(bucket)
        for bucket in self._part.order:
            self.wait(bucket)
            wanted = sum(self._contribution(bucket, rank) for rank in range(self._job.size))
            found = self._arrays[bucket]
            if not np.array_equal(found, self._stored(np.asarray(wanted))):
                name = self._part.buckets[bucket].name
                raise ArithmeticError(f"rank {self._job.rank} has a wrong sum of '{name}'")
            found.fill(0)
        return len(self._part.order)

    def _contribution(self, bucket: int, rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        elements = self._part.buckets[bucket].elements
        if rank >= _ADDING:
            return np.zeros(elements, "float32")
        pattern = np.arange(bucket + rank, bucket + rank + _RESIDUES, dtype="float32") % _RESIDUES
        return np.resize(pattern, elements)

    def _stored(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """As the buffers hold them: bfloat16 is the upper half of float32."""
        if self._dtype:
            return (values.astype("float32").view("uint32") >> 16).astype("uint16")
        return values.astype(self._part.dtype)
