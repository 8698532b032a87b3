"""The exchanges of a plan with real buffers, through `paceline.job`, and checks of what arrives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from paceline._core import Exchanged, Plan, PlanStep
from paceline._internal.clock import Clock
from paceline.catalog import names
from paceline.job.arrays import memory
from paceline.job.collectives import Handle, SubmitOptions

from paceline_lab.replay.worker_schedule import BACKGROUND

if TYPE_CHECKING:
    from paceline.job.job import Group, Job

_Array = np.ndarray[Any, Any]

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


def stored(values: _Array, dtype: str) -> _Array:
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
    """All-gathers, reduce-scatters and all-reduces between the ranks of a job.

    Exchanges in the background are the job's own. Each other stream has its own communicator for each group of ranks,
    on which it calls in the plan's order.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        servers: Mapping[str, int],
        *,
        barrier: bool = False,
        strategy: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make communicators, and allocate and touch memory for every step. `servers` places buckets by name.

        `barrier`: parameter servers send nothing of an iteration until they have all of it. `strategy`: None stands for
        the job's.
        """
        self._strategy, self._clock = cast("names.Strategy | None", strategy), clock or Clock()
        self._job, self._plan, self._servers = job, plan, servers
        self._background = background(plan)
        self._barrier = barrier and plan.has_servers
        self._groups: dict[tuple[str, int, int], Group] = {}
        self._arrays: dict[int, tuple[_Array, _Array]] = {}
        self._handles: dict[int, Handle[Any]] = {}
        shared: dict[Any, tuple[_Array, _Array]] = {}
        for step in plan.steps:
            if step.exchanged is not None:
                # A unit that is gathered twice has its memory twice in turn, as a framework's allocator gives it.
                key = (step.stream, step.name, step.exchanged)
                if key not in shared:
                    shared[key] = _memory(step.exchanged)
                if step.stream != BACKGROUND:
                    self._group(step)
                self._arrays[step.number] = shared[key]

    def meet(self) -> int:
        """Return a moment in the near future, the same at all ranks, in each rank's own clock."""
        return meet(self._job, self._clock)

    def run(self, step: PlanStep) -> None:
        """Exchange, and wait for it. Raises JobError."""
        exchanged, group, (part, whole) = _exchanged(step), self._group(step), self._arrays[step.number]
        dtype = _named(exchanged.dtype)
        match exchanged.collective:
            case "all-gather":
                group.all_gather(part, whole, dtype=dtype, strategy=self._strategy, name=step.name)
            case "reduce-scatter":
                group.reduce_scatter(whole, out=part, dtype=dtype, strategy=self._strategy, name=step.name)
            case "all-reduce":
                group.all_reduce(whole, dtype=dtype, strategy=self._strategy, name=step.name)

    def issue(self, step: PlanStep) -> None:
        """Begin the all-reduce of a bucket in the background."""
        assert step.unit is not None
        unit, (_, array) = self._plan.units[step.unit], self._arrays[step.number]
        options = SubmitOptions(
            label=unit.name,
            background=True,
            bucket=self._servers.get(unit.name, step.unit),
            pull_only=unit.pull_only,
        )
        if self._strategy is not None:
            options["strategy"] = self._strategy
        if self._barrier and unit.priority is not None:
            options["step"] = (step is self._background[-1], unit.priority)
        given = memory(array, unit.name, dtype=_named(_exchanged(step).dtype), writable=True)
        self._handles[step.number] = self._job._begin("all_reduce", array, given, None, **options)

    def held(self, step: PlanStep) -> bool:
        """Return whether the sum that was last begun in this step has arrived."""
        handle = self._handles.get(step.number)
        return handle is None or handle.done()

    def wait(self, step: PlanStep) -> None:
        """Wait for that sum. Raises JobError."""
        handle = self._handles.get(step.number)
        if handle is not None:
            handle.wait()

    def check(self) -> int:
        """Exchange known numbers in every step; return how many results were compared. Raises ArithmeticError.

        Buckets without gradients arrive as zeros.
        """
        exchanges = [step for step in self._plan.steps if step.exchanged is not None]
        # Servers may wait for all buckets before they answer any.
        for step in self._background:
            self._give(step)
            self.issue(step)
        for step in exchanges:
            if step.stream == BACKGROUND:
                self.wait(step)
            else:
                self._give(step)
                self.run(step)
            self._compare(step)
        return len(exchanges)

    def _give(self, step: PlanStep) -> None:
        """Fill the buffers that a step sends."""
        exchanged, (part, whole) = _exchanged(step), self._arrays[step.number]
        if exchanged.collective == "all-gather":
            fill(part, stored(numbers(step, self._place(step) * len(part), 0), exchanged.dtype))
        else:
            place = self._place(step)
            fill(whole, stored(numbers(step, 0, place) * (place < ADDING), exchanged.dtype))

    def _compare(self, step: PlanStep) -> None:
        exchanged, (part, whole) = _exchanged(step), self._arrays[step.number]
        scattered = exchanged.collective == "reduce-scatter"
        result = part if scattered else whole
        begin = self._place(step) * len(part) if scattered else 0
        added = min(exchanged.group.size, ADDING)
        if exchanged.collective == "all-gather":
            added = 1
        elif step.unit is not None and self._plan.units[step.unit].pull_only:
            added = 0
        wanted = sum((numbers(step, begin, rank) for rank in range(added)), np.zeros(PERIOD, "float32"))
        if any((result[place::PERIOD] != value).any() for place, value in enumerate(stored(wanted, exchanged.dtype))):
            raise ArithmeticError(f"rank {self._job.rank} has a wrong result of '{step.name}'")
        part.fill(0)
        whole.fill(0)

    def _place(self, step: PlanStep) -> int:
        """Return this rank's place in the group of a step."""
        return _exchanged(step).group.around(self._job.rank).index(self._job.rank)

    def _group(self, step: PlanStep) -> Group:
        wanted = _exchanged(step).group
        key = (step.stream, wanted.size, wanted.stride)
        if key not in self._groups:
            name = f"{step.stream}, {wanted.size} ranks"
            self._groups[key] = self._job.group(wanted.around(self._job.rank), name=name)
        return self._groups[key]


def _exchanged(step: PlanStep) -> Exchanged:
    assert step.exchanged is not None
    return step.exchanged


def _named(dtype: str) -> str | None:
    """Return what calls are told about a type that numpy does not have."""
    return dtype if dtype != stored_type(dtype) else None


def _memory(exchanged: Exchanged) -> tuple[_Array, _Array]:
    """Return a shard and the whole, padded to equal shards; an all-reduce has no shard."""
    held, size = stored_type(exchanged.dtype), exchanged.group.size
    shard = -(-exchanged.elements // size)
    if exchanged.collective == "all-reduce":
        made = np.empty(0, held), np.empty(exchanged.elements, held)
    else:
        made = np.empty(shard, held), np.empty(shard * size, held)
    for array in made:
        array.fill(0)
    return made


def background(plan: Plan) -> list[PlanStep]:
    """Return the exchanges that begin in order and do not wait for each other."""
    return [step for step in plan.steps if step.stream == BACKGROUND]


def numbers(step: PlanStep, first: int, rank: int) -> _Array:
    """Return what a rank gives from this element on; the other elements repeat it. Steps differ."""
    first += step.number + rank
    return (np.arange(first, first + PERIOD) % PERIOD).astype("float32")


def fill(array: _Array, pattern: _Array) -> None:
    """Set an array to a pattern of PERIOD elements, repeated."""
    for place, value in enumerate(pattern):
        array[place::PERIOD] = value
