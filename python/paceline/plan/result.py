"""What a plan holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline import _core
from paceline._core import Graph
from paceline.errors import InvalidArgumentError

DEFAULT_BUCKET_SIZE = "64MB"
"""Horovod's threshold when the method was published (0.16.3)."""

IDS = ("depth", "listed")
"""Ways to number all-reduces."""


@dataclass(frozen=True)
class Tensor:
    """An all-reduce; `bucket` is the place of its bucket in the plan."""

    id: int
    name: str
    dtype: str
    bytes: int
    depth: int
    bucket: int


@dataclass(frozen=True)
class Bucket:
    """All-reduces that are one operation: ids, rising, and the sum of their bytes."""

    dtype: str
    bytes: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """All-reduces by id, and buckets in the order in which they are issued.

    `nodes` is how many nodes the fetches need; `bucket_size_bytes` what a bucket of several tensors holds at most.
    """

    graph: str
    nodes: int
    bucket_size_bytes: int
    tensors: tuple[Tensor, ...]
    buckets: tuple[Bucket, ...]

    def names(self) -> list[list[str]]:
        """Names of the all-reduces of each bucket."""
        return [[self.tensors[tensor].name for tensor in bucket.tensors] for bucket in self.buckets]

    def to_dict(self) -> dict[str, Any]:
        """What `paceline plan --json` prints."""
        return asdict(self)


def plan_graph(
    graph: Graph,
    fetches: Sequence[str] | None = None,
    bucket_size: str | int | None = DEFAULT_BUCKET_SIZE,
    *,
    ids: str = "depth",
) -> Plan:
    """Ids and buckets of the all-reduces that the fetches need; without, those that the graph names.

    `bucket_size` is bytes or text such as "64MB"; None: every tensor has a bucket of its own. `ids` are by "depth", or
    as "listed" in the graph, which must then have parents before children, as that of a backward pass has.
    Raises InvalidArgumentError for an unknown fetch, for none, and for a cycle among what they need.
    """
    wanted = list(graph.fetches if fetches is None else fetches)
    if ids not in IDS:
        raise InvalidArgumentError(f"ids: '{ids}' is none of {', '.join(IDS)}")
    found = json.loads(graph.plan(wanted, size_of(bucket_size), as_listed=ids == "listed"))
    return Plan(
        graph=found["graph"],
        nodes=found["nodes"],
        bucket_size_bytes=found["bucket_size_bytes"],
        tensors=tuple(Tensor(**tensor) for tensor in found["tensors"]),
        buckets=tuple(Bucket(**{**bucket, "tensors": tuple(bucket["tensors"])}) for bucket in found["buckets"]),
    )


def size_of(bucket_size: str | int | None) -> int:
    """Bytes; 0 for None or "none", with which nothing is fused. Raises InvalidArgumentError."""
    if bucket_size is None or bucket_size == "none":
        return 0
    if isinstance(bucket_size, str):
        return _core.parse_size(bucket_size)
    if not 0 <= bucket_size < 1 << 64:
        raise InvalidArgumentError(f"bucket_size: {bucket_size} is no number of bytes; give one of at least 0")
    return bucket_size
