"""The times of a plan's collectives by NCCL's model; the simulator knows nothing of algorithms and protocols."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from paceline._core import Cluster, Trace
from paceline.catalog.nccl import Kind
from paceline.errors import InvalidArgumentError
from paceline.forecast.iteration_plan import Collective, distinct_exchanges
from paceline.forecast.nccl.machine import Group, Machine, behind_slow_links
from paceline.forecast.nccl.model import collective_time

_KINDS: dict[Collective, Kind] = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
}


def times_of(trace: Trace, options: Mapping[str, Any], cluster: Cluster) -> list[dict[str, Any]] | None:
    """Return what the native module takes as `collectives`; None if NCCL's model does not know the cluster.

    Args:
        trace: What is computed.
        options: Those of the native module, which make it a plan.
        cluster: Nodes that name their GPU.

    Raises:
        InvalidArgumentError: Options that contradict each other.
    """
    fields = json.loads(cluster.to_json())
    if "gpu" not in fields or "racks" in fields or fields.get("fabric", {}).get("kind", "rails") != "rails":
        return None
    try:
        machine = Machine.of(cluster)
    except InvalidArgumentError:  # A slow link that there is not, which the simulator names.
        return None
    found = {}
    world, every = distinct_exchanges(trace, json.dumps(options))
    for exchanged in every:
        group = exchanged.group
        key = (exchanged.collective, group.size, group.stride, exchanged.size)
        if key not in found:
            layout = layout_of(group.size, group.stride, machine.gpus_per_node, world)
            its = behind_slow_links(machine, cluster, group.size, group.stride, world) if layout.nodes > 1 else machine
            time = collective_time(_KINDS[exchanged.collective], exchanged.size, layout, its)
            most = its.network_of(layout) if layout.nodes > 1 else its.link
            found[key] = {"seconds": time.seconds, "busy": min(time.bus_bandwidth / most, 1.0)}
    names = ("collective", "size", "stride", "bytes")
    return [dict(zip(names, key, strict=True)) | value for key, value in found.items()]


def layout_of(size: int, stride: int, per_node: int, world: int) -> Group:
    """Return how the groups of `size` of `world` ranks, `stride` apart, lie on nodes of so many GPUs.

    If groups lie differently, it is that of the slowest.
    """
    if stride == 1:
        # Only some groups cross from one node to the next, and up to two of them at the same node.
        leaving = [
            group for group in range(world // size) if group * size // per_node != (group * size + size - 1) // per_node
        ]
        if size % per_node == 0 or not leaving:
            return Group(size, min(size, per_node))
        shares: list[int] = []
        neighbours: Counter[int] = Counter()
        for group in leaving:
            nodes = Counter(rank // per_node for rank in range(group * size, group * size + size))
            shares.append(min(nodes.values()))
            neighbours.update(nodes.keys())
        return Group(size, min(shares), max(neighbours.values()))
    # Groups between which ranks alternate share the node's NICs.
    return Group(size, min(size, max(1, per_node // stride)), min(stride, per_node))
