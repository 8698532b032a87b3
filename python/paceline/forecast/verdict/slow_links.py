"""Costs of slow and removed links, and where removing one can make an iteration faster."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline._core import Cluster, Degraded
from paceline.errors import InvalidArgumentError
from paceline.forecast.execute import execute
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario

_LEVELS = ("rails", "leaf-spine", "fat-tree")
"""Fabrics in which adaptive routing spreads messages over all links that lead on."""


@dataclass(frozen=True)
class SlowLinks:
    """The cost of a cluster's slow links, and its cause."""

    links: tuple[Degraded, ...]
    iteration_s: float
    healthy_s: float
    """The time of an iteration with all links whole."""
    is_spread: bool
    """Whether adaptive routing sends what crosses over the other links."""
    cards: int = 0
    """NICs of a node of which one is slow, into which NCCL cuts buffers."""
    has_ports: bool = False
    """Whether one is the port of a node, for which all others wait."""
    fabric: str = ""
    """The kind of fabric whose routes do not avoid a slow link; empty if they do."""
    is_hashed: bool = False
    """Whether these are hashed."""


def slow_links(scenario: Scenario, result: Result) -> SlowLinks | None:
    """Return what the slow links of the cluster cost; None if there are none."""
    cluster = scenario.cluster
    slow = [one for one in cluster.degraded if one.factor < 1]
    if not slow or result.workers == 1:
        return None
    try:
        [healthy] = execute([scenario.changed(cluster=cluster.replace(degraded=[]))])
    except InvalidArgumentError:
        return None
    ports, fabric = [one for one in slow if _is_port(one)], cluster.fabric
    nics = cluster.gpus_per_node if cluster.has_rails else cluster.nics_per_node
    is_cut = bool(ports) and result.strategy == "native" and cluster.gpu is not None and nics > 1
    is_fixed = fabric is not None and not _is_spread([], cluster) and len(ports) < len(slow)
    return SlowLinks(
        tuple(slow),
        result.iteration_s,
        healthy.iteration_s,
        _is_spread(slow, cluster),
        cards=nics if is_cut else 0,
        has_ports=bool(ports) and not is_cut,
        fabric=fabric.kind if fabric is not None and is_fixed else "",
        is_hashed=fabric is not None and fabric.routing == "ecmp",
    )


def _is_port(one: Degraded) -> bool:
    return re.match(r"(node|worker|server)\d+$", one.link.replace(" ", "")) is not None


def _is_spread(slow: list[Degraded], cluster: Cluster) -> bool:
    fabric = cluster.fabric
    adaptive = fabric is not None and fabric.routing == "adaptive" and fabric.kind in _LEVELS
    return adaptive and not any(_is_port(one) for one in slow)
