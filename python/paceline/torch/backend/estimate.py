"""torch's `dist._time_estimator()`: how long collectives would take under NCCL on GPUs, without running them.

PACELINE_ESTIMATE_ON names the cluster. Collectives inside the context are not run: tensors keep their values.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from paceline.catalog.builtin import load_cluster
from paceline.catalog.nccl import Kind
from paceline.errors import InvalidArgumentError
from paceline.forecast.nccl import Group, Machine, collective_time

VARIABLE = "PACELINE_ESTIMATE_ON"
_KINDS: dict[str, Kind] = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
# Their tensors are a rank's shard of the buffer, whose bytes NCCL counts.
_SHARDED = frozenset({"all_gather", "reduce_scatter"})


class Estimates:
    """The estimate of a process group, if one is running."""

    def __init__(self) -> None:
        """Nothing is running."""
        self._machine: Machine | None = None
        self._seconds = 0.0

    @property
    def running(self) -> bool:
        """Whether collectives are estimated instead of run."""
        return self._machine is not None

    def start(self) -> None:
        """Begin an estimate, also after one that an error ended. Raises InvalidArgumentError without a cluster."""
        name = os.environ.get(VARIABLE)
        if not name:
            raise InvalidArgumentError(
                "_time_estimator needs the cluster whose times are wanted",
                remedy=f"{VARIABLE}=dgx-h100 (list: paceline list clusters)",
            )
        self._machine, self._seconds = Machine.of(load_cluster(name)), 0.0

    def add(self, call: str, tensors: Sequence[Tensor], ranks: Sequence[int]) -> None:
        """Add a collective of these ranks. Raises InvalidArgumentError if it has no estimate."""
        assert self._machine is not None
        kind = _KINDS.get(call)
        if kind is None:
            self._machine = None  # torch does not end an estimate that an error leaves
            raise InvalidArgumentError(
                f"_time_estimator: {call} has no estimate, only {', '.join(_KINDS)}",
                remedy=f"{call} outside of the context",
            )
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        size *= len(ranks) if call in _SHARDED else 1
        self._seconds += collective_time(kind, size, layout(ranks, self._machine.gpus_per_node), self._machine).seconds

    def end(self) -> float:
        """End the estimate, and return its microseconds."""
        self._machine = None
        return 1e6 * self._seconds


def layout(ranks: Sequence[int], gpus_per_node: int) -> Group:
    """Return the group of these ranks of a job whose ranks fill the nodes in order."""
    return Group(len(ranks), max(Counter(rank // gpus_per_node for rank in ranks).values()))


class Estimated:
    """In place of an operation of the runtime: it is over at once."""

    def done(self) -> bool:
        """Return True."""
        return True

    def ready(self) -> bool:
        """Return True: nothing is waited for."""
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True."""
        return True

    def hold(self, stream: int) -> None:
        """Do nothing: there is no result."""

    def source(self) -> int:
        """Return the rank that a receive would be from: receives are not estimated."""
        raise NotImplementedError
