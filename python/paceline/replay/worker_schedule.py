"""What one worker does in each iteration, taken from the simulator, so that nothing is defined twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from paceline import _core
from paceline._core import Cluster, Trace


@dataclass(frozen=True)
class Layer:
    """A forward layer. `needs` are the buckets it waits for from the second iteration on."""

    name: str
    duration_s: float
    needs: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    """A bucket of gradients; `elements` are of the trace's dtype."""

    name: str
    elements: int
    pull_only: bool
    priority: int


@dataclass(frozen=True)
class Factors:
    """Factors of the times of one iteration."""

    compute: float
    backward: float


@dataclass(frozen=True)
class WorkerSchedule:
    """The schedule of one worker. Times are in seconds, before factors."""

    trace: str
    dtype: str
    buckets: tuple[Bucket, ...]
    layers: tuple[Layer, ...]
    ready: tuple[tuple[float, int], ...]
    """When each bucket may be sent, from the start of the backward pass, in order."""
    backward_s: float
    optimizer_s: float
    """After the last sum; 0 if layers include it."""
    factors: tuple[Factors, ...]
    """By iteration."""
    pull_by_layer: bool
    exchange_only: bool
    servers: bool
    order: tuple[int, ...]
    """The order in which ranks hand over buckets: the same on all ranks, the first recorded worker's."""
    same_order: bool
    """Whether all recorded workers have this order."""

    @classmethod
    def of(
        cls, trace: Trace, cluster: Cluster, options: Mapping[str, Any], worker: int, iterations: int
    ) -> WorkerSchedule:
        """Return the schedule of one worker under these options. Raises InvalidArgumentError."""
        text = _core.replay(trace, cluster, json.dumps(dict(options)), worker, iterations)
        values: dict[str, Any] = json.loads(text)
        values["layers"] = tuple(Layer(**{**layer, "needs": tuple(layer["needs"])}) for layer in values["layers"])
        values["buckets"] = tuple(Bucket(**bucket) for bucket in values["buckets"])
        values["ready"] = tuple((at, bucket) for at, bucket in values["ready"])
        values["factors"] = tuple(Factors(**factors) for factors in values["factors"])
        values["order"] = tuple(values["order"])
        return cls(**values)

    def handing_over(self) -> list[tuple[float, int]]:
        """Return when each bucket is handed over, from the start of the backward pass, in the common order."""
        ready = {bucket: at for at, bucket in self.ready}
        return list(zip(accumulate((ready[bucket] for bucket in self.order), max), self.order, strict=True))
