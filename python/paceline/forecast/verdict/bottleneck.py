"""The bottleneck of an iteration, and the gain of relieving each resource by a factor of two.

Two answers that may differ: the resource that the largest part of the critical path uses, and the one whose relief
gains most. Relieving the first moves the path elsewhere, for example to computation that was hidden behind messages.
Only the second is what an iteration is bound by; a `Bound` has both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline._core import Cluster, Fabric, Racks, Trace
from paceline.catalog.channels import auto, with_channel
from paceline.catalog.models.workload import Workload
from paceline.catalog.offload import Faster
from paceline.catalog.optimizers import KINDS
from paceline.errors import InvalidArgumentError
from paceline.forecast import offload
from paceline.forecast.execute import execute
from paceline.forecast.kinds import About, Exchange, Measure, Part, Remark, Resource
from paceline.forecast.lowering import is_limited_by_connections, lowered
from paceline.forecast.result import PathPart, Result
from paceline.forecast.run import fit_of
from paceline.forecast.scenario import Scenario

MIN_GAIN = 1.005
"""Smaller ratios of two times are not worth mentioning."""
_LITTLE = 1.05
"""Gain of a link's relief below which another link may be what keeps it from gaining more."""
_MUCH = 0.1
"""Share of an iteration: exposed communication from which it is asked whether links limit together."""
_ROUNDED = 1e-6
"""Traces are in picoseconds."""
_SAID = 0.03
"""Share of a critical path from which it is said that communication lengthens computation."""
_BY_LINKS = (Resource.NICS, Resource.INSIDE, Resource.INSIDE_AND_NICS, Resource.NICS_AND_LINKS)
_FASTER_HOST = {
    Resource.HOST_LINK: Faster(link=2.0),
    Resource.CPU_STEP: Faster(cpu=2.0),
    Resource.DRIVE: Faster(drive=2.0),
}

_Changes = dict[str, Any]
"""Fields of `Cluster.replace`."""


@dataclass(frozen=True)
class Relief:
    """Twice as much of one resource, and the iteration time with it. `gain`: how many times faster that is."""

    resource: Resource
    measure: Measure
    iteration_s: float
    gain: float
    about: About | None = None
    """Side effects of it, or their absence, where one may expect otherwise."""
    links: tuple[Resource, ...] = ()
    """Those whose rate it changes, if they are between switches."""

    @property
    def helps(self) -> bool:
        """Whether its gain is worth mentioning."""
        return self.gain > MIN_GAIN


@dataclass(frozen=True)
class _Change:
    """A relief to simulate, by the fields of the cluster that it changes."""

    resource: Resource
    measure: Measure
    changes: _Changes
    links: tuple[Resource, ...] = ()


def bottleneck(result: Result) -> Resource:
    """Return the resource that the largest share of the critical path occupies."""
    shares: dict[Resource, float] = {}
    for part in result.critical_path:
        resource = _resource(part)
        shares[resource] = shares.get(resource, 0.0) + part.seconds
    return max(shares, key=lambda resource: shares[resource])


def _resource(part: PathPart) -> Resource:
    return Part(part.part).resource


@dataclass(frozen=True)
class Largest:
    """The resource that the largest share of a critical path occupies."""

    resource: Resource
    parts: tuple[PathPart, ...]
    """Those that occupy it, largest first."""
    share: float
    is_of_slowest: bool = False
    """Whether it is the computation of a slower worker than the trace's."""
    added: tuple[tuple[Resource, float], ...] = ()
    """Time that communication adds to compute, and its share of the path."""
    is_queueing: bool = False
    """Whether most of it is."""


@dataclass(frozen=True)
class Bound:
    """The bottleneck of an iteration: the resource whose relief gains most, if one helps."""

    largest: Largest
    relief: Relief | None
    """The one that gains most, that of the largest part if another gains hardly more; None if none was tried."""
    tried: tuple[Relief, ...]
    """It and the next that help, or one that does not; the largest gain first."""
    channel: str
    flow_bps: float
    bandwidth_bps: float

    @property
    def is_known(self) -> bool:
        """Whether a relief helps."""
        return self.relief is not None and self.relief.helps

    @property
    def is_largest(self) -> bool:
        """Whether what gains most is also the largest part of the path: of TCP, anything of the network."""
        if self.relief is None:
            return False
        own = self.largest.resource
        if self.relief.resource is Resource.CHANNEL and _where(own, spans_nodes=True) is Resource.NICS:
            return True
        return own in (self.relief.resource, Resource.CALLS)


def bound_by(result: Result, spans_nodes: bool, iteration_s: float | None = None) -> Resource:
    """Return where most of the critical path is: computation, a network, a coordinator, or another resource.

    `NICS` stands for all of the network between nodes, or that inside one if ranks are on one.

    Args:
        result: The forecast.
        spans_nodes: Whether its ranks are on several nodes.
        iteration_s: What an iteration takes beside other jobs, which make it wait for the network between nodes.
    """
    shares: dict[Resource, float] = {Resource.COMPUTE: 0.0}
    for part in result.critical_path:
        where = _where(_resource(part), spans_nodes=spans_nodes)
        shares[where] = shares.get(where, 0.0) + part.seconds
    if iteration_s is not None and iteration_s > result.iteration_s:
        shares[Resource.NICS] = shares.get(Resource.NICS, 0.0) + iteration_s - result.iteration_s
    return max(shares, key=lambda where: shares[where])


def _where(resource: Resource, *, spans_nodes: bool) -> Resource:
    if resource is Resource.SLOWED:
        return Resource.COMPUTE
    if resource is Resource.BUFFER:
        return Resource.COORDINATOR
    is_network = resource in (Resource.NICS, Resource.UPLINKS, Resource.LATENCY) or resource.is_between_switches
    return (Resource.NICS if spans_nodes else Resource.INSIDE) if is_network else resource


def largest(result: Result) -> Largest:
    """Return the largest share of a critical path; this is not what bounds it, which reliefs tell."""
    resource = bottleneck(result)
    parts = tuple(part for part in result.critical_path if _resource(part) is resource)
    seconds, whole = (sum(part.seconds for part in some) for some in (parts, result.critical_path))
    added: list[tuple[Resource, float]] = []
    if resource is Resource.COMPUTE:
        added = [
            (_resource(part), part.seconds / whole)
            for part in result.critical_path
            if _resource(part) in (Resource.CALLS, Resource.SLOWED) and part.seconds > _SAID * whole
        ]
    return Largest(
        resource,
        parts,
        seconds / whole,
        is_of_slowest=resource is Resource.COMPUTE and seconds > result.compute_s * 1.01,
        added=tuple(added),
        is_queueing=resource is Resource.NICS and (result.queued_s or 0.0) > seconds / 2,
    )


def bound(result: Result, relieved: Sequence[Relief]) -> Bound:
    """Return what bounds a forecast.

    `relieved` has the relief of the critical path's largest part first, as `reliefs` returns it.
    """
    first = _best(result, relieved)
    others = sorted((one for one in relieved if one is not first), key=lambda one: -one.gain)
    helpful = [one for one in others if one.helps]
    # Where another relief gains as much to a reader, it may still gain a trace more.
    tried = [] if first is None else sorted([first, *(helpful or others[:1])[:2]], key=lambda one: -one.gain)
    return Bound(largest(result), first, tuple(tried), result.channel, result.flow_bandwidth_bps, result.bandwidth_bps)


def _best(result: Result, relieved: Sequence[Relief]) -> Relief | None:
    """Return the relief that gains most, that of the largest part if another gains hardly more.

    What TCP lacks has a name of its own where twice as much of it gains most of the rest: a rate, or connections.
    """
    if not relieved:
        return None
    ordered = sorted(relieved, key=lambda one: -one.gain)
    best = ordered[0]
    if best.resource is Resource.CHANNEL and len(ordered) > 1 and ordered[1].gain >= _LITTLE:
        of_network = ordered[1].resource is Resource.STREAMS
        of_network |= _where(ordered[1].resource, spans_nodes=True) is Resource.NICS
        best = ordered[1] if of_network else best
    own = next((one for one in relieved if one.resource is bottleneck(result)), None)
    return own if own is not None and best.gain <= own.gain * MIN_GAIN else best


def reliefs(scenario: Scenario, result: Result) -> list[Relief]:
    """Simulate twice as much of each resource that the scenario has, the bottleneck's first, and RDMA for TCP."""
    first = bottleneck(result) if result.critical_path else None
    changes = sorted(_possible_changes(scenario, result), key=lambda one: one.resource is not first)
    relieved = [relief for one in changes for relief in _relief(scenario, result, one)]
    together = [*_paired_reliefs(scenario, result, changes, relieved), *_over_rdma(scenario, result)]
    lighter = _less_offloaded(scenario, result, first) if first is not None and first.is_offload else []
    fused = _fused_step(scenario, result) if first is Resource.CPU_STEP else []
    return [*relieved, *together, *lighter, *fused]


def _relief(scenario: Scenario, result: Result, change: _Change) -> list[Relief]:
    """Simulate it; none if the scenario can not be changed so."""
    try:
        changed = _with(scenario, result, change.resource, change.changes)
    except InvalidArgumentError:
        return []
    return _simulated(changed, result, change)


def _over_rdma(scenario: Scenario, result: Result) -> list[Relief]:
    """Simulate RDMA, with its latency and cost of messages, instead of TCP between nodes, if that is what they have."""
    if result.channel != "tcp" or not uses_the_network(scenario, result):
        return []
    other = with_channel(scenario.cluster, "rdma", bare=scenario.library.is_bare)
    return _simulated(scenario.changed(cluster=other), result, _Change(Resource.CHANNEL, Measure.RDMA, {}))


def _less_offloaded(scenario: Scenario, result: Result, bottleneck: Resource) -> list[Relief]:
    """Simulate what offloads less and fits; return the fastest, if it is faster: it relieves the bottleneck."""
    workload = scenario.workload
    assert workload is not None  # it offloads something
    tried: list[Relief] = []
    for fewer in offload.lighter(scenario):
        changed = _of(scenario, offload.with_offload(workload, fewer))
        if fit_of(changed).fits:
            about = About(Remark.BY, strategy=f"--offload {'none' if fewer is None else fewer.text}")
            own = _simulated(changed, result, _Change(bottleneck, Measure.LESS_OFFLOADED, {}))
            tried += [replace(one, about=about) for one in own]
    return [one for one in tried if one.helps and one.gain == max(other.gain for other in tried)][:1]


def _fused_step(scenario: Scenario, result: Result) -> list[Relief]:
    """Simulate a fused optimizer on the CPU, where it has one and runs operator by operator."""
    workload = scenario.workload
    if workload is None or KINDS[workload.optimizer].by_tensor or workload.optimizer_impl == "fused":
        return []
    changed = _of(scenario, replace(workload, optimizer_impl="fused"))
    own = _simulated(changed, result, _Change(Resource.CPU_STEP, Measure.FUSED_STEP, {}))
    return [replace(one, about=About(Remark.BY, strategy="--optimizer-impl fused")) for one in own if one.helps]


def _simulated(changed: Scenario, result: Result, change: _Change) -> list[Relief]:
    """Return the gain of a changed scenario; none if it is impossible: a rate may exceed the maximum of a cluster."""
    try:
        [relieved] = execute([changed])
    except InvalidArgumentError:
        return []
    gain = result.iteration_s / relieved.iteration_s if relieved.iteration_s > 0 else 1.0
    about = _unchanged(change.resource, result, relieved)
    return [Relief(change.resource, change.measure, relieved.iteration_s, gain, about, change.links)]


def _with(scenario: Scenario, result: Result, resource: Resource, changes: _Changes) -> Scenario:
    """Return the scenario with twice as much of a resource."""
    if resource is Resource.COMPUTE:
        return scenario.changed(compute_speedup=result.compute_speedup * 2)
    if resource in _FASTER_HOST:
        return replace(scenario, faster_host=_FASTER_HOST[resource])
    if resource in _BY_LINKS:
        # Tensor-parallel GPUs exchange over these links, and tokens come to experts, which is in the trace.
        scenario = with_faster_links(
            scenario,
            inside=resource in (Resource.INSIDE, Resource.INSIDE_AND_NICS),
            between=resource is not Resource.INSIDE,
        )
    if resource is Resource.STREAMS:
        return replace(scenario, library=scenario.library.scaled("streams", 2.0))
    if resource is Resource.LATENCY:
        # Part of what a message costs is the library's.
        scenario = replace(scenario, library=scenario.library.scaled("message_overhead", 0.5))
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
        faster = replace(faster, links=workload.links.doubled)
    if faster is workload:
        return scenario
    return _of(scenario, faster)


def _of(scenario: Scenario, changed: Workload) -> Scenario:
    """Return the scenario with its model changed. A given rate stands for all of the computation."""
    assert scenario.workload is not None
    share = _computed_s(scenario.trace) / _computed_s(scenario.workload.trace())
    trace = changed.trace()
    if abs(share - 1) > _ROUNDED:
        trace = trace.scaled_to_rate(changed.samples / (share * _computed_s(trace)))
    return replace(scenario, workload=changed, trace=trace)


def _computed_s(trace: Trace) -> float:
    return trace.forward_s + trace.backward_s + trace.optimizer_s


def _paired_reliefs(
    scenario: Scenario, result: Result, changes: Sequence[_Change], relieved: Sequence[Relief]
) -> list[Relief]:
    """Return the relief of links of two kinds at once, where neither gains much and much is exposed."""
    of = {one.resource: one.changes for one in changes}
    gains = {one.resource: one.gain for one in relieved}
    pairs: list[tuple[_Change, list[Resource]]] = []
    if Resource.INSIDE in of and Resource.NICS in of:
        widened = of[Resource.NICS] | of[Resource.INSIDE]
        both = _Change(Resource.INSIDE_AND_NICS, Measure.BANDWIDTH_INSIDE_AND_BETWEEN, widened)
        pairs.append((both, [Resource.NICS, Resource.INSIDE]))
    fabric = scenario.cluster.fabric
    if fabric is not None and Resource.NICS in of:
        # With the nodes' rate, unless they have their own.
        own = fabric.link_bandwidth_bps
        links = fabric if own is None else fabric.with_link_bandwidth(2.0 * own)
        between: _Changes = {"bandwidth_bps": of[Resource.NICS]["bandwidth_bps"], "fabric": links}
        both = _Change(Resource.NICS_AND_LINKS, Measure.BANDWIDTH_OF_NODES_AND_LINKS, between)
        # Links that are as fast as a node's are seldom on the critical path, but keep it from being faster.
        pairs.append((both, [Resource.NICS, *(one for one in of if one.is_between_switches)]))
    exposed = result.exposed_communication_s > _MUCH * result.iteration_s
    together: list[Relief] = []
    for both, alone in pairs:
        most = max(gains.get(one, math.inf) for one in alone)
        if most < _LITTLE and exposed:
            together += [one for one in _relief(scenario, result, both) if one.gain > most * MIN_GAIN]
    return together


def _unchanged(resource: Resource, result: Result, relieved: Result) -> About | None:
    """Return what is halved besides, or that links of the new rate usually have another channel."""
    if resource is Resource.COMPUTE:
        within = tuple(exchange for exchange, seconds in _within(result) if seconds)
        return About(Remark.WITHIN, exchanges=within) if within else None
    kept = result.channel
    changes = resource is Resource.NICS and kept not in ("none", auto(relieved.bandwidth_bps))
    return About(Remark.CHANNEL, channel=kept) if changes and kept == auto(result.bandwidth_bps) else None


def _within(result: Result) -> list[tuple[Exchange, float | None]]:
    """Return how long GPUs exchange something in the computation."""
    return [
        (Exchange.TENSOR, result.tensor_parallel_s),
        (Exchange.EXPERT, result.expert_parallel_s),
        (Exchange.CONTEXT, result.context_parallel_s),
    ]


def uses_the_network(scenario: Scenario, result: Result) -> bool:
    """Return whether anything is sent between nodes, so that changes of their network are worth a forecast."""
    return scenario.spans_nodes or result.servers > 0


def _possible_changes(scenario: Scenario, result: Result) -> list[_Change]:
    """Return the changes of a scenario that may relieve it."""
    cluster = scenario.cluster
    # The library may be what says how fast ranks copy and add.
    costs = lowered(scenario).cluster
    every: list[_Change] = []

    def change(resource: Resource, measure: Measure, *links: Resource, **changes: Any) -> None:  # noqa: ANN401
        every.append(_Change(resource, measure, changes, links))

    racks, fabric, twice = cluster.racks, cluster.fabric, 2.0 * cluster.bandwidth_bps
    if not uses_the_network(scenario, result):
        pass
    elif fabric is not None:
        links = _kept_links(cluster, fabric)
        change(Resource.NICS, Measure.BANDWIDTH_OF_NODES, bandwidth_bps=twice, fabric=links)
    elif racks is None:
        change(Resource.NICS, Measure.BANDWIDTH, bandwidth_bps=twice)
    else:
        # The uplink's rate is that of its nodes over the oversubscription: only one of the two may change.
        over = racks.oversubscription
        kept = Racks(racks.nodes_per_rack, 2 * over)
        change(Resource.NICS, Measure.BANDWIDTH_OF_NODES, bandwidth_bps=twice, racks=kept)
        relaxed = Racks(racks.nodes_per_rack, max(1.0, over / 2))
        change(Resource.UPLINKS, Measure.OVERSUBSCRIPTION_OF_RACKS, racks=relaxed)
    between = sorted({_resource(part) for part in result.critical_path}, key=lambda one: one.name)
    if switches := [one for one in between if one.is_between_switches]:
        change(switches[0], Measure.RATE_OF_LINKS, *switches, fabric=_faster_links(cluster))
    if is_limited_by_connections(scenario):
        change(Resource.STREAMS, Measure.CONNECTIONS)
    if result.compute_s > 0:
        change(Resource.COMPUTE, Measure.COMPUTE)
    for resource in between:
        if resource.is_offload:
            change(resource, Measure[resource.name])
    model = scenario.workload
    has_inside = model is not None and model.has_exchanges
    if cluster.gpus_per_node > 1 or cluster.servers == "colocated" or has_inside:
        change(Resource.INSIDE, Measure.BANDWIDTH_INSIDE, intra_bandwidth_bps=2.0 * cluster.intra_bandwidth_bps)
    if copies := cluster.host_bandwidth_bps or costs.host_bandwidth_bps:
        change(Resource.HOST, Measure.HOST, host_bandwidth_bps=2.0 * copies)
    if adding := cluster.reduction_bandwidth_bps or costs.reduction_bandwidth_bps:
        change(Resource.ADDITIONS, Measure.ADDITIONS, reduction_bandwidth_bps=2.0 * adding)
    waits = cluster.latency_s > 0 or cluster.intra_latency_s > 0
    # The library adds to what a message costs.
    has_costs = costs.message_overhead_s > 0
    if waits or has_costs:
        halved = Measure.LATENCY_AND_COST if waits and has_costs else Measure.LATENCY if waits else Measure.COST
        change(
            Resource.LATENCY,
            halved,
            latency_s=cluster.latency_s / 2,
            intra_latency_s=cluster.intra_latency_s / 2,
            message_overhead_s=cluster.message_overhead_s / 2,
        )
    return every


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
