"""The nodes that are assumed of a GPU if no cluster is named: those in which it is sold, or else eight in a machine.

Of a cluster that does not say what its nodes are inside, that part is assumed. Forecasts of one job and of several, of
models and of recordings, ask here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline._core import Cluster, parse_rate
from paceline._internal import units
from paceline.catalog import channels, nccl
from paceline.catalog.builtin import fields_given, load_cluster
from paceline.catalog.constants import as_rate, read_document
from paceline.catalog.gpus import Hardware, all_hardware, find_hardware
from paceline.errors import InvalidArgumentError

GPUS_PER_NODE = 8
"""Of a GPU whose file says nothing of nodes: servers and cloud instances have up to 8. Fewer have one node."""
_OTHERS = Path(__file__).parent / "other-gpus.json"
"""GPUs with published rates, or of published measurements, whose times cannot be computed."""
_SHOWN = 3
"""Instances that a note names."""
_MESHES = ("nvlink-p100", "nvlink-v100")
"""Nodes of 8 are hybrid cube meshes: each GPU has links to 4 others."""


_INSIDE = {
    "gpu": "gpu",
    "intra_bandwidth": "intra_bandwidth_bps",
    "intra_link": "intra_link",
    "peer_access": "peer_access",
    "sockets": "sockets",
    "intra_latency": "intra_latency_s",
    "mesh": "mesh",
    "node_contention": "node_contention",
}
"""Fields of a cluster's file that say what a node is inside, and what they are called in a `Cluster`."""
_LINKS = frozenset({"intra_bandwidth", "intra_link", "mesh"})
"""Those that say what connects its GPUs."""
_OF_NODES_THAT_DO_NOT_SAY = {"peer_access": True, "sockets": 1}
_LINK_TITLES = {"pcie": "PCI Express", "xgmi": "Infinity Fabric"}
"""Of what connects the GPUs of a node; the others are NVLink."""
_DEFAULT_BPS = 100e9
"""The rate inside nodes where a file gives none."""


@dataclass(frozen=True)
class Nodes:
    """The nodes that are assumed of a GPU."""

    title: str
    """The GPU."""
    cluster: Cluster
    known: str | None = None
    """The built-in cluster whose nodes they are; None if none has this GPU."""
    like: str | None = None
    """The cluster or instance whose network they are assumed to have."""
    instances: tuple[str, ...] = ()
    """Where `known` is None: instances with this GPU."""

    @property
    def inside(self) -> tuple[float, str | None, bool]:
        """The links between the GPUs of a node: rate, kind, and whether they are a mesh."""
        return self.cluster.intra_bandwidth_bps, self.cluster.intra_link, self.cluster.mesh is not None

    def between(self, given: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Return what is assumed between them, and the settings that replace it; empty if that is nothing.

        A rate that is given replaces theirs alone. Their channel stays, which is said where another is usual of the
        rate.

        Args:
            given: Settings of nodes that are given; of `bandwidth`, all rates.
        """
        rates, channel = given.get("bandwidth"), self.cluster.channel
        is_assumed = channel != "auto" and "channel" not in given
        if rates is None:
            rate = units.rate(self.cluster.bandwidth_bps)
            if not is_assumed:
                return f"{rate} between nodes", ["bandwidth"]
            return f"{rate} over {channel.upper()} between nodes", ["bandwidth", "channel"]
        if not is_assumed or {channels.auto(parse_rate(rate)) for rate in rates} == {channel}:
            return "", []
        return f"{channel.upper()} between nodes", ["channel"]

    def note(self, given: Mapping[str, Any], spelling: Mapping[str, str]) -> str | None:
        """Return what is assumed, beside the fields of the cluster that were given; None if that is nothing.

        Args:
            given: Settings of nodes that are given; of `bandwidth`, all rates.
            spelling: How `gpus_per_node`, `bandwidth`, `channel` and `cluster` are given here, if they can be.
        """
        between, settings = self.between(given)
        names = [spelling[name] for name in settings if name in spelling]
        if self.known is not None:
            with_channel = f" with {between} ({names[0]})" if settings == ["channel"] and names else ""
            return f"Assumed {self.known} nodes{with_channel}; choose others with {spelling['cluster']}"
        assumed = []
        if "gpus_per_node" not in given:
            several = f"up to {self.cluster.gpus_per_node} GPUs per node over {self._link}"
            assumed.append(several if self.cluster.gpus_per_node > 1 else "1 GPU per node")
            names = [spelling["gpus_per_node"], *names]
        if between:
            assumed.append(between if self.like is None else f"{between}, as in {self.like}")
        if not assumed:
            return None
        shown = f" {units.listed(self.instances[:_SHOWN], 'or')}" if self.instances else ""
        having = "instances have" if self.instances else "no built-in cluster has"
        names.append(f"{spelling['cluster']}{shown}")
        return f"Assumed {units.listed(assumed)}: {having} the {self.title} ({', '.join(names)})"

    @property
    def _link(self) -> str:
        """The link between the GPUs of a node, as notes have it."""
        cluster = self.cluster
        if cluster.intra_link == "pcie":
            through = "" if cluster.peer_access else " through the host's memory"
            return f"PCI Express of {units.rate(cluster.intra_bandwidth_bps)}{through}"
        return _LINK_TITLES.get(cluster.intra_link or "", "NVLink")

    def note_on_larger(self, per_node: int, option: str) -> str | None:
        """Return that no node is known with so many GPUs as were given; None if one is.

        `option`: how they are given.
        """
        from paceline.catalog.instances import all_instances

        having = (one.gpus for one in all_instances() if one.hardware.title == self.title)
        most = max([self.cluster.gpus_per_node, *having])
        if per_node <= most:
            return None
        return (
            f"No known node has more than {most} of the {self.title}: assumed are {per_node} in a node over "
            f"{self._link} ({option} {most})"
        )


def with_inside(
    source: str | Path | Cluster,
    cluster: Cluster,
    settings: Mapping[str, Any],
    nodes: Callable[[], Nodes | None],
    remedy: str,
) -> tuple[Cluster, list[str]]:
    """Return a cluster with the inside of a GPU's nodes, and a note that says so, if nobody says what it is.

    Args:
        source: The name, file or object that the cluster is from.
        cluster: The cluster, as it is before settings.
        settings: Fields that are given beside it; None counts as not given.
        nodes: The nodes that are assumed of the GPU; None if none is named.
        remedy: How a setting gives another rate.
    """
    beside = {name for name, value in settings.items() if value is not None}
    in_file = frozenset() if isinstance(source, Cluster) else fields_given(source)
    # An object, like a pipe, does not tell what was given and what is a default.
    stated = set(in_file or [name for name, field in _INSIDE.items() if _is_stated(name, getattr(cluster, field))])
    if cluster.gpus_per_node == 1 and cluster.intra_bandwidth_bps == _DEFAULT_BPS:
        # The default, written out for nodes that have no inside.
        stated -= {"intra_bandwidth", "intra_latency"}
    if (settings.get("gpus_per_node") or cluster.gpus_per_node) == 1 or _LINKS & (stated | beside):
        return cluster, []
    assumed = nodes()
    if assumed is None:
        return cluster, []
    own = assumed.cluster
    rate = own.intra_bandwidth_bps
    slowest = own.intra_link is None and rate <= channels.constant("inside.pcie")
    link = "PCI Express" if slowest else _LINK_TITLES.get(own.intra_link or "", "NVLink")
    where = f" in {assumed.known}" if assumed.known is not None else ""
    note = (
        f"Assumed {link} of {units.rate(rate)} inside nodes, as the {assumed.title} has{where}: "
        f"{cluster.name} does not say ({remedy})"
    )
    changes: Any = {field: getattr(own, field) for name, field in _INSIDE.items() if name not in stated | beside}
    return cluster.replace(**changes), [note]


def _is_stated(name: str, value: object) -> bool:
    return bool(value) and value != _OF_NODES_THAT_DO_NOT_SAY.get(name)


def known_nodes(gpu: str) -> Nodes | None:
    """Return the nodes of a GPU by its name, as cluster files have it; None if it is not a known one."""
    try:
        return nodes_of(find_hardware(gpu))
    except InvalidArgumentError:
        return None


def nodes_of(gpu: Hardware) -> Nodes:
    """Return the nodes of a GPU: of its cluster, or else those that its file tells, or 8 over NVLink or PCI Express."""
    if gpu.node is not None:
        return Nodes(gpu.title, load_cluster(gpu.node), gpu.node)
    like = gpu.network.get("like")
    usual = None if like is None else load_cluster(like)
    per_node = gpu.network.get("gpus_per_node", GPUS_PER_NODE) if usual is None else usual.gpus_per_node
    inside = load_cluster(None, gpus_per_node=per_node, gpu=gpu.title, **inside_fields(gpu))
    if usual is not None:
        cluster = usual.replace(name=inside.name, **{field: getattr(inside, field) for field in _INSIDE.values()})
    else:
        cluster = load_cluster(inside, bandwidth=gpu.network.get("bandwidth"))
    return Nodes(gpu.title, cluster, None, like, instances_with(gpu))


def instances_with(gpu: Hardware) -> tuple[str, ...]:
    """Return the names of the instances with a GPU: that whose network is assumed, then the largest."""
    from paceline.catalog.instances import all_instances

    those = [one for one in all_instances() if one.hardware.name == gpu.name]
    return tuple(one.name for one in sorted(those, key=lambda one: (one.name != gpu.network.get("like"), -one.gpus)))


def nodes_of_device(device: str) -> Nodes:
    """Return the nodes of a device of the published rates (`V100`)."""
    other = _others().get(device.lower())
    if other is None and find_hardware(device).node is None:
        return nodes_of(find_hardware(device))
    known = find_hardware(device).node if other is None else other.get("node")
    assert known is not None, f"{device} has no node"
    return Nodes(device, load_cluster(known), known)


@lru_cache(maxsize=1)
def _others() -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in read_document(_OTHERS, "other-gpus")["gpus"]}


def inside_of(gpu: str) -> str | None:
    """Return the path inside a node with these GPUs (`nvlink-v100`); None if no word of the name is a GPU's."""
    words = f"-{'-'.join(re.findall('[a-z0-9]+', gpu.lower()))}-"
    known = {name: device.link for device in all_hardware() for name in device.like}
    known |= {name: device.link for device in all_hardware() for name in (device.name, *device.aliases)}
    known |= {name: other["link"] for name, other in _others().items()}
    return next((known[name] for name in sorted(known, key=len, reverse=True) if f"-{name}-" in words), None)


def node_fields(gpu: str) -> dict[str, Any]:
    """Return the fields of a cluster for a node with several of these GPUs, PCI Express if the name does not tell."""
    path = inside_of(gpu) or "pcie"
    fields: dict[str, Any] = {"intra_bandwidth": as_rate(channels.constant(f"inside.{path}"))}
    if f"contention.{path}" in channels.all_constants():
        fields["node_contention"] = channels.constant(f"contention.{path}")
    if path in _MESHES:
        fields["mesh"] = {"peers": 4, "bridge": as_rate(channels.constant("inside.qpi"))}
    return fields


def slot_bps(gpu: Hardware) -> float | None:
    """Return what NCCL gets of a GPU's PCI Express slot, in bits per second; None for one with NVLink."""
    return channels.constant(f"inside.{gpu.link}") if gpu.link.startswith("pcie") else None


def inside_fields(gpu: Hardware) -> dict[str, Any]:
    """Return the fields of a cluster that say what connects several of a GPU in a node."""
    slot = slot_bps(gpu)
    if slot is not None:
        return {"intra_bandwidth": as_rate(slot), "intra_link": "pcie", "peer_access": gpu.peer_access}
    assert gpu.bus_bandwidth is not None
    # NCCL's ring gets this share of what it assumes of the links.
    generation = nccl.generation_of(gpu.title)
    share = nccl.constant(f"ring.share.{gpu.architecture if generation is None else generation.name}")
    link = {"intra_link": "xgmi"} if gpu.link.startswith("xgmi") else {}
    return {"intra_bandwidth": as_rate(8 * gpu.bus_bandwidth / share), **link}
