"""Bucket plans as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._core import Graph
from paceline._internal.files import check_writable, replaced
from paceline.errors import InvalidArgumentError
from paceline.hvd.plan_file import FORMAT, VERSION

DEFAULT_BUCKET_SIZE = "64MB"
"""Horovod's fusion threshold when the method was published (0.16.3)."""

IDS = ("depth", "listed")
"""How all-reduces may be numbered."""


@dataclass(frozen=True)
class Tensor:
    """One all-reduce of the plan."""

    id: int
    name: str
    dtype: str
    bytes: int
    depth: int
    """Longest path from a node without inputs."""
    bucket: int
    """Position of its bucket in the plan."""


@dataclass(frozen=True)
class Bucket:
    """All-reduces that are fused into one operation."""

    dtype: str
    bytes: int
    """Sum over its tensors."""
    tensors: tuple[int, ...]
    """Ids of its all-reduces, ascending."""


@dataclass(frozen=True)
class Plan:
    """The all-reduces of a graph by id, and its buckets in the order in which they are issued."""

    graph: str
    nodes: int
    """Number of nodes needed by the fetches."""
    edges: int
    """Number of edges between them: their inputs, each as often as it is read."""
    bucket_size_bytes: int
    """Maximum size of a bucket of several tensors."""
    tensors: tuple[Tensor, ...]
    buckets: tuple[Bucket, ...]

    def names(self) -> list[list[str]]:
        """Return the names of the all-reduces of each bucket."""
        return [[self.tensors[tensor].name for tensor in bucket.tensors] for bucket in self.buckets]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as `paceline plan --json` prints it."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, for `paceline run --coordinator-plan`.

        Args:
            path: The file to write. One that exists is replaced, in one move.

        Raises:
            InvalidArgumentError: The file cannot be written.
        """
        check_writable("path", Path(path))
        with replaced(Path(path)) as file:
            file.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")


def plan_graph(
    graph: Graph,
    fetches: Sequence[str] | None = None,
    bucket_size: str | int | None = DEFAULT_BUCKET_SIZE,
    *,
    ids: str = "depth",
) -> Plan:
    """Number the all-reduces that the fetches need, and fuse them into buckets.

    Args:
        graph: The graph.
        fetches: Names of the nodes that a step computes; by default those that the graph names.
        bucket_size: Maximum size of a fused bucket in bytes, or text such as `"64MB"`. `None` puts every tensor into
            its own bucket.
        ids: `"depth"` numbers all-reduces by their depth in the graph; `"listed"` by their place in the file, in which
            parents must then come before children, as in a recorded backward pass.

    Returns:
        The plan.

    Raises:
        InvalidArgumentError: A fetch is unknown, there are none, what they need has a cycle, or an argument is invalid.

    Example:
        >>> from paceline_lab.plan import Graph, plan_graph
        >>> node = '{"name": "%s", "all_reduce": {"dtype": "float32", "bytes": 1000}}'
        >>> text = '{"format": "paceline-graph", "version": 1, "name": "two", "edges": [], "nodes": [%s, %s]}'
        >>> graph = Graph.from_json((text % (node % "a", node % "b")).encode(), "example")
        >>> plan_graph(graph, ["a", "b"], "64MB").names()
        [['a', 'b']]
    """
    wanted = list(graph.fetches if fetches is None else fetches)
    if ids not in IDS:
        raise InvalidArgumentError(f"ids: unknown value '{ids}'", remedy=f"one of {', '.join(IDS)}")
    planned = json.loads(graph.plan(wanted, size_of(bucket_size), as_listed=ids == "listed"))
    return Plan(
        graph=planned["graph"],
        nodes=planned["nodes"],
        edges=planned["edges"],
        bucket_size_bytes=planned["bucket_size_bytes"],
        tensors=tuple(Tensor(**tensor) for tensor in planned["tensors"]),
        buckets=tuple(Bucket(**{**bucket, "tensors": tuple(bucket["tensors"])}) for bucket in planned["buckets"]),
    )


def traversal_s(
    graph: Graph, fetches: Sequence[str], bucket_size: str | int | None, *, ids: str = "depth", times: int = 21
) -> float:
    """Return how long it takes to traverse the graph once and to fuse its all-reduces, in seconds.

    Reading the file and writing the plan take no part in it, as in Table I of the publication. It is the median of
    so many times. Raises InvalidArgumentError, as `plan_graph`.
    """
    return graph.traversal_s(list(fetches), size_of(bucket_size), times, as_listed=ids == "listed")


def size_of(bucket_size: str | int | None) -> int:
    """Return the bucket size in bytes; 0, which fuses nothing, for None or "none". Raises InvalidArgumentError."""
    if bucket_size is None or bucket_size == "none":
        return 0
    if isinstance(bucket_size, str):
        return _core.parse_size(bucket_size)
    if not 0 <= bucket_size < 1 << 64:
        raise InvalidArgumentError(f"bucket_size: must be at least 0 bytes, not {bucket_size}", remedy="bucket_size=0")
    return bucket_size
