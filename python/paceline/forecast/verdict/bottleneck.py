"""What bounds an iteration, and what relieving each resource by a factor of two would gain.

Two answers that may differ: the resource that the largest part of the critical path uses, and the one whose relief
gains most. Relieving the first moves the path elsewhere, for example to computation that was hidden behind messages.
Only the second is what an iteration is bound by; `sentence` names the first beside it where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline._core import Cluster, Fabric, Racks, Trace
from paceline._internal import units
from paceline.catalog.channels import auto
from paceline.errors import InvalidArgumentError
from paceline.forecast.lowering import is_limited_by_connections, lowered
from paceline.forecast.result import CALLS, SLOWED, PathPart, Result
from paceline.forecast.scenario import Scenario
from paceline.forecast.sweep import execute

NOTEWORTHY = 1.005
"""Smaller ratios of two times are not worth mentioning."""
_COMPUTE, _NICS, _INSIDE, _UPLINKS = "computation", "NICs", "links inside the node", "racks' uplinks"
_COORDINATOR, _BUFFER, _LATE = "the coordinator", "the fusion buffer", "late ranks"
_CALLS, _SLOWED = "the library's calls", "what NCCL's kernels slow computation by"
_HOST, _ADDITIONS, _LATENCY, _COMPRESSION = "host copies", "additions", "latency", "compression"
BETWEEN, INSIDE = "network between nodes", "inside the node"
"""Where an iteration may be bound, beside computation and the coordinator."""
_LINKS, _NETWORK = "links inside and between nodes", "links of the nodes and between switches"
_OVERHEAD, _COST = "message_overhead", "cost of messages"
_STREAMS = "the library's connections"
_LIMITS = {
    _NICS: "the network's bandwidth",
    _INSIDE: "the bandwidth inside the node",
    _UPLINKS: "the racks' uplinks",
    _LINKS: "the links inside and between nodes together",
    _NETWORK: "the links of the nodes and between switches together",
}
"""What is too little of a resource that another one exceeds on the critical path."""
_HALF = 50
_LITTLE = 1.05
"""Gain of a link's relief below which another link may be what keeps it from gaining more."""
_MUCH = 0.1
"""Share of an iteration: exposed communication from which it is asked whether links limit together."""
_ROUNDED = 1e-6
"""Traces are in picoseconds."""
_ADDED = {CALLS: "the library's calls are", SLOWED: "NCCL's kernels slow it by"}
_SAID = 0.03
"""Share of a critical path from which it is said that communication lengthens computation."""
_OF_PART = {
    "compute": _COMPUTE,
    "inside the node": _INSIDE,
    "rack uplink": _UPLINKS,
    "host copies": _HOST,
    "additions": _ADDITIONS,
    "latency": _LATENCY,
    "coordinator": _COORDINATOR,
    "fusion buffer": _BUFFER,
    "late ranks": _LATE,
    "compression": _COMPRESSION,
    CALLS: _CALLS,
    SLOWED: _SLOWED,
}


_Changes = dict[str, Any]
"""Fields of `Cluster.replace`."""


@dataclass(frozen=True)
class Relief:
    """Twice as much of one resource, and the iteration time with it. `gain`: how many times faster that is."""

    resource: str
    what: str
    iteration_s: float
    gain: float
    note: str = ""
    """What stays as it is, although one may expect that it changes, too."""


def resource_of(part: str) -> str:
    """Return the resource that a part of the critical path occupies; both directions of all NICs are one."""
    return f"{part}s" if part.endswith(" link") else _OF_PART.get(part, _NICS)


def bottleneck(result: Result) -> str:
    """Return the resource that the largest share of the critical path occupies."""
    shares: dict[str, float] = {}
    for part in result.critical_path:
        resource = resource_of(part.part)
        shares[resource] = shares.get(resource, 0.0) + part.seconds
    return max(shares, key=lambda resource: shares[resource])


@dataclass(frozen=True)
class _Largest:
    """The largest part of a critical path."""

    name: str
    share: float
    detail: str
    """What it mostly consists of, with a comma before it, or nothing."""

    @property
    def percent(self) -> str:
        return f"{self.share * 100:.0f} %"

    @property
    def most(self) -> str:
        """`most`, or `the largest part` if it is not more than half."""
        return "most" if round(self.share * 100) > _HALF else "the largest part"

    def in_brackets(self) -> str:
        return f"{self.percent}{self.detail}"


def bound_by(result: Result, spans_nodes: bool, iteration_s: float | None = None) -> str:
    """Return where most of the critical path is.

    `computation`, `network between nodes`, `inside the node`, `coordinator`, or another resource by its name, such as
    `host copies`.

    Args:
        result: The forecast.
        spans_nodes: Whether its ranks are on several nodes.
        iteration_s: What an iteration takes beside other jobs, which make it wait for the network between nodes.
    """
    shares: dict[str, float] = {_COMPUTE: 0.0}
    for part in result.critical_path:
        where = _where(resource_of(part.part), spans_nodes=spans_nodes)
        shares[where] = shares.get(where, 0.0) + part.seconds
    if iteration_s is not None and iteration_s > result.iteration_s:
        shares[BETWEEN] = shares.get(BETWEEN, 0.0) + iteration_s - result.iteration_s
    return max(shares, key=lambda where: shares[where])


def _where(resource: str, *, spans_nodes: bool) -> str:
    if resource == _SLOWED:
        return _COMPUTE
    if resource in (_COORDINATOR, _BUFFER):
        return "coordinator"
    if resource == _INSIDE:
        return INSIDE
    is_network = resource in (_NICS, _UPLINKS, _LATENCY) or resource.endswith(" links")
    return (BETWEEN if spans_nodes else INSIDE) if is_network else resource


def _largest(result: Result) -> _Largest:
    resource = bottleneck(result)
    parts = [part for part in result.critical_path if resource_of(part.part) == resource]
    seconds = sum(part.seconds for part in parts)
    detail = ""
    whole = sum(part.seconds for part in result.critical_path)
    if resource == _COMPUTE:
        detail = ", that of the slowest worker" if seconds > result.compute_s * 1.01 else ""
        for part in result.critical_path:
            if part.part in _ADDED and part.seconds > _SAID * whole:
                detail += f"; {_ADDED[part.part]} another {part.seconds / whole * 100:.0f} %"
    elif resource == _NICS and (result.queued_s or 0.0) > seconds / 2:
        detail = ", most of it queueing"
    return _Largest(_named(resource, parts), seconds / whole, detail)


def _named(resource: str, parts: Sequence[PathPart]) -> str:
    if resource == _NICS:
        return _cards(parts)
    as_resource = resource.endswith(" links") or resource in (_COORDINATOR, _BUFFER, _INSIDE, _CALLS, _SLOWED)
    return resource if as_resource else parts[0].part.replace("compute", _COMPUTE)


def path(result: Result) -> str:
    """Return `most of the critical path: computation (68 %)`; this is not what bounds it, which reliefs tell."""
    largest = _largest(result)
    return f"{largest.most} of the critical path: {largest.name} ({largest.in_brackets()})"


def path_of(result: Result, whose: str) -> str:
    """Return `most of the critical path of ring is computation (68 %)`; `whose`: the words before `is`."""
    largest = _largest(result)
    return f"{largest.most} {whose} is {largest.name} ({largest.in_brackets()})"


def bound(result: Result, relieved: Sequence[Relief]) -> str:
    """Return what the relief that gains most relieves, `bound by latency`; without one that helps, the path."""
    best = _best(result, relieved)
    if best is None or best.gain <= NOTEWORTHY:
        return path(result)
    if bottleneck(result) in (best.resource, _CALLS):
        largest = _largest(result)
        return f"bound by {largest.name} ({largest.percent} of the critical path{largest.detail})"
    if best.resource == _STREAMS:
        carried = f"{units.rate(result.flow_bandwidth_bps)} of {units.rate(result.bandwidth_bps)}"
        return f"bound by what {_STREAMS} carry over {result.channel.upper()} ({carried})"
    if best.resource == _LATENCY:
        return "bound by " + best.what.removeprefix("half the ").replace(_COST, f"the {_COST}")
    return f"bound by {_LIMITS.get(best.resource, best.resource)}"


def _best(result: Result, relieved: Sequence[Relief]) -> Relief | None:
    """Return the relief that gains most, that of the largest part if another gains hardly more."""
    if not relieved:
        return None
    best = max(relieved, key=lambda one: one.gain)
    own = next((one for one in relieved if one.resource == bottleneck(result)), None)
    return own if own is not None and best.gain <= own.gain * NOTEWORTHY else best


def _cards(parts: Sequence[PathPart]) -> str:
    """Name the ends of links that make up most of a share: `worker egress and ingress`."""
    large = [part for part in parts if part.seconds > parts[0].seconds / 2]
    ways: dict[str, list[str]] = {}
    for part in large:
        role, _, way = part.part.rpartition(" ")
        ways.setdefault(role, []).append(way)
    named = units.listed([f"{role or 'the'} {units.listed(each)}" for role, each in ways.items()])
    rest = sum(part.seconds for part in parts) - sum(part.seconds for part in large)
    return f"the network, mostly {named}" if rest > parts[0].seconds / 5 else named


def reliefs(scenario: Scenario, result: Result) -> list[Relief]:
    """Simulate twice as much of each resource that the scenario has, the bottleneck's first."""
    first = bottleneck(result) if result.critical_path else ""
    asked = sorted(_asked(scenario, result), key=lambda one: one[0] != first)
    found = [relief for one in asked for relief in _relief(scenario, result, *one)]
    return [*found, *_together(scenario, result, asked, found)]


def _relief(scenario: Scenario, result: Result, resource: str, what: str, changes: _Changes) -> list[Relief]:
    """Simulate it; none if the cluster can not be changed so: twice the rate may exceed the maximum of a cluster."""
    try:
        [relieved] = execute([_with(scenario, result, resource, changes)])
    except InvalidArgumentError:
        return []
    gain = result.iteration_s / relieved.iteration_s if relieved.iteration_s > 0 else 1.0
    return [Relief(resource, what, relieved.iteration_s, gain, _kept(resource, result, relieved))]


def _with(scenario: Scenario, result: Result, resource: str, changes: _Changes) -> Scenario:
    """Return the scenario with twice as much of a resource."""
    if resource == _COMPUTE:
        return scenario.changed(compute_speedup=result.compute_speedup * 2)
    if resource in (_NICS, _INSIDE, _LINKS, _NETWORK):
        # Tensor-parallel GPUs exchange over these links, and tokens come to experts, which is in the trace.
        scenario = with_faster_links(
            scenario, inside=resource in (_INSIDE, _LINKS), between=resource in (_NICS, _LINKS, _NETWORK)
        )
    if resource == _STREAMS:
        return replace(scenario, library=scenario.library.scaled("streams", 2.0))
    if resource == _LATENCY:
        # Part of what a message costs is the library's.
        scenario = replace(scenario, library=scenario.library.scaled(_OVERHEAD, 0.5))
    return scenario.changed(cluster=scenario.cluster.replace(**changes))


def with_faster_links(scenario: Scenario, *, inside: bool = True, between: bool = True) -> Scenario:
    """Return the scenario with twice the rate of what GPUs exchange over within the computation of a model."""
    workload = scenario.workload
    if workload is None:
        return scenario
    faster, rate = workload, workload.hardware.bus_bandwidth
    if inside and workload.has_exchanges:
        assert rate is not None  # checked where the model was made
        faster = replace(faster, hardware=replace(workload.hardware, bus_bandwidth=2 * rate))
    if between and workload.links is not None:
        faster = replace(faster, links=replace(workload.links, card=2 * workload.links.card))
    if faster is workload:
        return scenario
    # A given rate stands for all of the computation.
    share = _computed_s(scenario.trace) / _computed_s(workload.trace())
    trace = faster.trace()
    if abs(share - 1) > _ROUNDED:
        trace = trace.scaled_to_rate(faster.samples / (share * _computed_s(trace)))
    return replace(scenario, workload=faster, trace=trace)


def _computed_s(trace: Trace) -> float:
    return trace.forward_s + trace.backward_s + trace.optimizer_s


def _together(
    scenario: Scenario, result: Result, asked: Sequence[tuple[str, str, _Changes]], found: Sequence[Relief]
) -> list[Relief]:
    """Return the relief of links of two kinds at once, where neither gains much and much is exposed."""
    of = {resource: changes for resource, _, changes in asked}
    gains = {one.resource: one.gain for one in found}
    pairs: list[tuple[str, str, list[str], _Changes]] = []
    if _INSIDE in of and _NICS in of:
        pairs.append((_LINKS, "inside and between nodes", [_NICS, _INSIDE], of[_NICS] | of[_INSIDE]))
    fabric = scenario.cluster.fabric
    if fabric is not None:
        # With the nodes' rate, unless they have their own.
        own = fabric.link_bandwidth_bps
        links = fabric if own is None else fabric.with_link_bandwidth(2.0 * own)
        between: _Changes = {"bandwidth_bps": of[_NICS]["bandwidth_bps"], "fabric": links}
        # Links that are as fast as a node's are seldom on the critical path, but keep it from being faster.
        alone = [_NICS, *(one for one in of if one.endswith(" links"))]
        pairs.append((_NETWORK, "of the nodes and between switches", alone, between))
    exposed = result.exposed_communication_s > _MUCH * result.iteration_s
    both: list[Relief] = []
    for resource, what, alone, changes in pairs:
        most = max(gains.get(one, math.inf) for one in alone)
        if most < _LITTLE and exposed:
            relieved = _relief(scenario, result, resource, f"twice the bandwidth {what}", changes)
            both += [one for one in relieved if one.gain > most * NOTEWORTHY]
    return both


def _kept(resource: str, result: Result, relieved: Result) -> str:
    """Return a note on what is halved besides, or that links of the new rate usually have another channel."""
    if resource == _COMPUTE and _in_computation(result):
        return f"with {units.listed(_in_computation(result))}"
    kept = result.channel
    changes = resource == _NICS and kept not in ("none", auto(relieved.bandwidth_bps))
    return f"still over {kept.upper()}" if changes and kept == auto(result.bandwidth_bps) else ""


def _in_computation(result: Result) -> list[str]:
    """Return what GPUs exchange in the computation."""
    tensor = ["tensor parallelism's all-reduces"] if result.tensor_parallel_s else []
    context = ["waiting for keys and values"] if result.context_parallel_s else []
    return [*tensor, *(["experts' all-to-alls"] if result.expert_parallel_s else []), *context]


def uses_the_network(scenario: Scenario, result: Result) -> bool:
    """Return whether anything is sent between nodes, so that changes of their network are worth a forecast."""
    return scenario.spans_nodes or result.servers > 0


def _asked(scenario: Scenario, result: Result) -> list[tuple[str, str, _Changes]]:
    """Return resources, what their relief is called, and the fields of the cluster that it changes."""
    cluster = scenario.cluster
    # The library may be what says how fast ranks copy and add.
    costs = lowered(scenario).cluster
    asked: list[tuple[str, str, _Changes]] = []
    racks, fabric, twice = cluster.racks, cluster.fabric, 2.0 * cluster.bandwidth_bps
    if not uses_the_network(scenario, result):
        pass
    elif fabric is not None:
        asked.append(
            (
                _NICS,
                "twice the bandwidth of the nodes",
                {"bandwidth_bps": twice, "fabric": _kept_links(cluster, fabric)},
            )
        )
    elif racks is None:
        asked.append((_NICS, "twice the bandwidth", {"bandwidth_bps": twice}))
    else:
        # The uplink's rate is that of its nodes over the oversubscription: only one of the two may change.
        over = racks.oversubscription
        kept = Racks(racks.nodes_per_rack, 2 * over)
        asked.append((_NICS, "twice the bandwidth of the nodes", {"bandwidth_bps": twice, "racks": kept}))
        relaxed = Racks(racks.nodes_per_rack, max(1.0, over / 2))
        asked.append((_UPLINKS, "half the oversubscription of the racks", {"racks": relaxed}))
    links = sorted({resource_of(part.part) for part in result.critical_path if part.part.endswith(" link")})
    if links:
        asked.append((links[0], f"twice the rate of the {units.listed(links)}", {"fabric": _faster_links(cluster)}))
    if is_limited_by_connections(scenario):
        asked.append((_STREAMS, "twice as many connections between nodes", {}))
    if result.compute_s > 0:
        asked.append((_COMPUTE, "half the computing time", {}))
    model = scenario.workload
    has_inside = model is not None and model.has_exchanges
    if cluster.gpus_per_node > 1 or cluster.servers == "colocated" or has_inside:
        inside: _Changes = {"intra_bandwidth_bps": 2.0 * cluster.intra_bandwidth_bps}
        asked.append((_INSIDE, "twice the bandwidth inside the node", inside))
    if copies := cluster.host_bandwidth_bps or costs.host_bandwidth_bps:
        asked.append((_HOST, f"twice the rate of {_HOST}", {"host_bandwidth_bps": 2.0 * copies}))
    if adding := cluster.reduction_bandwidth_bps or costs.reduction_bandwidth_bps:
        asked.append((_ADDITIONS, f"twice the rate of {_ADDITIONS}", {"reduction_bandwidth_bps": 2.0 * adding}))
    waits = cluster.latency_s > 0 or cluster.intra_latency_s > 0
    # The library adds to what a message costs.
    parts = ["latency"] * waits + [_COST] * (costs.message_overhead_s > 0)
    if parts:
        halved: _Changes = {
            "latency_s": cluster.latency_s / 2,
            "intra_latency_s": cluster.intra_latency_s / 2,
            "message_overhead_s": cluster.message_overhead_s / 2,
        }
        asked.append((_LATENCY, f"half the {' and '.join(parts)}", halved))
    return asked


def _kept_links(cluster: Cluster, fabric: Fabric) -> Fabric:
    """Return the fabric whose links between switches stay as they are where nodes become twice as fast.

    What they have depends on the nodes' rate, unless it is given.
    """
    if fabric.link_bandwidth_bps is not None:
        return fabric
    if fabric.spines is None:
        return fabric.with_link_bandwidth(cluster.bandwidth_bps)
    return fabric.with_oversubscription(2 * (fabric.oversubscription or 1.0))


def _faster_links(cluster: Cluster) -> Fabric:
    """Return a cluster's fabric with twice the rate of the links between switches."""
    fabric = cluster.fabric
    assert fabric is not None  # its links are on the critical path
    own, factor = fabric.link_bandwidth_bps, 2.0
    if own is None and fabric.spines is not None and fabric.nodes_per_leaf is not None:
        factor *= fabric.nodes_per_leaf / ((fabric.oversubscription or 1.0) * fabric.spines)
    return fabric.with_link_bandwidth((cluster.bandwidth_bps if own is None else own) * factor)


def sentence(subject: str, result: Result, relieved: Sequence[Relief]) -> str:
    """Return what bounds the subject and what reliefs gain. Bound by is only what the relief that gains most relieves.

    `relieved` has the relief of the critical path's largest part first, as `reliefs` returns it.
    """
    first = _best(result, relieved)
    path = path_of(result, f"of the critical path of {subject}")
    path = path[0].upper() + path[1:]
    if first is None:
        return f"{path}."
    others = sorted((one for one in relieved if one is not first), key=lambda one: -one.gain)
    helpful = [one for one in others if one.gain > NOTEWORTHY]
    # Where another relief gains as much to a reader, it may still gain a trace more.
    tried = sorted([first, *(helpful or others[:1])[:2]], key=lambda one: -one.gain)
    effects = "; ".join(_effect(one) for one in tried)
    if first.gain <= NOTEWORTHY:
        return f"{path}, but no single relief helps: {effects}."
    if bottleneck(result) in (first.resource, _CALLS):
        return f"{subject} is {bound(result, relieved)}: {effects}."
    largest = _largest(result)
    beside = f"{largest.percent} of its critical path is {largest.name}{largest.detail}"
    return f"{subject} is {bound(result, relieved)}: {effects}; {beside}."


def _effect(one: Relief) -> str:
    what = f"{one.what}, {one.note}," if one.note else one.what
    if one.gain > NOTEWORTHY:
        return f"{what} would make it {units.short(one.gain)} times faster"
    if one.gain < 1 / NOTEWORTHY:
        return f"{what} would make it {units.short(1 / one.gain)} times slower"
    return f"{what} would not help"
