"""Strategies and coordinators: what is registered, lookup by name, and which options each of them uses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from paceline._core import Cluster, Switch, coordinator_name, coordinators, strategies
from paceline._internal.nearest import nearest
from paceline._internal.units import listed
from paceline.catalog.names import CoordinatorName, StrategyName
from paceline.errors import InvalidArgumentError

KNOBS = ("servers", "chunk", "placement", "distribution", "pull", "staleness", "inside")
"""Options that only some strategies use."""


SWITCHES = frozenset({"multicast", "aggregation"})
"""Knobs of strategies that need more of a switch than to forward."""
EXTRAS = (SERVERS, SWITCH) = ("servers", "switch")
"""Requirements that not every cluster meets: parameter servers, and a switch that multicasts or aggregates."""


@dataclass(frozen=True)
class Strategy:
    """A registered strategy: its names, the options (knobs) that it uses, and the collectives that it has."""

    name: StrategyName
    aliases: tuple[str, ...]
    summary: str
    knobs: frozenset[str]
    collectives: tuple[str, ...]
    """`all-reduce`, and `reduce-scatter` and `all-gather` if it has the halves; none if it is asynchronous."""

    @property
    def is_of_ranks(self) -> bool:
        """Whether ranks alone add up: no servers, and no switch that adds up or copies."""
        return self.knobs.isdisjoint({"servers", "multicast", "aggregation"})

    @property
    def is_synchronous(self) -> bool:
        """Whether workers wait for the gradients of all others in every iteration."""
        return "staleness" not in self.knobs

    @property
    def extras(self) -> frozenset[str]:
        """Which of `EXTRAS` it needs."""
        return frozenset(([SERVERS] if "servers" in self.knobs else []) + ([SWITCH] if SWITCHES & self.knobs else []))

    @property
    def is_offloaded(self) -> bool:
        """Whether it is the all-reduce of an underlying library, which chooses the algorithm by its links' rates."""
        return "rates" in self.knobs


@lru_cache(maxsize=1)
def registered_strategies() -> tuple[Strategy, ...]:
    """Return every strategy, in the order of tables."""
    return tuple(
        Strategy(
            entry["name"],
            tuple(entry["aliases"]),
            entry["summary"],
            frozenset(entry["knobs"]),
            tuple(entry["collectives"]),
        )
        for entry in json.loads(strategies())
    )


def all_strategies() -> tuple[Strategy, ...]:
    """Return the strategies that `all` stands for, in the order of tables: those whose workers wait for each other.

    They differ in nothing but their speed. `async-ps` may need more iterations, and is not among them.

    Example:
        >>> [strategy.name for strategy in paceline.all_strategies()][:2]
        ['ps', 'ps-multicast']
    """
    return tuple(strategy for strategy in registered_strategies() if strategy.is_synchronous)


_NO_SUMS = "a switch that adds waits for all workers' gradients, and asynchronous workers do not wait for each other"
_NO_COPIES = (
    "workers pull at different times, and copies of each update for all are as many bytes out of a server as pulls, "
    "and W times as many into each of W workers"
)
_IMPOSSIBLE = {
    "async-ps-multicast": _NO_COPIES,
    "async-ps-aggregation": _NO_SUMS,
    "async-ps-multicast-aggregation": _NO_SUMS,
}
"""Names that users may try, and why there is no such strategy."""


def find_strategy(name: str) -> Strategy:
    """Return the strategy of this name or alias. Raises InvalidArgumentError, which suggests a similar name."""
    for strategy in registered_strategies():
        if name.lower() in (strategy.name, *strategy.aliases):
            return strategy
    if name in _IMPOSSIBLE:
        other = name.removeprefix("async-")
        raise InvalidArgumentError(
            f"there is no {name}: {_IMPOSSIBLE[name]}", setting="strategy", remedy=f"{{this=async-ps}}, or {other}"
        )
    names = [n for s in registered_strategies() for n in (s.name, *s.aliases)]
    near = nearest(name, names)
    raise unknown("strategy", name, [near] if near else [], "paceline list strategies")


GRAPH = "graph"
"""The coordinator that plans the order of gradients."""


@dataclass(frozen=True)
class Coordinator:
    """A registered coordinator: its names."""

    name: CoordinatorName
    aliases: tuple[str, ...]
    summary: str


@lru_cache(maxsize=1)
def all_coordinators() -> tuple[Coordinator, ...]:
    """Return all coordinators, in the order of tables."""
    entries = json.loads(coordinators())
    return tuple(Coordinator(entry["name"], tuple(entry["aliases"]), entry["summary"]) for entry in entries)


def find_coordinator(name: str) -> str:
    """Return the name of a coordinator, by name or alias, with its argument if it has one: "gs:4" is "global-sleep:4".

    Raises InvalidArgumentError, which suggests a similar name.
    """
    name = name.lower()
    own = name.partition(":")[0]
    if any(own == one.name or own in one.aliases for one in all_coordinators()):
        return coordinator_name(name)
    names = [n for c in all_coordinators() for n in (c.name, *c.aliases)]
    near = nearest(own, names)
    known = ", ".join(" or ".join([one.name, *one.aliases]) for one in all_coordinators())
    raise InvalidArgumentError(
        f"unknown coordinator '{name[:80]}'", remedy=f"{near or all_coordinators()[0].name} (one of {known})"
    )


def coordinator_place(name: str) -> int:
    """Return the place in tables of a coordinator, whatever its argument."""
    own = name.partition(":")[0]
    return next(place for place, one in enumerate(all_coordinators()) if one.name == own)


def unknown(kind: str, name: str, meant: Sequence[str], listing: str) -> InvalidArgumentError:
    """Return the error about an unknown name.

    Args:
        kind: Of what it is a name.
        name: The name.
        meant: Known names that may be meant, the likeliest first.
        listing: The commands that list all.
    """
    remedy = f"{listed(meant, 'or')} (list: {listing})" if meant else listing.replace(", ", ", or ")
    return InvalidArgumentError(f"unknown {kind} '{name[:80]}'", remedy=remedy)


def _others(strategies: Sequence[str]) -> str:
    return f" (or {listed(strategies, 'or')})" if strategies else ""


def check_knobs(strategies: Iterable[Strategy], given: Iterable[str]) -> None:
    """Refuse a knob that none of the strategies uses."""
    candidates = list(strategies)
    names = ", ".join(strategy.name for strategy in candidates)
    for knob in given:
        if knob in (*KNOBS, "multicast") and not any(knob in strategy.knobs for strategy in candidates):
            users: list[str] = [strategy.name for strategy in registered_strategies() if knob in strategy.knobs]
            raise InvalidArgumentError(
                f"has no effect on {names}",
                setting=knob,
                remedy=f"{{strategy={users[0]}}}{_others(users[1:])}, or drop {{this}}",
            )


def feasible(strategies: Iterable[Strategy], cluster: Cluster) -> tuple[list[Strategy], list[Strategy]]:
    """Return the strategies that the cluster's switches support, and the others."""
    able: list[Strategy] = []
    unable: list[Strategy] = []
    for strategy in strategies:
        (unable if lacks(strategy, cluster) else able).append(strategy)
    return able, unable


def lacks(strategy: Strategy, cluster: Cluster) -> str:
    """Return what a strategy needs that the cluster's switches do not have; empty if nothing."""
    able = {"multicast": cluster.switch.multicast, "aggregation": cluster.switch.aggregation}
    needs = [kind for kind in sorted(SWITCHES & strategy.knobs) if not able[kind]]
    if needs:
        return (
            f"needs {' and '.join(needs)} in the switch, which cluster '{cluster.name}' does not have (switch in its "
            "file)"
        )
    if cluster.fabric is not None and strategy.knobs >= {"servers", "aggregation"}:
        return f"adds up in one switch, and those of cluster '{cluster.name}' form a fabric; use sharp"
    return ""


def with_switch(cluster: Cluster, *kinds: str) -> Cluster | None:
    """Return the cluster with switches that multicast or aggregate; None if its fabric is not modeled with that."""
    own = cluster.switch
    able = Switch(
        multicast=own.multicast or "multicast" in kinds,
        aggregation=own.aggregation or "aggregation" in kinds,
        cut_through=own.cut_through,
        memory=own.memory,
        radix=own.radix,
    )
    try:
        return cluster.replace(switch=able)
    except InvalidArgumentError:
        return None
