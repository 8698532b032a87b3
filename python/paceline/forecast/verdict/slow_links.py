"""What a verdict says of slow and removed links: what they cost, and where removing one can make it faster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from paceline._core import Cluster, Degraded
from paceline._internal import units
from paceline.errors import InvalidArgumentError
from paceline.forecast.sweep import execute

if TYPE_CHECKING:
    from paceline.forecast.result import Result
    from paceline.forecast.scenario import Scenario

_NOTEWORTHY = 1.0005
_LEVELS = ("rails", "leaf-spine", "fat-tree")
"""Fabrics in which adaptive routing spreads messages over all links that lead on."""


def sentences(scenario: Scenario, result: Result) -> list[str]:
    """Return what the slow links of the cluster cost, and why; nothing if there are none."""
    cluster = scenario.cluster
    slow = [one for one in cluster.degraded if one.factor < 1]
    if not slow or result.workers == 1:
        return []
    names = units.listed([_called(one) for one in slow])
    healthy = scenario.changed(cluster=cluster.replace(degraded=[]))
    try:
        [before] = execute([healthy])
    except InvalidArgumentError:
        return []
    change = result.iteration_s / before.iteration_s if before.iteration_s > 0 else 1.0
    takes = f"it is {units.duration(before.iteration_s)} with all links whole"
    why = _why(slow, cluster, result)
    if change > _NOTEWORTHY:
        effect = f"{names} makes an iteration {units.percent(change - 1)} longer: {takes}"
    elif change < 1 / _NOTEWORTHY:
        effect = f"{names} makes an iteration {units.percent(1 - change)} shorter: {takes}"
    else:
        spread = ", because adaptive routing sends what crosses over the other links, which carry it"
        effect = f"{names} costs nothing{spread if _is_spread(slow, cluster) else ''}"
    return [f"{effect}.", *why]


def _called(one: Degraded) -> str:
    return f"{one.link} removed" if one.factor == 0 else f"{one.link} at {units.percent(one.factor)}"


def _is_port(one: Degraded) -> bool:
    return re.match(r"(node|worker|server)\d+$", one.link.replace(" ", "")) is not None


def _is_spread(slow: list[Degraded], cluster: Cluster) -> bool:
    fabric = cluster.fabric
    adaptive = fabric is not None and fabric.routing == "adaptive" and fabric.kind in _LEVELS
    return adaptive and not any(_is_port(one) for one in slow)


def _why(slow: list[Degraded], cluster: Cluster, result: Result) -> list[str]:
    """Return where less of a link may be faster than more of it, and why."""
    why = []
    ports = [one for one in slow if _is_port(one)]
    fabric = cluster.fabric
    nics = cluster.gpus_per_node if cluster.has_rails else cluster.nics_per_node
    if ports and result.strategy == "native" and cluster.gpu is not None and nics > 1:
        left = f"{nics - 1}/{nics} of its node's rate"
        why.append(
            "NCCL cuts buffers into equal parts for the NICs of a node, so all wait for the slowest; a NIC that is "
            f"removed is left out and leaves {left}, which is faster than one slower than that."
        )
    elif ports:
        why.append(
            "Every node has its part of each exchange, so all wait for the slow port; without that node the others "
            "would be as fast as before."
        )
    if fabric is not None and not _is_spread([], cluster) and any(not _is_port(one) for one in slow):
        hashed = fabric.routing == "ecmp"
        routes = "Routes are hashed (ecmp)" if hashed else f"Routes in a {fabric.kind} are the shortest"
        why.append(
            f"{routes} and do not avoid a slow link; a link that is removed is avoided, and all routes over it are "
            "chosen anew, so removing it may make an iteration shorter, even than with all links whole."
        )
    return why
