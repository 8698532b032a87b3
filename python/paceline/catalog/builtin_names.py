"""The names of what is built in: traces, clusters, and collectives."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

COLLECTIVES: tuple[Literal["allreduce", "allgather", "reducescatter", "broadcast", "reduce"], ...] = (
    "allreduce",
    "allgather",
    "reducescatter",
    "broadcast",
    "reduce",
)
"""Collectives of `NAME:SIZE`; only all-reduces are also simulated."""
TRACES = Path(__file__).parent / "traces"
CLUSTERS = Path(__file__).parent / "clusters"


def key(name: str) -> str:
    """Return a name without what does not count: `resnet50` and `resnet-50` are the same."""
    return name.lower().replace("-", "").replace("_", "")


@lru_cache(maxsize=8)
def built_in(folder: Path) -> Mapping[str, Path]:
    """Return the files of a folder of the package by name."""
    return MappingProxyType({path.stem: path for path in sorted(folder.glob("*.json"))})


def trace_names() -> list[str]:
    """Return the names of the built-in traces.

    Example:
        >>> "resnet-50" in paceline.trace_names()
        True
    """
    return list(built_in(TRACES))


def cluster_names() -> list[str]:
    """Return the names of the built-in clusters.

    Example:
        >>> "flat" in paceline.cluster_names()
        True
    """
    return list(built_in(CLUSTERS))


def built_in_trace(word: str) -> str:
    """Return the name of the built-in trace that a word stands for, or the word itself if there is none."""
    return next((name for name in trace_names() if key(name) == key(word)), word)
