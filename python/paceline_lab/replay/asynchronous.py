"""The exchanges of a worker that waits for no other: gradients to the servers of `async-ps`, parameters back.

Messages and servers are those of training (`paceline.async_ps`): servers apply each gradient by torch's SGD. An
iteration's last gradient is followed by the request for all parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from paceline._core import Plan, PlanStep
from paceline._internal.clock import Clock
from paceline.async_ps.placing import parts_by_server
from paceline.async_ps.protocol import Kind, ModelSpec, Part, Request, TensorSpec, digest
from paceline.async_ps.report import parsed
from paceline.async_ps.rules import RULES
from paceline.async_ps.worker import Chunk, Pull

from paceline_lab.replay.exchange import ADDING, PERIOD, background, fill, meet, numbers, stored, stored_type

if TYPE_CHECKING:
    from paceline.async_ps.worker import Servers
    from paceline.job.job import Job

_Array = np.ndarray[Any, Any]
_RULE = RULES["SGD"]
_OPTIONS: Mapping[str, float] = {"lr": 1.0, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
"""A server subtracts each gradient: sums of small numbers are exact."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor or bucket of the plan."""

    step: PlanStep
    """The one that pushes it."""
    unit: int
    name: str
    dtype: str
    pull_only: bool
    gradient: _Array
    pieces: list[tuple[int, int, Part]] = field(default_factory=list)
    """Server, index among the server's parts, and part."""

    @classmethod
    def of(cls, step: PlanStep, plan: Plan) -> _Tensor:
        """Return the tensor of a step, whose gradient is zero."""
        assert step.unit is not None and step.exchanged is not None, "a gradient of a unit"
        unit, exchanged = plan.units[step.unit], step.exchanged
        gradient = np.zeros(exchanged.elements, stored_type(exchanged.dtype))
        return cls(step, step.unit, unit.name, exchanged.dtype, unit.pull_only, gradient)


class ServersExchange:
    """One worker's gradients and parameters. Pulls are of all parameters, as in training."""

    def __init__(self, job: Job, servers: Servers, plan: Plan, clock: Clock) -> None:
        """Allocate memory, and describe the tensors to the servers. Raises JobError, InvalidArgumentError."""
        self._job, self._servers, self._clock = job, servers, clock
        self._steps = background(plan)
        made = [_Tensor.of(step, plan) for step in self._steps]
        self._tensors = {one.step.number: one for one in made}
        self._dtype = made[0].dtype
        made.sort(key=lambda one: one.unit)
        specs = [TensorSpec(one.name, (one.gradient.size,), self._dtype, 0) for one in made]
        settings = job.settings
        self._parts = parts_by_server(specs, servers.count, settings.placement, settings.placed())
        for server, parts in enumerate(self._parts):
            for index, part in enumerate(parts):
                if part.count:
                    made[part.tensor].pieces.append((server, index, part))
        held = stored_type(self._dtype)
        self._weights = [np.zeros(sum(part.count for part in parts), held) for parts in self._parts]
        self._model = servers.new_model()
        self._numbers = tuple(_OPTIONS[name] for name in _RULE.numbers)
        self.iteration = 0
        """Iterations that have ended, those of checks too."""
        self._pull: Pull | None = None
        self._pushes = [0] * servers.count
        self._added = 0
        self._describe(specs)

    def _describe(self, tensors: Sequence[TensorSpec]) -> None:
        specs = [
            ModelSpec(
                rule=_RULE.name,
                flags=({},),
                tensors=tuple(tensors),
                parts=tuple(parts),
                staleness=self._servers.staleness,
                records_order=True,
            )
            for parts in self._parts
        ]
        first = self._job.rank == 0
        self._servers.describe(
            self._model,
            specs,
            [digest([weights.view("uint8").data]) for weights in self._weights],
            [()] * len(specs),
            [_chunk(weights) if first else None for weights in self._weights],
        )

    def meet(self) -> int:
        """Return a moment in the near future, the same at all ranks, in each rank's own clock."""
        return meet(self._job, self._clock)

    def run(self, step: PlanStep) -> None:
        """Refuse: nothing is exchanged among workers."""
        raise AssertionError(f"{step.name} is no gradient")

    def issue(self, step: PlanStep) -> None:
        """Push a gradient; after an iteration's last one, request the parameters."""
        tensor = self._tensors[step.number]
        if not tensor.pull_only:
            self._push(tensor)
        if step is self._steps[-1]:
            self._request()

    def held(self, step: PlanStep) -> bool:
        """Return whether the parameters of the iteration have arrived."""
        return self._pull is None or self._pull.done()

    def wait(self, step: PlanStep) -> None:
        """Wait for the parameters of the iteration. Raises JobError."""
        self._end()

    def check(self) -> int:
        """Push known numbers and compare the sums of all workers; return how many. Raises ArithmeticError, JobError.

        A second check pushes their opposites, so that it also finds what was applied in between.
        """
        sign = -1 if self._added else 1
        place = self._job.rank
        for tensor in self._tensors.values():
            if not tensor.pull_only:
                pattern = numbers(tensor.step, 0, place) * (sign * (place < ADDING))
                fill(tensor.gradient, stored(pattern.astype("float32"), self._dtype))
                self._push(tensor)
        self._request()
        self._end()
        self.meet()  # Everybody's numbers have been applied.
        self._request()
        self._end()
        self._added += sign
        for tensor in self._tensors.values():
            tensor.gradient.fill(0)
            self._compare(tensor)
        return len(self._tensors)

    def staleness(self, first: int) -> dict[int, int]:
        """Return gradients by staleness, from when all workers are in this iteration until one ends its last.

        Raises JobError.
        """
        counts: Counter[int] = Counter()
        for server in range(self._servers.count):
            order = parsed(self._servers.report(server, self._model, order=True))[1]
            counts.update(steady(order, self._job.size, first, self.iteration))
        return dict(sorted(counts.items()))

    def _push(self, tensor: _Tensor) -> None:
        self._end()
        for server, index, part in tensor.pieces:
            request = Request(
                kind=Kind.PUSH, model=self._model, part=index, iteration=self.iteration, numbers=self._numbers
            )
            piece = tensor.gradient[part.start : part.start + part.count]
            self._servers.push(server, request, _chunk(piece), tensor.name)
            self._pushes[server] += 1

    def _request(self) -> None:
        self._end()
        requests = [
            Request(kind=Kind.PULL, model=self._model, iteration=self.iteration + 1, pushes=pushes)
            for pushes in self._pushes
        ]
        self._pull = self._servers.begin_pull(requests, [_chunk(weights) for weights in self._weights])

    def _end(self) -> None:
        """Wait for the parameters that have been requested, if any: the next iteration can begin."""
        if self._pull is not None:
            self._pull.wait()
            self._pull = None
            self.iteration += 1
            self._pushes = [0] * self._servers.count

    def _compare(self, tensor: _Tensor) -> None:
        added = 0 if tensor.pull_only else self._added * min(self._job.size, ADDING)
        zeros = np.zeros(PERIOD, "float32")
        wanted = stored(sum((-numbers(tensor.step, 0, rank) for rank in range(added)), zeros), self._dtype)
        for server, index, part in tensor.pieces:
            begin = sum(one.count for one in self._parts[server][:index])
            here = self._weights[server][begin : begin + part.count]
            for place in range(min(PERIOD, part.count)):
                if (here[place::PERIOD] != wanted[(part.start + place) % PERIOD]).any():
                    raise ArithmeticError(f"rank {self._job.rank} has wrong parameters of '{tensor.name}'")


def steady(order: Sequence[Sequence[int]], workers: int, first: int, end: int) -> Counter[int]:
    """Return gradients by staleness while all workers train.

    Args:
        order: Gradients as a server has applied them: part, worker, iteration, version, version that was pulled.
        workers: Workers.
        first: The iteration that all workers must have begun.
        end: Iterations of each worker; what follows the last gradient of one does not count.
    """
    seen = [-1] * workers
    last = {(worker, part): at for at, (part, worker, iteration, *_) in enumerate(order) if iteration == end - 1}
    ends = [max(at for (one, _), at in last.items() if one == worker) for worker in {worker for worker, _ in last}]
    counts: Counter[int] = Counter()
    for _, worker, iteration, version, pulled in order[: min(ends, default=len(order) - 1) + 1]:
        seen[worker] = iteration
        if min(seen) >= first:
            counts[version - pulled] += 1
    return counts


def _chunk(array: _Array) -> Chunk:
    return Chunk([(array.ctypes.data, array.nbytes)] if array.nbytes else [], array)
