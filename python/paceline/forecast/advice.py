"""The advice below a table: what bounds an iteration, and the simulated effect of possible changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from paceline._internal import units
from paceline.catalog.library import load_cluster
from paceline.catalog.strategies import all_strategies, feasible
from paceline.errors import InvalidArgumentError
from paceline.forecast.lowering import lowered
from paceline.forecast.simulate import PathPart, Result, Scenario
from paceline.forecast.sweep import execute
from paceline.forecast.table import Group, named

# What-if runs take about 0.2 s per million messages; beyond this limit they are left out.
_MOST_MESSAGES = 3_000_000
# Smaller differences are not worth mentioning.
_NOTEWORTHY = 1.005


def advise(groups: Sequence[Group]) -> list[str]:
    """Return sentences about the largest configuration: its bottleneck, and the simulated effect of removing it."""
    group = max(groups, key=lambda group: group.results[0].workers)
    first = group.results[0]
    fastest = group.fastest_first()[0]
    if fastest.iteration_s <= 0 or not first.critical_path:
        return ["nothing to synchronise: an iteration takes no time"] if first.iteration_s <= 0 else []
    where = _where(group, groups)
    scenario = group.scenarios[group.results.index(fastest)]
    sentences = []
    if len(group.results) > 1 and first.iteration_s > fastest.iteration_s * _NOTEWORTHY:
        times = units.short(first.iteration_s / fastest.iteration_s)
        sentences.append(
            f"{named(first, group)}{where} is {bound(first)}; {named(fastest, group)} is {times} times faster."
        )
        where = ""
    subject = f"{named(fastest, group)}{where} is {bound(fastest)}"
    if fastest.workers == 1:
        return [*sentences, f"{subject}."]
    changes = _what_if(scenario, fastest)
    sentences.append(f"{subject}{': ' + '; '.join(changes) if changes else ''}.")
    if len({result.strategy for result in group.results}) == 1:
        sentences += _others(scenario, fastest)
    return sentences


def _where(group: Group, groups: Sequence[Group]) -> str:
    """Say which of several configurations is meant."""
    first = group.results[0]
    others = [other.results[0] for other in groups]
    text = ""
    if any(other.workers != first.workers for other in others):
        text += f" with {first.workers} workers"
    if any(other.bandwidth_bps != first.bandwidth_bps for other in others):
        text += f" at {units.rate(first.bandwidth_bps)}"
    if any(other.compute_speedup != first.compute_speedup for other in others):
        text += f" with compute speed-up {first.compute_speedup:g}"
    return text


def bound(result: Result) -> str:
    """Return `bound by server ingress (71 % of the critical path)`."""
    total = sum(part.seconds for part in result.critical_path)
    # A NIC's two directions are one bottleneck: a message that queues for one would otherwise have queued for the
    # other.
    cards: dict[str, list[PathPart]] = {}
    for part in result.critical_path:
        role, _, way = part.part.rpartition(" ")
        cards.setdefault(role if way in ("egress", "ingress") else part.part, []).append(part)
    role, parts = max(cards.items(), key=lambda item: sum(part.seconds for part in item[1]))
    seconds, name = sum(part.seconds for part in parts), parts[0].part
    if len(parts) > 1:
        both = parts[1].seconds > parts[0].seconds / 2
        seconds, name = (seconds, f"{role} egress and ingress") if both else (parts[0].seconds, name)
    if name.endswith(" link"):
        name += "s"
    if name == "compute":
        slowest = ", that of the slowest worker" if seconds > result.compute_s * 1.01 else ""
        return f"bound by computation ({seconds / total * 100:.0f} % of the critical path{slowest})"
    queued = result.queued_s or 0.0
    is_card = name.endswith(("egress", "ingress"))
    queue = ", most of it queueing" if is_card and queued > seconds / 2 else ""
    return f"bound by {name} ({seconds / total * 100:.0f} % of the critical path{queue})"


def _what_if(scenario: Scenario, result: Result) -> list[str]:
    """Return the effect of twice the bandwidth (or half the latency) and of half the computation."""
    if result.messages > _MOST_MESSAGES:
        return []
    communication = [part.part for part in result.critical_path if part.part != "compute"]
    try:
        options = [_relief(scenario, part) for part in communication[:1]]
        if result.compute_s > 0:
            options.append(("half the computing time", scenario.changed(compute_speedup=result.compute_speedup * 2)))
        others = execute([option for _, option in options])
    except InvalidArgumentError:  # Twice the rate may exceed the maximum of a cluster.
        return []
    gains = [result.iteration_s / other.iteration_s for other in others]
    return [_effect(words, gain) for (words, _), gain in zip(options, gains, strict=True)]


def _relief(scenario: Scenario, part: str) -> tuple[str, Scenario]:
    fields = json.loads(scenario.cluster.to_json())
    if part.endswith(" link"):
        words = f"twice the rate of the {part}s"
        return words, scenario.changed(cluster=load_cluster(scenario.cluster, fabric=_faster(fields)))
    if part == "rack uplink" and fields["racks"]["oversubscription"] > 1:
        ratio = fields["racks"]["oversubscription"]
        words = "half the oversubscription" if ratio >= 2 else "no oversubscription"
        racks = {**fields["racks"], "oversubscription": max(1.0, ratio / 2)}
        return words, scenario.changed(cluster=load_cluster(scenario.cluster, racks=racks))
    field, words, factor = {
        "host copies": ("host_bandwidth", "twice the rate of host copies", 2.0),
        "additions": ("reduction_bandwidth", "twice the rate of additions", 2.0),
        "inside the node": ("intra_bandwidth", "twice the bandwidth inside the node", 2.0),
        "latency": ("latency", "half the latency", 0.5),
    }.get(part, ("bandwidth", "twice the bandwidth", 2.0))
    # The library may be what says how fast ranks copy.
    costs = json.loads(lowered(scenario).cluster.to_json())
    return words, scenario.changed(
        cluster=load_cluster(scenario.cluster, **{field: scaled(fields.get(field) or costs[field], factor)})
    )


def _faster(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return a cluster's fabric with twice the rate of the links between switches."""
    fabric: dict[str, Any] = dict(cluster["fabric"])
    factor = 2.0
    if "link_bandwidth" not in fabric and "spines" in fabric:
        factor *= fabric["nodes_per_leaf"] / (fabric.pop("oversubscription") * fabric["spines"])
    return {**fabric, "link_bandwidth": scaled(fabric.get("link_bandwidth", cluster["bandwidth"]), factor)}


def scaled(text: str, factor: float) -> str:
    """Return a value of the cluster format times a factor."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return f"{float(number) * factor:.12f}".rstrip("0").rstrip(".") + text[len(number) :]


def _effect(words: str, gain: float) -> str:
    if gain > _NOTEWORTHY:
        return f"{words} would make it {units.short(gain)} times faster"
    if gain < 1 / _NOTEWORTHY:
        return f"{words} would make it {units.short(1 / gain)} times slower"
    return f"{words} would not help"


def _others(scenario: Scenario, result: Result) -> list[str]:
    """Return the best of the other strategies, with the options of this one that they use."""
    if 2 * result.workers**2 * result.buckets > 2 * _MOST_MESSAGES:
        return []
    able = [
        strategy for strategy in feasible(all_strategies(), scenario.cluster)[0] if strategy.name != result.strategy
    ]
    try:
        best = min(execute([scenario.under(strategy) for strategy in able]), key=lambda other: other.iteration_s)
    except InvalidArgumentError:  # Options that this strategy does not use may be incompatible.
        return []
    gain = result.iteration_s / best.iteration_s
    if gain > _NOTEWORTHY:
        return [f"Of the other strategies {best.strategy} would be the fastest: {units.short(gain)} times faster."]
    if gain < 1 / _NOTEWORTHY:
        return [f"No other strategy is faster; the next is {best.strategy}, {units.short(1 / gain)} times slower."]
    return [f"No other strategy is faster; {best.strategy} is as fast."]
