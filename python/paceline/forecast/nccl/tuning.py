"""NCCL's model of the time of a collective, latency + bytes / bandwidth, with which it chooses for each size.

It follows src/graph/tuning.cc of NCCL 2.30 (ncclTopoTuneModel and ncclTopoGetAlgoTime) for ring, tree, NVLS, NVLSTree
and PAT; CollNet (SHARP between nodes) is left out. The graph search, which finds the channels, is replaced by links and
NICs at full rate. `paceline.forecast.nccl.model` has the times that were measured; they use the same structure with
other `Figures`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from paceline.catalog.nccl import (
    ALGORITHMS,
    PROTOCOLS,
    Algorithm,
    Kind,
    Protocol,
    tables,
)
from paceline.forecast.nccl.machine import Group, Machine

# What PAT and trees get of the network's rate, and what LL and LL128 get of a ring's.
_PAT, _TREE, _TREE_LL, _RING_LL, _RING_LL128 = 0.75, 0.92, 1 / 3.8, 0.5, 0.92
# NCCL counts on so many channels for each NIC.
_CHANNELS_A_NIC = 2
_NVLS_CHANNELS = 16
# PAT: steps in its logarithmic part overlap; and a linear part, microseconds for each rank.
_PAT_OVERLAP, _PAT_RANK_US = 3.5, 2.8
# What posting to a card takes, microseconds; Simple posts three times.
_POST_US = 1.0
# Below this many bytes for each channel and rank, a ring's latency has no plateau.
_PLATEAU_BYTES = 64


@dataclass(frozen=True)
class Estimate:
    """What NCCL's model says of one combination. Seconds; bytes of the buffer per second."""

    algorithm: Algorithm
    protocol: Protocol
    seconds: float
    latency_s: float
    bandwidth: float


@lru_cache(maxsize=1024)
def available(kind: Kind, group: Group, machine: Machine) -> tuple[tuple[Algorithm, Protocol], ...]:
    """Return the combinations that NCCL has for a collective."""
    return tuple(_available(kind, group, machine))


def _available(kind: Kind, group: Group, machine: Machine) -> Iterator[tuple[Algorithm, Protocol]]:
    several, single = group.nodes > 1, group.per_node_used == 1
    for algorithm in ALGORITHMS:
        if algorithm == "tree" and kind != "allreduce":
            continue
        if algorithm == "nvls" and (kind in ("broadcast", "reduce") or several or not machine.has_nvls):
            continue
        if algorithm == "nvls-tree" and (kind != "allreduce" or not several or single or not machine.has_nvls):
            continue
        if algorithm == "pat" and (kind not in ("allgather", "reducescatter") or not single):
            continue
        for protocol in PROTOCOLS:
            if protocol != "Simple" and algorithm in ("nvls", "nvls-tree", "pat"):
                continue
            if protocol == "LL128" and machine.intra_link == "pcie":
                continue
            yield algorithm, protocol


@lru_cache(maxsize=8192)
def estimates(kind: Kind, size: int, group: Group, machine: Machine) -> tuple[Estimate, ...]:
    """Return NCCL's estimates for a buffer of this many bytes, fastest first."""
    found = []
    for algorithm, protocol in available(kind, group, machine):
        bandwidth = _bandwidth(kind, group, machine, algorithm, protocol)
        if bandwidth <= 0:
            continue
        bandwidth *= tree_share(algorithm, protocol, size, machine)
        latency = latency_s(kind, group, machine, (algorithm, protocol))
        channels = machine.generation.channels if group.nodes == 1 else _network_channels(machine)
        plateau = size / (channels * group.ranks) >= _PLATEAU_BYTES and kind == "allreduce" and group.nodes > 1
        if algorithm == "ring" and protocol == "Simple" and plateau:
            latency *= machine.generation.plateau
        found.append(Estimate(algorithm, protocol, latency + size / bandwidth, latency, bandwidth))
    return tuple(sorted(found, key=lambda it: it.seconds))


def steps(kind: Kind, ranks: int) -> int:
    """Return the steps of a ring."""
    if kind == "allreduce":
        return 2 * (ranks - 1)
    return ranks - 1 if kind in ("allgather", "reducescatter") else ranks


@lru_cache(maxsize=8192)
def latency_s(
    kind: Kind, group: Group, machine: Machine, choice: tuple[Algorithm, Protocol], hop_factor: float = 1.0
) -> float:
    """Return the latency of a collective in seconds. `hop_factor`: what a ring's step between nodes takes longer."""
    algorithm, protocol = choice
    it, table, place = PROTOCOLS.index(protocol), tables(), group.nodes
    ranks, nodes = group.ranks, group.nodes
    inside_us = table.step_us["pci" if machine.intra_link == "pcie" else "nvlink"][algorithm][it]
    # With one rank a node nothing hides the network's latency; NCCL then takes that of trees.
    between = "tree" if group.per_node_used == 1 else algorithm
    between_us = table.step_us["net"][between][it] + machine.hop_s * 1e6
    base_us = table.base_us[algorithm][it]
    if algorithm == "ring":
        count = steps(kind, ranks)
        if kind in ("broadcast", "reduce"):
            # Chunks of Simple are waited for at each step, as in a tree.
            of = "tree" if protocol == "Simple" else "ring"
            inside_us = table.step_us["pci" if machine.intra_link == "pcie" else "nvlink"][of][it]
        crossing = 0 if place == 1 else (2 if kind == "allreduce" else 1) * (nodes - 1)
        if place > 1:
            inside_us = max(inside_us, _POST_US * (3 if protocol == "Simple" else 1))
        return 1e-6 * (base_us + (count - crossing) * inside_us + crossing * between_us * hop_factor)
    if algorithm == "tree":
        depth = int(math.log2(nodes))
        return 1e-6 * (base_us + 2 * ((ranks // nodes - 1) * inside_us + depth * between_us))
    if algorithm == "nvls":
        return 1e-6 * inside_us
    if algorithm == "nvls-tree":
        return 1e-6 * (base_us + inside_us + 2 * int(math.log2(nodes)) * between_us)
    return 1e-6 * (base_us + int(math.log2(nodes)) * between_us / _PAT_OVERLAP + ranks * _PAT_RANK_US)


def tree_share(algorithm: Algorithm, protocol: Protocol, size: int, machine: Machine) -> float:
    """Return the share of its rate that a tree gets with buffers of this size."""
    is_tree = algorithm == "tree" or (algorithm == "nvls-tree" and machine.generation.name == "blackwell")
    shares = tables().tree_share_by_size[protocol]
    place = (size >> 6).bit_length() - 1
    return shares[place] if is_tree and 0 <= place < len(shares) else 1.0


def ring_ratio(kind: Kind, ranks: int) -> float:
    """Return the bytes of a buffer over those that pass each link of a ring: from bus to algorithm bandwidth."""
    return ranks / steps(kind, ranks)


def _network_channels(machine: Machine) -> int:
    return max(2, _CHANNELS_A_NIC * machine.nics)


def _bandwidth(kind: Kind, group: Group, machine: Machine, algorithm: Algorithm, protocol: Protocol) -> float:
    """Return what NCCL's model assumes: bytes of the buffer per second; 0 if it does not use the combination."""
    table, generation, ranks = tables(), machine.generation, group.ranks
    one, name = group.nodes == 1, machine.generation.name
    place = min(group.nodes, 3) - 1
    channels = generation.channels if one else _network_channels(machine)
    bus = (machine.link if one else min(machine.link, machine.network_of(group))) / 1e9
    if algorithm in ("nvls", "nvls-tree"):
        inside = machine.link / 1e9 * generation.nvls_share * (_NVLS_CHANNELS - 1) / _NVLS_CHANNELS
        inside *= 2.0 if kind == "allreduce" else (group.per_node_used - 1) / group.per_node_used
        bus = inside
        if algorithm == "nvls-tree":
            between = machine.network_of(group) / 1e9 * (2 if group.nodes == 2 else 1)
            # A channel for each GPU of a node.
            bus = min(inside, between, group.per_node_used * table.nvls_tree_most_per_channel[name][place])
    ll_most = table.ll_most[("one node", "two nodes", "more")[place]][name]
    if algorithm == "ring" and protocol == "LL":
        bus = min(ll_most, bus * _RING_LL)
    elif algorithm == "ring" and protocol == "LL128":
        bus = min(bus * _RING_LL128, channels * table.ring_ll128_most_per_channel[name])
    elif algorithm == "tree":
        bus = min(bus * _TREE, channels * table.tree_most_per_channel["Simple"][name][place])
        if protocol == "LL":
            bus = min(bus * _TREE_LL, ll_most)
        elif protocol == "LL128":
            share = 7 / 9 if one else 120 / 128
            bus = min(bus * share, channels * table.tree_most_per_channel["LL128"][name][place])
    elif algorithm == "pat":
        bus *= _PAT
    if algorithm != "ring" and kind in ("allgather", "reducescatter"):
        return bus * 1e9
    ratio = ring_ratio(kind, ranks) if algorithm in ("ring", "nvls", "nvls-tree") else 0.5
    return bus * ratio * 1e9
