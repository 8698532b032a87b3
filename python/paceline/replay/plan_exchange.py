"""The exchanges of a plan with real buffers, through `paceline.job`, and checks of what arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.catalog import names
from paceline.forecast.iteration_plan import Exchanged, IterationPlan, PlanStep
from paceline.replay.clock import Clock
from paceline.replay.exchange import ADDING, PERIOD, meet, stored, stored_type

if TYPE_CHECKING:
    from paceline.job.job import Group, Job

_Array = np.ndarray[Any, Any]


class PlanExchange:
    """All-gathers, reduce-scatters and all-reduces between the ranks of a job.

    Each stream has its own communicator for each group of ranks, on which it calls in the plan's order.
    """

    def __init__(self, job: Job, plan: IterationPlan, strategy: names.Strategy, clock: Clock | None = None) -> None:
        """Make communicators, and allocate and touch memory for every step."""
        self._strategy: names.Strategy = strategy
        self._job, self._plan, self._clock = job, plan, clock or Clock()
        self._groups: dict[tuple[str, int, int], Group] = {}
        self._arrays: dict[int, tuple[_Array, _Array]] = {}
        shared: dict[Any, tuple[_Array, _Array]] = {}
        for step in plan.steps:
            if step.exchanged is not None:
                group = self._group(step)
                # A unit that is gathered twice has its memory twice in turn, as a framework's allocator gives it.
                key = (step.stream, step.name, step.exchanged)
                if key not in shared:
                    shared[key] = _memory(step.exchanged, group.size)
                self._arrays[step.number] = shared[key]

    def meet(self) -> int:
        """Return a moment in the near future, the same at all ranks, in each rank's own clock."""
        return meet(self._job, self._clock)

    def run(self, step: PlanStep) -> None:
        """Exchange, and wait for it. Raises JobError."""
        exchanged, group, (part, whole) = step.exchanged, self._group(step), self._arrays[step.number]
        assert exchanged is not None
        dtype = "bfloat16" if exchanged.dtype == "bfloat16" else None
        match exchanged.collective:
            case "all-gather":
                group.all_gather(part, whole, dtype=dtype, strategy=self._strategy, name=step.name)
            case "reduce-scatter":
                group.reduce_scatter(whole, out=part, dtype=dtype, strategy=self._strategy, name=step.name)
            case "all-reduce":
                group.all_reduce(whole, dtype=dtype, strategy=self._strategy, name=step.name)

    def check(self) -> int:
        """Exchange known numbers in every step; return how many results were compared. Raises ArithmeticError."""
        compared = 0
        for step in self._plan.steps:
            if step.exchanged is None:
                continue
            group, (part, whole), dtype = self._group(step), self._arrays[step.number], step.exchanged.dtype
            gathers, reduced = step.exchanged.collective == "all-gather", step.exchanged.collective == "all-reduce"
            first = group.rank * len(part)
            ranks = range(min(group.size, ADDING))
            if gathers:
                part[:] = stored(_numbers(first, len(part), 0), dtype)
            else:
                whole[:] = stored(_numbers(0, len(whole), group.rank) * (group.rank in ranks), dtype)
            self.run(step)
            result = whole if gathers or reduced else part
            begin = 0 if gathers or reduced else first
            added = range(1) if gathers else ranks
            wanted = sum((_numbers(begin, len(result), rank) for rank in added), np.zeros(len(result), "float32"))
            if (result != stored(wanted, dtype)).any():
                raise ArithmeticError(f"rank {self._job.rank} has a wrong result of '{step.name}'")
            part.fill(0)
            whole.fill(0)
            compared += 1
        return compared

    def _group(self, step: PlanStep) -> Group:
        assert step.exchanged is not None
        wanted = step.exchanged.group
        key = (step.stream, wanted.size, wanted.stride)
        if key not in self._groups:
            name = f"{step.stream}, {wanted.size} ranks"
            self._groups[key] = self._job.group(wanted.around(self._job.rank), name=name)
        return self._groups[key]


def _memory(exchanged: Exchanged, size: int) -> tuple[_Array, _Array]:
    """Return a shard and the whole, padded to equal shards; an all-reduce has no shard."""
    held, shard = stored_type(exchanged.dtype), -(-exchanged.elements // size)
    if exchanged.collective == "all-reduce":
        made = np.empty(0, held), np.empty(exchanged.elements, held)
    else:
        made = np.empty(shard, held), np.empty(shard * size, held)
    for array in made:
        array.fill(0)
    return made


def _numbers(first: int, count: int, rank: int) -> _Array:
    return (np.arange(first + rank, first + rank + count) % PERIOD).astype("float32")
