"""Labels in `--json`, which scripts compare: unlike words for people they never change."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal import units
from paceline.forecast.advisor.candidates import Candidate, Setup
from paceline.forecast.kinds import Measure, Resource

_RESOURCES = {
    Resource.COMPUTE: "computation",
    Resource.NICS: "NICs",
    Resource.INSIDE: "links inside the node",
    Resource.UPLINKS: "racks' uplinks",
    Resource.LEAF_SPINE: "leaf-spine links",
    Resource.EDGE_AGGREGATION: "edge-aggregation links",
    Resource.AGGREGATION_CORE: "aggregation-core links",
    Resource.LOCAL: "local links",
    Resource.GLOBAL: "global links",
    Resource.TORUS: "torus links",
    Resource.LATENCY: "latency",
    Resource.HOST: "host copies",
    Resource.ADDITIONS: "additions",
    Resource.COMPRESSION: "compression",
    Resource.COORDINATOR: "the coordinator",
    Resource.BUFFER: "the fusion buffer",
    Resource.LATE: "late ranks",
    Resource.CALLS: "the library's calls",
    Resource.SLOWED: "what NCCL's kernels slow computation by",
    Resource.HOST_LINK: "copies between GPU and host",
    Resource.CPU_STEP: "the optimizer's step on the CPU",
    Resource.DRIVE: "the drive",
    Resource.STREAMS: "the library's connections",
}
_PLACES = {
    Resource.NICS: "network between nodes",
    Resource.INSIDE: "inside the node",
    Resource.COORDINATOR: "coordinator",
}
_MEASURES = {
    Measure.COMPUTE: "half the computing time",
    Measure.BANDWIDTH: "twice the bandwidth",
    Measure.BANDWIDTH_OF_NODES: "twice the bandwidth of the nodes",
    Measure.RATE_OF_LINKS: "twice the rate of the {links}",
    Measure.BANDWIDTH_INSIDE: "twice the bandwidth inside the node",
    Measure.BANDWIDTH_INSIDE_NODES: "twice the bandwidth inside nodes",
    Measure.BANDWIDTH_INSIDE_AND_BETWEEN: "twice the bandwidth inside and between nodes",
    Measure.BANDWIDTH_OF_NODES_AND_LINKS: "twice the bandwidth of the nodes and between switches",
    Measure.OVERSUBSCRIPTION_OF_RACKS: "half the oversubscription of the racks",
    Measure.OVERSUBSCRIPTION: "half the oversubscription",
    Measure.NO_OVERSUBSCRIPTION: "no oversubscription",
    Measure.CONNECTIONS: "twice as many connections between nodes",
    Measure.HOST: "twice the rate of host copies",
    Measure.ADDITIONS: "twice the rate of additions",
    Measure.LATENCY: "half the latency",
    Measure.COST: "half the cost of messages",
    Measure.LATENCY_AND_COST: "half the latency and cost of messages",
    Measure.RDMA: "RDMA instead of TCP",
    Measure.STRATEGY: "another strategy",
    Measure.BUCKET_SIZE: "the best bucket size",
    Measure.MULTICAST: "multicast in the switch",
    Measure.AGGREGATION: "aggregation in the switch",
    Measure.MULTICAST_AND_AGGREGATION: "multicast and aggregation in the switch",
    Measure.WITHOUT_SLOWEST: "without the slowest rank",
    Measure.HOST_LINK: "twice the bandwidth between GPU and host",
    Measure.CPU_STEP: "half the time of the optimizer's step on the CPU",
    Measure.DRIVE: "twice the rate of the drive",
    Measure.LESS_OFFLOADED: "less offloaded",
    Measure.FUSED_STEP: "a fused optimizer step on the CPU",
}


def setup(one: Setup) -> str:
    """Return the label of a sharding with its switches."""
    return one.sharding + (", no reshard" if one.kept else "") + (", last sync" if one.local else "")


def candidate(one: Candidate) -> str:
    """Return the label of a configuration: its sharding, and the size of its buckets."""
    if one.bucket_bytes is None:
        return setup(one.setup)
    size = one.bucket_bytes >> 20
    return f"{setup(one.setup)}, {f'{size >> 10} GiB' if size % 1024 == 0 else f'{size} MiB'} buckets"


def place(resource: Resource) -> str:
    """Return the label of what an iteration is bound by."""
    return _PLACES.get(resource, _RESOURCES[resource])


def measure(change: Measure, links: Sequence[Resource] = ()) -> str:
    """Return the label of a change. `links`: those of which it changes the rate."""
    names = sorted(_RESOURCES[link] for link in links)
    return _MEASURES[change].format(links=units.listed(names) if names else "")
