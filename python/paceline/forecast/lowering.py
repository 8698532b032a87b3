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
from paceline._core import Cluster
from paceline.catalog import channels
from paceline.catalog.constants import as_rate, as_time
from paceline.catalog.libraries import DEFAULT, PER_NODE, Library
from paceline.catalog.nccl import overlap_slowdown
from paceline.catalog.strategies import KNOBS, Strategy
from paceline.forecast import compression, sharding
from paceline.forecast.nccl.model import times_of
from paceline.settings.table import naming_core_errors

if TYPE_CHECKING:
    from paceline.forecast.simulate import Scenario

_ONE_NEIGHBOUR = ("ring", "ring-multicast", "native", "hierarchical")
"""Strategies in which a node sends to one other node only. Elsewhere several connections share its link."""


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
    fields = json.loads(scenario.cluster.to_json())
    per_node = int(fields["gpus_per_node"])
    nodes = -(-workers // per_node)
    channel = fields.get("channel", "none")
    payload, flow = _flow(library, strategy, fields, channel)
    _behind_the_flows(fields, payload / flow)
    fields["bandwidth"] = as_rate(flow)
    options = dict(scenario.options)
    bucket_size = options.pop("bucket_size", None)
    hooks = compression.iteration(scenario, options)
    is_retyped = "param_dtype" in options and not hooks
    dtype = json.loads(scenario.trace.summary())["dtype"] if is_retyped else None
    has_stages = scenario.workload is not None and scenario.workload.pipeline > 1
    iteration = sharding.iteration(options, workers, per_node, dtype=dtype, has_stages=has_stages)
    # One rank by itself has nobody to exchange its part of the experts with.
    if scenario.workload is not None and scenario.workload.expert_ranks > 1 and workers > 1:
        iteration = {"sharding": sharding.NONE, **(iteration or {}), "expert_parallel": scenario.workload.expert_ranks}
    on_gpus = "gpu" in fields
    if hooks:
        iteration = {"sharding": sharding.NONE, **(iteration or {}), **hooks}
    _machines(library, strategy, fields, workers)
    _habits(library, strategy, options, nodes)
    _mesh(options, fields, min(workers, per_node))
    _costs(library, options, workers, agree=scenario.coordination is None)
    if nodes > 1 and channel != "none" and not library.is_bare and "jitter" not in fields:
        options["spread"] = channels.constant(f"{channel}.jitter")
    if bucket_size is None:
        # Of the links that a ring uses.
        rate = flow if nodes > 1 else _core.parse_rate(fields["intra_bandwidth"])
        wait = _core.parse_time(fields["latency" if nodes > 1 else "intra_latency"])
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
        _on_gpus(scenario, options, known=on_gpus)
    return Lowered(
        Cluster.from_json(json.dumps(fields).encode(), "cluster"),
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
    with naming_core_errors():
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


def _flow(library: Library, strategy: Strategy, fields: dict[str, Any], channel: str) -> tuple[float, float]:
    """Return the payload of a node's link, and what its messages get of it: less if it sends on few connections."""
    link = float(_core.parse_rate(fields["bandwidth"]))
    payload = link * (fields.get("efficiency") or channels.share_of(channel, link))
    streams = library.value("streams")
    if library.is_bare or streams is None or strategy.name not in _ONE_NEIGHBOUR:
        return payload, payload
    own = fields.get("stream_bandwidth")
    one = float(_core.parse_rate(own)) if own else channels.stream_of(channel, link)
    return payload, min(payload, streams * one)


def is_limited_by_connections(scenario: Scenario) -> bool:
    """Whether the connections of a node to its next one carry less than its link."""
    fields = json.loads(scenario.cluster.to_json())
    if scenario.workers <= int(fields["gpus_per_node"]):
        return False
    payload, flow = _flow(scenario.library, scenario.strategy, fields, fields.get("channel", "none"))
    return flow < payload


def _behind_the_flows(fields: dict[str, Any], room: float) -> None:
    """Keep what follows from a link's rate where the flows of a node carry less: `room` is the link's payload over it.

    A slow link slows flows down only below what they carry, and the uplinks of racks are shared before they are full.
    """
    fabric = fields.get("fabric", {})
    shared = fields.get("racks", fabric)
    # That of a fat tree says how many nodes it has.
    over = 1.0 if fabric.get("kind") == "fat-tree" else shared.get("oversubscription", 1.0)
    left = max(1.0, over / room)
    if left != over and over > 1:
        shared["oversubscription"] = left
    for one in fields.get("degraded", []):
        is_card = one["link"].strip().startswith(("node", "worker", "server"))
        if not is_card and "link_bandwidth" in fabric:  # has its own rate, whatever a node sends
            continue
        of_link = room if is_card else room * left / over
        one["factor"] = min(1.0, one["factor"] * of_link)


def _machines(library: Library, strategy: Strategy, fields: dict[str, Any], workers: int) -> None:
    """Add what the library's processes cost on a machine; what the cluster says explicitly wins."""
    if "host_bandwidth" not in fields and (host := library.value("host_bandwidth")) is not None:
        seconds_per_byte = 8 / host + (library.value("polling") or 0.0) * workers
        fields["host_bandwidth"] = as_rate(8 / seconds_per_byte)
    if "reduction_bandwidth" not in fields and (adding := library.value("reduction_bandwidth")) is not None:
        fields["reduction_bandwidth"] = as_rate(adding)
    inside = library.value("intra_bandwidth")
    if inside is not None and inside < _core.parse_rate(fields["intra_bandwidth"]):
        fields["intra_bandwidth"] = as_rate(inside)
    # NCCL's choice has the time of its own steps, and where the switch adds up, cards cut what they get into pieces.
    of_cards = strategy.is_offloaded or ("aggregation" in strategy.knobs and "servers" not in strategy.knobs)
    overhead = None if of_cards else library.value("message_overhead")
    if overhead is not None:
        fields["message_overhead"] = as_time(_core.parse_time(fields["message_overhead"]) + overhead)
    if library.servers and strategy.name == library.strategy:
        fields["servers"] = library.servers


def _habits(library: Library, strategy: Strategy, options: dict[str, Any], nodes: int) -> None:
    for name, value in library.options.items():
        if name in options or (name in KNOBS and name not in strategy.knobs):
            continue
        if name in KNOBS and name != "pull" and strategy.name != library.strategy:
            continue
        options[name] = nodes if value == PER_NODE else value


def _mesh(options: dict[str, Any], fields: dict[str, Any], gpus: int) -> None:
    """Limit what one GPU of a node exchanges with all others at once, over its own links and a shared bus."""
    mesh = fields.get("mesh")
    if mesh is None or options.get("inside") != "root" or gpus - 1 <= mesh["peers"]:
        return
    # All gradients arrive when the last one over the bus does.
    most = (gpus - 1) / (gpus - 1 - mesh["peers"]) * _core.parse_rate(mesh["bridge"])
    fields["intra_bandwidth"] = as_rate(min(most, _core.parse_rate(fields["intra_bandwidth"])))


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
