"""A probe as text."""

from __future__ import annotations

from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Column, render
from paceline.catalog.builtin import NO_NETWORK
from paceline.probe.compression import PARTS, of_bucket
from paceline.probe.layout import Host
from paceline.probe.machine import GAP_NS
from paceline.probe.measure import RING
from paceline.probe.result import ProbeResult

_WORTH_NAMING = 0.02
_LATE_S = 0.002
_SHOWN = 16


def text(results: ProbeResult, width: int) -> list[str]:
    """Return lines: the rate and latency in a headline, tables of rates, times and machines, and remarks."""
    lines = [*block.headline(_headline(results)), "", *block.block(_facts(results), width), ""]
    if results.rates:
        lines += [*_rates(results), ""]
    lines += [*_costs(results), ""]
    if results.compression:
        lines += [*_compression(results), ""]
    if results.machines:
        lines += [*_machines(results), ""]
    left_out = [f"Not measured, for lack of time: {units.listed(results.left_out)}"] if results.left_out else []
    return [*lines[:-1], *block.notes([*_notes(results), *left_out], width)]


def _headline(results: ProbeResult) -> str:
    hosts = units.count(len(results.layout.hosts), "host")
    if RING not in results.rates:
        return f"{hosts}: no network was measured"
    return f"{hosts}: {units.rate(results.rates[RING].sample.median)} per host in a ring"


def _facts(results: ProbeResult) -> list[Fact]:
    moved = f"{units.size(results.bytes_sent)} sent in {units.duration(results.seconds)}"
    return [Fact("Job", results.describe()), Fact("Probe", moved)]


def _rates(results: ProbeResult) -> list[str]:
    columns = [Column("pattern", left=True), *map(Column, ("flows", "bytes", "rate", "spread", "repeats"))]
    rows = [
        [
            rate.pattern,
            str(rate.flows),
            units.size(rate.size),
            units.rate(rate.sample.median),
            f"±{units.percent(rate.sample.spread)}",
            str(len(rate.sample.values)),
        ]
        for rate in results.rates.values()
    ]
    return render(columns, [rows])


def _costs(results: ProbeResult) -> list[str]:
    columns = [Column("", left=True), *map(Column, ("time", "spread", "repeats"))]
    rows = [
        [
            cost.what,
            units.duration(max(0.0, cost.sample.median)),
            f"±{units.percent(cost.sample.spread)}",
            str(len(cost.sample.values)),
        ]
        for cost in results.costs.values()
    ]
    return render(columns, [rows])


def _compression(results: ProbeResult) -> list[str]:
    columns = [Column("a bucket of 25 MiB\non 2 ranks", left=True), *map(Column, PARTS)]
    rows = [
        [one["method"], *(units.duration(seconds) if seconds else "-" for seconds in of_bucket(one).values())]
        for one in results.compression
    ]
    return render(columns, [rows])


def _machines(results: ProbeResult) -> list[str]:
    heads = ("cores", "late, median", "late, 99 %", "taken away", "longest gap", "switches", "steal")
    columns = [Column("host", left=True), *map(Column, heads)]
    rows = [_machine(host, _of(results, host)) for host in results.layout.hosts[:_SHOWN]]
    more = len(results.layout.hosts) - len(rows)
    return render(columns, [rows]) + ([f"and {more} more: --json"] if more else [])


def _of(results: ProbeResult, host: Host) -> list[dict[str, Any]]:
    return [results.machines[rank] for rank in host.ranks]


def _worst(ranks: list[dict[str, Any]], name: str) -> float:
    return max(float(rank[name]) for rank in ranks)


def _machine(host: Host, ranks: list[dict[str, Any]]) -> list[str]:
    """Return the values of a host's worst rank."""
    return [
        host.name,
        str(ranks[0]["cores"]),
        units.duration(_worst(ranks, "late_median_s")),
        units.duration(_worst(ranks, "late_p99_s")),
        units.percent(_worst(ranks, "taken_share")),
        units.duration(_worst(ranks, "longest_gap_s")),
        str(sum(rank["involuntary_switches"] for rank in ranks)),
        units.duration(_worst(ranks, "steal_s")),
    ]


def _notes(results: ProbeResult) -> list[str]:
    notes = [] if RING in results.rates else [f"{NO_NETWORK[0].upper()}{NO_NETWORK[1:]}: start them on several"]
    return notes + results.notes + (_about_machines(results) if results.machines else [])


def _about_machines(results: ProbeResult) -> list[str]:
    hosts, notes = results.layout.hosts, []
    taken = {host.name: _worst(_of(results, host), "taken_share") for host in hosts}
    late = {host.name: _worst(_of(results, host), "late_p99_s") for host in hosts}
    if busy := [name for name, share in taken.items() if share > _WORTH_NAMING]:
        crowded = any(len(host.ranks) > results.machines[host.first]["cores"] for host in hosts)
        why = "more ranks than cores" if crowded else "other processes, or the machine's own host"
        notes.append(
            f"On {_named(busy)} up to {units.percent(max(taken.values()))} of a busy rank's time was taken away, in "
            f"gaps of more than {units.duration(GAP_NS * 1e-9)}: {why}"
        )
    if slow := [name for name, seconds in late.items() if seconds > _LATE_S]:
        notes.append(
            f"On {_named(slow)} one in a hundred sleeps ended up to {units.duration(max(late.values()))} late or more"
        )
    return notes


def _named(hosts: list[str]) -> str:
    shown = [*hosts[:_SHOWN], *(["…"] * (len(hosts) > _SHOWN))]
    return f"host{'s' * (len(hosts) > 1)} {units.listed(shown)}"
