"""The cluster file of a probe, which contains only measured values."""

from __future__ import annotations

import json
from typing import Any

from paceline._core import Cluster
from paceline._internal import units
from paceline.catalog.builtin import NO_NETWORK
from paceline.errors import InvalidArgumentError
from paceline.probe.measure import INSIDE, INSIDE_LATENCY, LATENCY, MESSAGE, RING
from paceline.probe.result import ProbeResult

_UNITS = ((1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1.0, "bps"))


def fields(results: ProbeResult) -> dict[str, Any]:
    """Return the fields of docs/reference/cluster-format.md.

    Raises InvalidArgumentError for values that a cluster file cannot express.
    """
    network = results.rate(RING)
    bandwidth = network if network is not None else results.rates[INSIDE].sample.median
    made: dict[str, Any] = {
        "format": "paceline-cluster",
        "version": 1,
        "provenance": _provenance(results),
        "bandwidth": _rate(bandwidth),
        **({} if network is not None else {"bandwidth_measured": False}),
    }
    for name, what in (("latency", LATENCY), ("message_overhead", MESSAGE)):
        if what in results.costs:
            made[name] = _time(results.costs[what].sample.median)
    made["gpus_per_node"] = results.layout.ranks_per_host
    if INSIDE in results.rates:
        made["intra_bandwidth"] = _rate(results.rates[INSIDE].sample.median)
        made["intra_latency"] = _time(results.costs[INSIDE_LATENCY].sample.median)
    if results.compression:
        made["compression_costs"] = [
            {name: value for name, value in one.items() if name != "threads" and value} for one in results.compression
        ]
    try:
        Cluster.from_json(json.dumps(made).encode(), "probe")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"probe: the results do not fit a cluster file: {error}", remedy=error.remedy or "another probe"
        ) from None
    return made


def _provenance(results: ProbeResult) -> str:
    words = [f"paceline probe, {results.date}", results.describe()]
    if RING in results.rates:
        words.append(f"bandwidth: every host to the next at once, {_measured_as(results.rates[RING].sample)}")
    else:
        words.append(f"{NO_NETWORK}: bandwidth repeats intra_bandwidth")
    if LATENCY in results.costs:
        words.append("latency: half a round trip of 8 bytes")
    words.append("message_overhead: time for each additional message of the same bytes, 64 to 4 KiB each")
    if INSIDE in results.rates:
        words.append(
            f"intra_bandwidth: every rank of a host to the next at once, {_measured_as(results.rates[INSIDE].sample)}"
        )
    if results.compression:
        threads = results.compression[0]["threads"]
        words.append(f"compression_costs: the hooks on all ranks at once, {units.count(threads, 'thread')} each")
    return "; ".join(words)


def _measured_as(sample: Any) -> str:  # noqa: ANN401 - a Sample
    return f"median of {len(sample.values)} (±{units.percent(sample.spread)})"


def _rate(bits_per_s: float) -> str:
    factor, unit = next((one for one in _UNITS if bits_per_s >= one[0]), _UNITS[-1])
    return f"{units.short(bits_per_s / factor, 4)}{unit}"


def _time(seconds: float) -> str:
    """Return text in microseconds; values below zero are noise."""
    return f"{max(0.0, seconds) * 1e6:.2f}us"
