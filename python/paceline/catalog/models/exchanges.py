"""Exchanges of GPUs that share a model's layers, and their times: activations, and rows for experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from paceline import _core
from paceline._core import Cluster, NcclGroup, NcclMachine
from paceline.catalog.gpus import Hardware
from paceline.catalog.nccl import assumed_values, constant

HOP_S = 3.4e-6
"""Of NCCL's ring over NVLink, protocol Simple (NVIDIA/nccl src/graph/tuning.cc)."""
_BYTES = {"fp8": 2, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
"""Of an activation: FP8 training keeps activations in 16 bits."""


def element_bytes(precision: str) -> int:
    """Return the bytes of an activation or a gradient in this precision."""
    return _BYTES[precision]


def is_split(size: int, gpus_per_node: int) -> bool:
    """Whether some groups of so many neighboring GPUs are on two nodes, and others on one."""
    return 1 < size < gpus_per_node and gpus_per_node % size != 0


@dataclass(frozen=True)
class Links:
    """Links that carry a GPU's messages to other nodes."""

    gpus_per_node: int
    card: float
    """Bytes per second, each way: a GPU's share of its node's network cards, as NCCL uses them."""
    nodes: Cluster | None = field(default=None, compare=False)
    """For collectives of tensor-parallel GPUs on several nodes; None: they are on one."""

    @classmethod
    def of(cls, cluster: Cluster) -> Links:
        """Return those of a cluster's nodes."""
        per_node = cluster.gpus_per_node
        # On rails, the rate is that of each GPU's card.
        sharing = 1 if cluster.has_rails else per_node
        share = cluster.efficiency or constant("network.share")
        return cls(per_node, cluster.bandwidth_bps / 8 / sharing * share)

    @cached_property
    def machine(self) -> NcclMachine | None:
        """The nodes as NCCL sees them."""
        return None if self.nodes is None else NcclMachine.of(self.nodes)

    @property
    def doubled(self) -> Links:
        """The links with twice their rate."""
        nodes = None if self.nodes is None else self.nodes.replace(bandwidth_bps=2 * self.nodes.bandwidth_bps)
        return replace(self, card=2 * self.card, nodes=nodes)


def in_whole_groups(cluster: Cluster, sizes: Sequence[int]) -> Cluster:
    """Return a cluster whose nodes have as many GPUs as are whole groups of each of these sizes.

    The NICs of the others are idle with them. The same cluster if no group would lie across nodes, or if a node is
    too small for one of each size.
    """
    per_node = cluster.gpus_per_node
    split = [size for size in sizes if is_split(size, per_node)]
    whole = math.lcm(*split)
    if not split or whole > per_node:
        return cluster
    used = per_node // whole * whole
    if cluster.has_rails:
        return cluster.replace(gpus_per_node=used)
    rate = round(cluster.bandwidth_bps * used / per_node)
    cards = used if cluster.nics_per_node == per_node else cluster.nics_per_node
    return cluster.replace(gpus_per_node=used, bandwidth_bps=rate, nics_per_node=cards)


def all_reduce_s(hardware: Hardware, moved_bytes: float, ranks: int, links: Links | None = None) -> float:
    """Return the seconds of an all-reduce: inside a node, a ring's latency, and bytes at NCCL's bus bandwidth.

    Between nodes (`links`), it is a reduce-scatter and an all-gather, which tensor parallelism with a divided sequence
    has instead: NVLS has no part in them.
    """
    if ranks == 1:
        return 0.0
    if links is not None and links.machine is not None and ranks > links.gpus_per_node:
        group = NcclGroup(ranks, links.gpus_per_node)
        size = max(1, round(moved_bytes))
        halves = ("reducescatter", "allgather")
        times = [_core.nccl_time(half, size, group, links.machine, assumed=assumed_values()) for half in halves]
        return sum(it.seconds for it in times)
    assert hardware.bus_bandwidth is not None
    steps = 2 * (ranks - 1)
    return steps * HOP_S + steps / ranks * moved_bytes / hardware.bus_bandwidth


def all_to_all_s(hardware: Hardware, moved_bytes: float, ranks: int, links: Links) -> float:
    """Return the seconds in which each GPU sends so many bytes, an equal part to each, in nodes and between them."""
    near, inside = min(ranks, links.gpus_per_node), 0.0
    if near > 1:
        assert hardware.bus_bandwidth is not None
        inside = moved_bytes * (near - 1) / ranks / hardware.bus_bandwidth
    between = moved_bytes * (ranks - near) / ranks / links.card
    return (ranks - 1) * HOP_S + max(inside, between)


def pass_around_s(hardware: Hardware, moved_bytes: float, ranks: int, links: Links | None, *, gpus: int) -> float:
    """Return the seconds in which each rank sends so many bytes to its neighbor, piece by piece.

    Args:
        hardware: The GPU.
        moved_bytes: What each sends.
        ranks: Those of the ring.
        links: To other nodes; None: none.
        gpus: Of all ranks.
    """
    rate = hardware.bus_bandwidth
    if links is not None and (rate is None or gpus > links.gpus_per_node):
        rate = links.card
    assert rate is not None
    return (ranks - 1) * HOP_S + moved_bytes / rate
