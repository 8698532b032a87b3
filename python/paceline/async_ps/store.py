"""A server's part of one model: parameters, the optimizer's states, and what has been applied.

It knows no transport: `service` feeds it from the engine's messages, and `paceline.ray.ps` from calls of an actor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from paceline.async_ps.clock import Clock
from paceline.async_ps.protocol import DTYPES, ModelSpec, State, digest
from paceline.async_ps.rules import RULES
from paceline.errors import JobError

TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
"""Types of parameters by name."""
_MOST_STATES = 8
"""States of a parameter; torch's optimizers have four at most."""


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return a digest of the bytes of dense tensors on the host, in order."""
    return digest(tensor.detach().reshape(-1).view(torch.uint8).numpy().data for tensor in tensors)


class Snapshots:
    """Copies of the parameters, which are sent while gradients are applied.

    Memory is used again once nobody reads it.
    """

    def __init__(self, weights: Tensor) -> None:
        """`weights` are copied each time."""
        self._weights = weights
        self._free: list[Tensor] = []
        self._last: tuple[int, Tensor] | None = None
        self._readers: Counter[int] = Counter()

    def take(self, updates: int) -> Tensor:
        """Return the parameters after so many updates: one copy for all that take it before the next update."""
        if self._last is None or self._last[0] != updates:
            if self._last is not None and not self._readers[id(self._last[1])]:
                self._free.append(self._last[1])
            copy = self._free.pop() if self._free else torch.empty_like(self._weights)
            copy.copy_(self._weights)
            self._last = (updates, copy)
        copy = self._last[1]
        self._readers[id(copy)] += 1
        return copy

    def give_back(self, copy: Tensor) -> None:
        """Note that one reader of a copy is done."""
        self._readers[id(copy)] -= 1
        if not self._readers[id(copy)] and (self._last is None or self._last[1] is not copy):
            self._free.append(copy)


class Store:
    """Parameters and states of the parts that a server has."""

    def __init__(self, spec: ModelSpec, workers: int) -> None:
        """All parameters are zero until `fill`. Raises JobError for an optimizer that servers do not know."""
        self.spec, self.workers = spec, workers
        rule = RULES.get(spec.rule)
        if rule is None:
            raise JobError(f"servers cannot run the optimizer {spec.rule[:80]}", remedy=f"{', '.join(RULES)}")
        self.rule = rule
        self.clock = Clock(workers, spec.staleness)
        self.flat = torch.zeros(spec.nbytes, dtype=torch.uint8)
        """The memory of all parts, in order."""
        self.updates = 0
        """Updates applied so far, to all parts together."""
        self.order: list[list[int]] = []
        """If it is recorded: part, worker, iteration, version and pulled version of each gradient, in order."""
        self.snapshots = Snapshots(self.flat)
        self._counts: list[Counter[int]] = [Counter() for _ in range(workers)]
        self._versions = [0] * len(spec.parts)
        self._pulled: list[list[int]] = [[0] * len(spec.parts) for _ in range(workers)]
        self._pushed: list[set[int]] = [set() for _ in range(workers)]
        ends = list(accumulate(part.count * DTYPES[spec.tensors[part.tensor].dtype] for part in spec.parts))
        self._parameters = [
            self.flat[start:end].view(TYPES[spec.tensors[part.tensor].dtype])
            for part, start, end in zip(spec.parts, [0, *ends], ends, strict=False)
        ]
        try:
            self._optimizers = [
                rule.make(parameter, spec.flags[spec.tensors[part.tensor].group])
                for part, parameter in zip(spec.parts, self._parameters, strict=True)
            ]
        except (TypeError, ValueError) as error:
            raise JobError(f"{spec.rule}: {error}", remedy="the same version of torch in all processes") from None

    def name(self, part: int) -> str:
        """Return the name of a part's tensor."""
        return self.spec.tensors[self.spec.parts[part].tensor].name

    def new_gradient(self, part: int) -> Tensor:
        """Return memory for a gradient of a part."""
        return torch.empty_like(self._parameters[part])

    def check(self, worker: int, part: int, iteration: int) -> None:
        """Raise JobError unless the worker may push this gradient now."""
        if part >= len(self._parameters) or iteration != self.clock.finished(worker) or part in self._pushed[worker]:
            raise JobError(f"rank {worker} sent a gradient twice or out of order: part {part}, iteration {iteration}")

    def apply(self, worker: int, part: int, iteration: int, numbers: Sequence[float], gradient: Tensor) -> int:
        """Apply a gradient, in the part's dtype and of its length. Return its staleness in updates."""
        self.check(worker, part, iteration)
        parameter, optimizer = self._parameters[part], self._optimizers[part]
        self.rule.set(optimizer.param_groups[0], numbers)
        parameter.grad = gradient
        optimizer.step()
        parameter.grad = None
        version, pulled = self._versions[part], self._pulled[worker][part]
        self._versions[part] += 1
        self.updates += 1
        self._pushed[worker].add(part)
        self._counts[worker][version - pulled] += 1
        if self.spec.records_order:
            self.order.append([part, worker, iteration, version, pulled])
        return version - pulled

    def pushed(self, worker: int) -> int:
        """Return how many gradients of the worker's current iteration have been applied."""
        return len(self._pushed[worker])

    def finish(self, worker: int, iterations: int) -> None:
        """Note that a worker's iteration has been applied. Raises JobError unless it is the next one."""
        if iterations != self.clock.finished(worker) + 1:
            raise JobError(f"rank {worker} ended iteration {iterations - 1} out of order")
        self._pushed[worker].clear()
        self.clock.finish(worker, iterations)

    def pull(self, worker: int) -> Tensor:
        """Return all parameters as bytes, a copy that must be given back to `snapshots`."""
        self._pulled[worker] = list(self._versions)
        return self.snapshots.take(self.updates)

    def nbytes_of(self, states: Sequence[State]) -> int:
        """Return the bytes of the tensors among states. Raises JobError if a state comes twice."""
        if len({(state.part, state.key) for state in states}) != len(states):
            raise JobError("a state of the optimizer comes twice")
        if len({state.key for state in states}) > _MOST_STATES:
            raise JobError(f"more than {_MOST_STATES} states for each parameter")
        return sum(self._parameters[state.part].nbytes for state in states if state.number is None)

    def fill(self, weights: Tensor, states: Sequence[State], values: Tensor) -> None:
        """Set parameters and states, all as bytes in order; `values` has the tensors that `nbytes_of` counts."""
        self.flat.copy_(weights)
        start = 0
        for state in states:
            parameter, optimizer = self._parameters[state.part], self._optimizers[state.part]
            if state.number is not None:
                optimizer.state[parameter][state.key] = torch.tensor(float(state.number))
                continue
            end = start + parameter.nbytes
            optimizer.state[parameter][state.key] = values[start:end].clone().view(parameter.dtype)
            start = end

    def states(self) -> tuple[list[State], list[Tensor]]:
        """Return the optimizer's states, and the tensors among them in order."""
        states: list[State] = []
        tensors: list[Tensor] = []
        for part, (parameter, optimizer) in enumerate(zip(self._parameters, self._optimizers, strict=True)):
            for key, value in optimizer.state[parameter].items():
                if isinstance(value, Tensor) and value.dim():
                    states.append(State(part, key))
                    tensors.append(value)
                elif value is not None:
                    states.append(State(part, key, float(value)))
        return states, tensors

    def staleness(self) -> dict[int, dict[int, int]]:
        """Return the number of gradients by worker and staleness."""
        return {worker: dict(counts) for worker, counts in enumerate(self._counts) if counts}
