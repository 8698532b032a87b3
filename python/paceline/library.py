"""What is built in: traces and clusters by name, and how a user's word becomes one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paceline._core import Cluster, Trace, UserError, coordinators, nearest, strategies

_HERE = Path(__file__).parent
_TRACES = _HERE / "traces"
_CLUSTERS = _HERE / "clusters"
_FLAT = b'{"format":"paceline-cluster","version":1,"name":"flat","bandwidth":"25Gbps"}'


@dataclass(frozen=True)
class Strategy:
    """A strategy as the registry lists it: its names, and the knobs it looks at."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    knobs: frozenset[str]

    @property
    def is_a_librarys(self) -> bool:
        """Whether it is the all-reduce of a library underneath, which chooses by what its links carry."""
        return "rates" in self.knobs


@lru_cache(maxsize=1)
def all_strategies() -> tuple[Strategy, ...]:
    """Every strategy that can be forecast, in the order of tables."""
    return tuple(
        Strategy(entry["name"], tuple(entry["aliases"]), entry["summary"], frozenset(entry["knobs"]))
        for entry in json.loads(strategies())
    )


def find_strategy(name: str) -> Strategy:
    """The strategy of this name or alias; raises UserError naming the nearest."""
    for strategy in all_strategies():
        if name == strategy.name or name in strategy.aliases:
            return strategy
    names = [n for s in all_strategies() for n in (s.name, *s.aliases)]
    raise UserError(f"{_unknown('strategy', name, names)}; `paceline strategies` lists them")


GRAPH = "graph"
"""The coordinator that plans."""


@dataclass(frozen=True)
class Coordinator:
    """A way to agree on an order: its names."""

    name: str
    aliases: tuple[str, ...]
    summary: str


@lru_cache(maxsize=1)
def all_coordinators() -> tuple[Coordinator, ...]:
    """Every policy, in the order of tables."""
    entries = json.loads(coordinators())
    return tuple(Coordinator(entry["name"], tuple(entry["aliases"]), entry["summary"]) for entry in entries)


def find_coordinator(name: str, source: str) -> str:
    """The name of the policy of this name or alias; raises UserError: `source`, if any, and the nearest."""
    for coordinator in all_coordinators():
        if name == coordinator.name or name in coordinator.aliases:
            return coordinator.name
    names = [n for c in all_coordinators() for n in (c.name, *c.aliases)]
    near = nearest(name, names)
    known = ", ".join(coordinator.name for coordinator in all_coordinators())
    hint = f"did you mean '{near}'? " if near else ""
    where = f"{source}: " if source else ""
    raise UserError(f"{where}unknown coordinator '{name[:80]}'; {hint}known are {known}")


def _unknown(kind: str, name: str, names: list[str]) -> str:
    near = nearest(name, names)
    return f"unknown {kind} '{name[:80]}'" + (f" (did you mean '{near}'?)" if near else "")


def _key(name: str) -> str:
    """`resnet50` and `resnet-50` are the same."""
    return name.lower().replace("-", "").replace("_", "")


def _built_in(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def trace_names() -> list[str]:
    """Names of the built-in traces."""
    return list(_built_in(_TRACES))


def cluster_names() -> list[str]:
    """Names of the built-in clusters."""
    return list(_built_in(_CLUSTERS))


def built_in_trace(word: str) -> str:
    """The name of the built-in trace that a word means; the word itself if there is none."""
    return next((name for name in trace_names() if _key(name) == _key(word)), word)


def load_trace(source: str | Path | Trace) -> Trace:
    """A trace from a file, a built-in name or `allreduce:SIZE[/COUNT]`; raises UserError."""
    if isinstance(source, Trace):
        return source
    text = str(source)
    if source == "":
        raise UserError("the name of a trace is empty; `paceline traces` lists those that are built in")
    if isinstance(source, str) and text.startswith("allreduce"):
        return Trace.all_reduce(text)
    return Trace.read(_file_of("trace", source, _TRACES, "a file, allreduce:SIZE or a name"))


def _file_of(kind: str, source: str | Path, folder: Path, wanted: str) -> Path:
    """The file that the user's word is or, as a built-in name, means. Raises UserError naming the nearest."""
    path = Path(source)
    if isinstance(source, str) and not path.exists():
        names = _built_in(folder)
        for name, file in names.items():
            if _key(name) == _key(source):
                return file
        if "/" not in source and path.suffix != ".json":
            message = _unknown(kind, source, list(names))
            raise UserError(f"{message}; give {wanted} that `paceline {kind}s` lists")
    return path


def load_cluster(source: str | Path | Cluster | None = None, **overrides: object) -> Cluster:
    """A cluster from a file or a built-in name (none: flat, 25 Gbit/s), with fields of its file format overridden.

    Overrides are the fields of docs/reference/cluster-format.md: `bandwidth="10Gbps"`, `gpus_per_node=4`, …; None
    leaves a field as it is. Raises UserError.
    """
    if isinstance(source, Cluster):
        cluster = source
    elif source is None:
        cluster = Cluster.from_json(_FLAT, "flat")
    else:
        cluster = _named_cluster(source)
    changes = {field: value for field, value in overrides.items() if value is not None}
    if not changes:
        return cluster
    fields = json.loads(cluster.to_json())
    fields.update(changes)
    return Cluster.from_json(json.dumps(fields).encode(), "cluster")


def _named_cluster(source: str | Path) -> Cluster:
    if source == "":
        raise UserError("the name of a cluster is empty; `paceline clusters` lists those that are built in")
    return Cluster.read(_file_of("cluster", source, _CLUSTERS, "a file or a name"))
