"""What a library on a channel means for the simulator: rates, costs, buckets, and how much workers differ.

A `Scenario` holds what was asked: the link's rate, the library's name. `lowered` turns that into a cluster and options
of the native module, and is the only place that does: the command line, Python, `--explain` and the study of published
measurements all pass through it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline import _core
from paceline._core import Cluster, Degraded, Fabric, Plan, Racks
from paceline.catalog import channels
from paceline.catalog.libraries import DEFAULT, PER_NODE, Library
from paceline.catalog.nccl import overlap_slowdown
from paceline.catalog.strategies import KNOBS, Strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast import compression, sharding
from paceline.forecast.nccl.model import times_of

if TYPE_CHECKING:
    from paceline.forecast.scenario import Scenario

_ONE_NEIGHBOUR = ("ring", "ring-multicast", "native", "hierarchical")
"""Strategies in which a node sends to one other node only. Elsewhere several connections share its link."""
LONG = 6_000_000
"""A simulation of more messages takes over a second: what tries several leaves it out."""


@dataclass(frozen=True)
class Lowered:
    """A scenario in the terms of the native module."""

    cluster: Cluster
    options: dict[str, Any]
    """Strategy, workers and options."""
    channel: str
    """`tcp`, `rdma`, or `none`: messages get the whole bandwidth."""
    flow_bps: float
    """What the messages of a node get of its link, in bits per second."""
    bucket_size: int | None
    """Largest bucket in bytes; None: every tensor is sent by itself."""


def lowered(scenario: Scenario) -> Lowered:
    """Return the scenario with its library's habits and its channel's costs. Explicit options win."""
    library, strategy, workers = scenario.library, scenario.strategy, scenario.workers
    cluster = scenario.cluster
    per_node = cluster.gpus_per_node
    nodes = -(-workers // per_node)
    channel = cluster.channel
    payload, flow = _flow(library, strategy, cluster)
    fields = _behind_the_flows(cluster, payload / flow) | {"bandwidth_bps": flow}
    options = dict(scenario.options)
    bucket_size = options.pop("bucket_size", None)
    hooks = compression.iteration(scenario, options)
    is_retyped = "param_dtype" in options and not hooks
    dtype = scenario.trace.dtype if is_retyped else None
    has_stages = scenario.workload is not None and scenario.workload.pipeline > 1
    iteration = sharding.iteration(options, workers, per_node, dtype=dtype, has_stages=has_stages)
    # One rank by itself has nobody to exchange its part of the experts with.
    if scenario.workload is not None and scenario.workload.expert_ranks > 1 and workers > 1:
        iteration = {"sharding": sharding.NONE, **(iteration or {}), "expert_parallel": scenario.workload.expert_ranks}
    if hooks:
        iteration = {"sharding": sharding.NONE, **(iteration or {}), **hooks}
    fields |= _machines(library, strategy, cluster, workers)
    _habits(library, strategy, options, nodes)
    cluster = _mesh(options, cluster.replace(**fields), min(workers, per_node))
    _costs(library, options, workers, agree=scenario.coordination is None)
    if nodes > 1 and channel != "none" and not library.is_bare and cluster.jitter is None:
        options["spread"] = channels.constant(f"{channel}.jitter")
    if bucket_size is None:
        # Of the links that a ring uses.
        rate = flow if nodes > 1 else cluster.intra_bandwidth_bps
        wait = cluster.latency_s if nodes > 1 else cluster.intra_latency_s
        bucket_size = fusion(library, rate, wait, workers)
    if bucket_size not in (None, "none"):
        options["bucket_size"] = bucket_size
    if iteration is not None:
        options["iteration"] = iteration
    if scenario.coordination is not None:
        options["coordination"] = scenario.coordination.to_core()
    options |= {"strategy": strategy.name, "workers": workers}
    if strategy.name == "native" and library.nccl:
        options["nccl"] = library.nccl
    if scenario.coordination is None:
        _on_gpus(scenario, options, known=cluster.gpu is not None)
    return Lowered(
        cluster,
        options,
        channel,
        flow,
        options.get("bucket_size"),
    )


def _on_gpus(scenario: Scenario, options: dict[str, Any], *, known: bool) -> None:
    """Add what NCCL's collectives take and do to the computation beside them, if GPUs are `known`.

    That is so for DDP, too, but not for Horovod's fusion, nor for strategies with servers or a switch, unless the
    iteration is planned in another way.
    """
    bare = scenario.library.is_bare or scenario.library.name == DEFAULT
    if not (known and bare and scenario.strategy.is_of_ranks) and not _core.is_planned(json.dumps(options)):
        return
    # Switches add up between nodes, and the other collectives of the iteration are NCCL's.
    by_nccl = scenario.strategy.is_offloaded or sharding.sums_in_switches(scenario.strategy)
    times = times_of(scenario.trace, options, scenario.cluster) if by_nccl else None
    if times is not None:
        options["collectives"] = times
    if known:
        # Measured with NCCL's kernels; those of another strategy would need the same multiprocessors.
        options["slowdown"] = overlap_slowdown()
        # A channel's spread was measured with all-reduces of DDP and Horovod, before NCCL's model of today.
        options.pop("spread", None)


def _flow(library: Library, strategy: Strategy, cluster: Cluster) -> tuple[float, float]:
    """Return the payload of a node's link, and what its messages get of it: less if it sends on few connections."""
    link, channel = cluster.bandwidth_bps, cluster.channel
    payload = link * (cluster.efficiency or channels.share_of(channel, link))
    streams = library.value("streams")
    if library.is_bare or streams is None or strategy.name not in _ONE_NEIGHBOUR:
        return payload, payload
    one = cluster.stream_bandwidth_bps or channels.stream_of(channel, link)
    return payload, min(payload, streams * one)


def is_limited_by_connections(scenario: Scenario) -> bool:
    """Whether the connections of a node to its next one carry less than its link."""
    if scenario.workers <= scenario.cluster.gpus_per_node:
        return False
    payload, flow = _flow(scenario.library, scenario.strategy, scenario.cluster)
    return flow < payload


def _behind_the_flows(cluster: Cluster, room: float) -> dict[str, Any]:
    """Return the fields that keep what follows from a link's rate where the flows of a node carry less.

    `room` is the link's payload over the flows' rate.

    A slow link slows flows down only below what they carry, and the uplinks of racks are shared before they are full.
    """
    racks, fabric = cluster.racks, cluster.fabric
    fields: dict[str, Any] = {}
    over = 1.0
    if racks is not None:
        over = racks.oversubscription
    elif fabric is not None and fabric.kind != "fat-tree":  # That of a fat tree says how many nodes it has.
        over = fabric.oversubscription or 1.0
    left = max(1.0, over / room)
    if left != over and over > 1:
        if racks is not None:
            fields["racks"] = Racks(racks.nodes_per_rack, left)
        elif fabric is not None:
            fields["fabric"] = fabric.with_oversubscription(left)
    if cluster.degraded:
        fields["degraded"] = [_slowed(one, fabric, room, left / over) for one in cluster.degraded]
    return fields


def _slowed(one: Degraded, fabric: Fabric | None, room: float, shared: float) -> Degraded:
    is_card = one.link.strip().startswith(("node", "worker", "server"))
    if not is_card and fabric is not None and fabric.link_bandwidth_bps is not None:
        return one  # It has its own rate, whatever a node sends.
    return Degraded(one.link, min(1.0, one.factor * (room if is_card else room * shared)))


def _machines(library: Library, strategy: Strategy, cluster: Cluster, workers: int) -> dict[str, Any]:
    """Return the fields of what the library's processes cost on a machine; what the cluster says explicitly wins."""
    fields: dict[str, Any] = {}
    if cluster.host_bandwidth_bps is None and (host := library.value("host_bandwidth")) is not None:
        seconds_per_byte = 8 / host + (library.value("polling") or 0.0) * workers
        fields["host_bandwidth_bps"] = 8 / seconds_per_byte
    if cluster.reduction_bandwidth_bps is None and (adding := library.value("reduction_bandwidth")) is not None:
        fields["reduction_bandwidth_bps"] = adding
    inside = library.value("intra_bandwidth")
    if inside is not None and inside < cluster.intra_bandwidth_bps:
        fields["intra_bandwidth_bps"] = inside
    # NCCL's choice has the time of its own steps, and where the switch adds up, cards cut what they get into pieces.
    of_cards = strategy.is_offloaded or ("aggregation" in strategy.knobs and "servers" not in strategy.knobs)
    overhead = None if of_cards else library.value("message_overhead")
    if overhead is not None:
        fields["message_overhead_s"] = cluster.message_overhead_s + overhead
    if library.servers and strategy.name == library.strategy:
        fields["servers"] = library.servers
    return fields


def _habits(library: Library, strategy: Strategy, options: dict[str, Any], nodes: int) -> None:
    for name, value in library.options.items():
        if name in options or (name in KNOBS and name not in strategy.knobs):
            continue
        if name in KNOBS and name != "pull" and strategy.name != library.strategy:
            continue
        options[name] = nodes if value == PER_NODE else value


def _mesh(options: dict[str, Any], cluster: Cluster, gpus: int) -> Cluster:
    """Return the cluster whose GPUs exchange with all others of their node at once, over own links and a shared bus."""
    mesh = cluster.mesh
    if mesh is None or options.get("inside") != "root" or gpus - 1 <= mesh.peers:
        return cluster
    # All gradients arrive when the last one over the bus does.
    most = (gpus - 1) / (gpus - 1 - mesh.peers) * mesh.bridge_bps
    return cluster.replace(intra_bandwidth_bps=min(most, cluster.intra_bandwidth_bps))


def _costs(library: Library, options: dict[str, Any], workers: int, *, agree: bool) -> None:
    """Add what the library's calls cost, and its agreement, unless the coordinator is simulated."""
    call, agreement = library.value("call"), library.value("agreement")
    if call is not None:
        options["call_s"] = call
    if agreement is not None and agree:
        options["agreement_s"] = agreement * workers


def fusion(library: Library, flow_bps: float, latency_s: float, ranks: int) -> int | None:
    """Return the size in bytes up to which the library fuses gradients; None if it does not.

    Horovod fuses what is ready when it looks: one cycle's tensors, or more if an all-reduce waits long for a ring's
    steps.
    """
    size = library.value("bucket_size")
    if size is not None:
        return int(size)
    most = library.value("fusion_threshold")
    if most is None:
        return None
    sent_while_waiting = flow_bps / 8 * 2 * (ranks - 1) * latency_s
    return int(min(most, max(library.required("fused_per_cycle"), sent_while_waiting)))


def _most_messages(scenario: Scenario) -> int:
    """Return about how many messages a simulation has at most: a ring's; few of a plan, timed by collective."""
    low = lowered(scenario)
    if {"collectives", "slowdown"} & low.options.keys() or _core.is_planned(json.dumps(low.options)):
        return scenario.workers
    return 2 * scenario.workers**2 * len(scenario.trace.buckets(low.bucket_size))


def is_long(scenario: Scenario) -> bool:
    """Return whether a simulation may have so many messages that what tries several leaves it out."""
    return _most_messages(scenario) > LONG


def plan_of(scenario: Scenario) -> Plan:
    """Return the plan that is executed. Raises InvalidArgumentError: a coordinator has none."""
    if scenario.coordination is not None:
        raise InvalidArgumentError(
            "a coordinator decides in every iteration what is exchanged, so there is no plan; leave it out"
        )
    low = lowered(scenario)
    return _core.iteration_plan(scenario.trace, json.dumps(low.options))


def unreachable(scenario: Scenario) -> str | None:
    """Return why its exchanges cannot be simulated, if they cannot be. Raises InvalidArgumentError."""
    low = lowered(scenario)
    return _core.unreachable(scenario.trace, low.cluster, json.dumps(low.options))
