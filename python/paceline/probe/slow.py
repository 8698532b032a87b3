"""Hosts, or pairs of hosts, that are slower than the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from paceline._internal import units
from paceline.probe.result import Pair

SLOW = 0.9
"""Hosts and pairs below this share of the others' median are named."""


def slow(pairs: Mapping[Pair, float]) -> list[str]:
    """Return sentences about slow hosts, from rates measured while all hosts sent.

    A host's link counts as being as fast as its fastest pair, so a slow partner does not make it slow. If each host has
    only one partner, the slow link cannot be identified, so the pair is named.
    """
    if not pairs:
        return []
    going: dict[str, list[float]] = {}
    coming: dict[str, list[float]] = {}
    for (source, to), rate in pairs.items():
        going.setdefault(source, []).append(rate)
        coming.setdefault(to, []).append(rate)
    if min(map(len, [*going.values(), *coming.values()])) < 2:
        return _pairs(pairs)
    sends = _slower({host: max(rates) for host, rates in going.items()})
    takes = _slower({host: max(rates) for host, rates in coming.items()})
    return [_sentence(host, sends.get(host), takes.get(host)) for host in going if host in sends or host in takes]


def _slower(rates: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the rate of each slow host or pair, and the others' median."""
    slower = {}
    for name, rate in rates.items():
        others = statistics.median(other for host, other in rates.items() if host != name)
        if rate < SLOW * others:
            slower[name] = rate, others
    return slower


def _sentence(host: str, sends: tuple[float, float] | None, takes: tuple[float, float] | None) -> str:
    words = [
        f"{verb} {units.rate(rates[0])} (others: {units.rate(rates[1])})"
        for verb, rates in (("sends", sends), ("receives", takes))
        if rates is not None
    ]
    return f"host {host} is slow: its NIC {units.listed(words)}"


def _pairs(pairs: Mapping[Pair, float]) -> list[str]:
    fastest = max(pairs.values())
    return [
        f"from host {source} to host {to} there are {units.rate(rate)}, elsewhere up to {units.rate(fastest)}: "
        f"what {source} sends or what {to} receives is slow"
        for (source, to), rate in pairs.items()
        if rate < SLOW * fastest
    ]
