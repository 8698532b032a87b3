"""The buckets of a trace as real buffers, all-reduced through `paceline.job`, and checks of their sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.catalog import names
from paceline.job.arrays import memory
from paceline.job.collectives import Handle, SubmitOptions
from paceline.replay.clock import Clock
from paceline.replay.worker_schedule import WorkerSchedule

if TYPE_CHECKING:
    from paceline.job.job import Job

_MARGIN_NS = 3_000_000
"""Time between agreeing on a moment and that moment: ranks that learn of it late must still be in time."""
PERIOD = 3
"""Elements after which the numbers of a check repeat."""
ADDING = 64
"""Ranks whose contribution to a check is not 0: sums stay below 256, up to which bfloat16 is exact."""
_MEET: names.Strategy = "recursive-doubling"


def stored_type(dtype: str) -> str:
    """Return the numpy type of a buffer; numpy has no bfloat16."""
    return "uint16" if dtype == "bfloat16" else dtype


def stored(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return numbers as buffers of a dtype hold them: bfloat16 is the upper half of float32."""
    if dtype == "bfloat16":
        return (values.astype("float32").view("uint32") >> 16).astype(stored_type(dtype))
    return values.astype(dtype)


def meet(job: Job, clock: Clock) -> int:
    """Return a moment in the near future, the same at all ranks of a job, in each rank's own clock."""
    latest = np.array([clock.now() + clock.ahead + _MARGIN_NS])
    job.all_reduce(latest, "max", strategy=_MEET, name="the moment of the next iteration")
    return int(latest[0]) - clock.ahead


class JobExchange:
    """All-reduces between the ranks of a job."""

    def __init__(
        self,
        job: Job,
        schedule: WorkerSchedule,
        servers: Mapping[str, int],
        *,
        barrier: bool,
        strategy: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Allocate and touch memory for all buckets. `servers` places buckets by name.

        `barrier`: parameter servers send nothing of an iteration until they have all of it. `strategy`: None stands for
        the job's.
        """
        self._strategy, self._clock = strategy, clock or Clock()
        self._job, self._schedule, self._barrier = job, schedule, barrier and schedule.servers
        self._dtype = "bfloat16" if schedule.dtype == "bfloat16" else None
        self._arrays = [np.zeros(bucket.elements, stored_type(schedule.dtype)) for bucket in schedule.buckets]
        for array in self._arrays:
            array.fill(0)
        self._numbers = [servers.get(bucket.name, number) for number, bucket in enumerate(schedule.buckets)]
        self._handles: dict[int, Handle[Any]] = {}

    def meet(self) -> int:
        """Return a moment in the near future, the same at all ranks, in each rank's own clock."""
        return meet(self._job, self._clock)

    def issue(self, bucket: int) -> None:
        """Start the all-reduce of a bucket."""
        array, known = self._arrays[bucket], self._schedule.buckets[bucket]
        options = SubmitOptions(
            label=known.name, background=True, bucket=self._numbers[bucket], pull_only=known.pull_only
        )
        if self._strategy is not None:
            options["strategy"] = self._strategy
        if self._barrier:
            options["step"] = (bucket == self._schedule.order[-1], known.priority)
        given = memory(array, known.name, dtype=self._dtype, writable=True)
        self._handles[bucket] = self._job._begin("all_reduce", array, given, None, **options)

    def held(self, bucket: int) -> bool:
        """Return whether the bucket's sum has arrived."""
        handle = self._handles.get(bucket)
        return handle is None or handle.done()

    def wait(self, bucket: int) -> None:
        """Wait for the bucket's sum. Raises JobError."""
        handle = self._handles.get(bucket)
        if handle is not None:
            handle.wait()

    def check(self) -> int:
        """All-reduce known numbers in all buckets; return how many sums were compared. Raises ArithmeticError.

        Buckets without a gradient arrive as zeros.
        """
        for bucket in self._schedule.order:
            for place, value in enumerate(self._stored(self._contribution(bucket, self._job.rank))):
                self._arrays[bucket][place::PERIOD] = value
            self.issue(bucket)
        for bucket in self._schedule.order:
            self.wait(bucket)
            known, found = self._schedule.buckets[bucket], self._arrays[bucket]
            adding = 0 if known.pull_only else self._job.size
            wanted = sum((self._contribution(bucket, rank) for rank in range(adding)), np.zeros(PERIOD, "float32"))
            if any((found[place::PERIOD] != value).any() for place, value in enumerate(self._stored(wanted))):
                raise ArithmeticError(f"rank {self._job.rank} has a wrong sum of '{known.name}'")
            found.fill(0)
        return len(self._schedule.order)

    def _contribution(self, bucket: int, rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the first elements; the others repeat them."""
        pattern = np.arange(bucket + rank, bucket + rank + PERIOD) % PERIOD
        return (pattern * (rank < ADDING)).astype("float32")

    def _stored(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return stored(values, self._schedule.dtype)
