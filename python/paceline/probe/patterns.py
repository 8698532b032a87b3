"""Who sends to whom: flows between ranks, as pairs of sender and receiver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from paceline.probe.layout import Host

Flows = list[tuple[int, int]]

ALL_PAIRS = 9
"""Up to this many hosts every pair is measured; with more, only distances that are powers of two."""
_ALONE = 8


def shifted(hosts: Sequence[Host], distance: int, ranks: int = 1) -> Flows:
    """Send from the first `ranks` ranks of each host to the host this many places further on, all at once."""
    others = [hosts[(number + distance) % len(hosts)] for number in range(len(hosts))]
    return [
        (host.ranks[place], other.ranks[place])
        for host, other in zip(hosts, others, strict=True)
        for place in range(ranks)
    ]


def distances(hosts: int) -> list[int]:
    """Return the distances, other than 1, at which each host is paired with others."""
    if hosts <= ALL_PAIRS:
        return list(range(2, hosts))
    return sorted({*(1 << power for power in range(1, (hosts - 1).bit_length())), hosts - 1})


def alone(hosts: Sequence[Host]) -> Flows:
    """Return pairs of neighbors to measure one after the other: at most eight, evenly chosen."""
    every = shifted(hosts, 1)
    return every if len(every) <= _ALONE else [every[number * len(every) // _ALONE] for number in range(_ALONE)]


def incast(hosts: Sequence[Host]) -> Flows:
    """Send from all other hosts to the first."""
    return [(host.first, hosts[0].first) for host in hosts[1:]]


def fan_out(hosts: Sequence[Host]) -> Flows:
    """Send from the first host to all others."""
    return [(to, source) for source, to in incast(hosts)]


def both_ways(hosts: Sequence[Host]) -> Flows:
    """Send between the first two hosts in both directions."""
    one, other = hosts[0].first, hosts[1].first
    return [(one, other), (other, one)]


def inside(host: Host) -> Flows:
    """Send from each rank of a host to the next one."""
    return [(rank, host.ranks[(place + 1) % len(host.ranks)]) for place, rank in enumerate(host.ranks)]


def most_through_one(flows: Flows, host_of: Sequence[int]) -> int:
    """Return the number of flows through the busiest link: a host's outgoing or incoming one."""
    return max((Counter(host_of[a] for a, _ in flows) | Counter(host_of[b] for _, b in flows)).values())
