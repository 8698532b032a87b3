"""A probe as text for people."""

from __future__ import annotations

from typing import Any

from paceline import human
from paceline.probe import cluster_file
from paceline.probe.layout import Host
from paceline.probe.machine import GAP_NS
from paceline.probe.measure import RING
from paceline.probe.result import Found
from paceline.table import Column, render, wrapped

_WORTH_NAMING = 0.02
_LATE_S = 0.002


def text(found: Found, width: int) -> list[str]:
    """Tables of rates, times and machines, and what is worth a word: lines."""
    lines = [found.describe(), ""]
    if found.rates:
        lines += [*_rates(found), ""]
    lines += [*_costs(found), ""]
    if found.machines:
        lines += [*_machines(found), ""]
    for note in _notes(found):
        lines += wrapped(note, width)
    moved = f"{human.size(found.bytes_sent)} sent in {human.duration(found.seconds)}"
    return [*lines, *([f"left out, for lack of time: {human.listed(found.left_out)}"] if found.left_out else []), moved]


def _rates(found: Found) -> list[str]:
    columns = [Column("pattern", left=True), *map(Column, ("flows", "bytes", "rate", "spread", "repeats"))]
    rows = [
        [
            rate.pattern,
            str(rate.flows),
            human.size(rate.size),
            human.rate(rate.sample.median),
            f"±{human.percent(rate.sample.spread)}",
            str(len(rate.sample.values)),
        ]
        for rate in found.rates.values()
    ]
    return render(columns, [rows], highlight_first=False)


def _costs(found: Found) -> list[str]:
    columns = [Column("", left=True), *map(Column, ("time", "spread", "repeats"))]
    rows = [
        [
            cost.what,
            human.duration(cost.sample.median),
            f"±{human.percent(abs(cost.sample.spread))}",
            str(len(cost.sample.values)),
        ]
        for cost in found.costs.values()
    ]
    return render(columns, [rows], highlight_first=False)


def _machines(found: Found) -> list[str]:
    heads = ("cores", "late, median", "late, 99 %", "taken away", "longest gap", "switches", "steal")
    columns = [Column("host", left=True), *map(Column, heads)]
    rows = [_machine(host, [found.machines[rank] for rank in host.ranks]) for host in found.layout.hosts]
    return render(columns, [rows], highlight_first=False)


def _machine(host: Host, ranks: list[dict[str, Any]]) -> list[str]:
    """The worst of its ranks."""

    def worst(name: str) -> float:
        return max(float(rank[name]) for rank in ranks)

    return [
        host.name,
        str(ranks[0]["cores"]),
        human.duration(worst("late_median_s")),
        human.duration(worst("late_p99_s")),
        human.percent(worst("taken_share")),
        human.duration(worst("longest_gap_s")),
        str(sum(rank["involuntary_switches"] for rank in ranks)),
        human.duration(worst("steal_s")),
    ]


def _notes(found: Found) -> list[str]:
    notes = [] if RING in found.rates else [f"{cluster_file.NO_NETWORK}; start some on several hosts"]
    notes += found.notes
    for host in found.layout.hosts if found.machines else ():
        notes += _about(host, [found.machines[rank] for rank in host.ranks])
    return notes


def _about(host: Host, ranks: list[dict[str, Any]]) -> list[str]:
    notes = []
    taken, late = max(rank["taken_share"] for rank in ranks), max(rank["late_p99_s"] for rank in ranks)
    if taken > _WORTH_NAMING:
        why = "more ranks than cores" if len(ranks) > ranks[0]["cores"] else "other processes, or the host's host"
        notes.append(
            f"host {host.name}: {human.percent(taken)} of a busy rank's time was taken away, in gaps of more than "
            f"{human.duration(GAP_NS * 1e-9)}: {why}"
        )
    if late > _LATE_S:
        notes.append(f"host {host.name}: one in a hundred sleeps ended {human.duration(late)} late or more")
    return notes
