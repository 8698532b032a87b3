"""A cluster as NCCL sees it, and a group of its ranks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from paceline import _core
from paceline._core import Cluster
from paceline._internal import units
from paceline.catalog import channels, nccl
from paceline.catalog.nccl import Generation
from paceline.errors import InvalidArgumentError

# Rates inside the node, in bits per second, from which GPUs without a name are taken for those of a generation.
_LINKS = (("blackwell", 4e12), ("hopper", 2.4e12), ("ampere", 1.5e12), ("volta", 0.0))
# The rate of a PCI Express 3.0 x16 slot; a faster link is NVLink, if a cluster does not say.
_PCI_MOST_BPS = 128e9
IntraLink = Literal["pcie", "nvlink", "nvswitch"]


@dataclass(frozen=True)
class Group:
    """The ranks of a communicator: `per_node` on each of its nodes, the last of which may have fewer.

    `concurrent` groups of this layout run the same collective at once on the same nodes and share the NICs, such as the
    groups that all-reduce shards under HSDP.
    """

    ranks: int
    per_node: int
    concurrent: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("ranks", "per_node", "concurrent"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidArgumentError(f"{name}: {units.shown(value, repr)} is not a whole number of at least 1")

    @property
    def nodes(self) -> int:
        """Nodes with ranks of the group."""
        return -(-self.ranks // self.per_node)

    @property
    def per_node_used(self) -> int:
        """Ranks on a full node: `per_node`, or all if there are fewer."""
        return min(self.ranks, self.per_node)


@dataclass(frozen=True)
class Machine:
    """Nodes and their links. Rates are bytes per second, each way."""

    name: str
    generation: Generation
    gpus_per_node: int
    intra_link: IntraLink
    link: float
    """Rate of a GPU's link inside the node."""
    nominal: float
    """Rate of all NICs of a node."""
    network: float
    """The same of the slowest node."""
    nics: int
    nic_share: float | None
    """What messages get of it, if the cluster says so."""
    hop_s: float
    """What a hop between nodes takes beside NCCL's own figures: the latency of TCP."""
    assumed: tuple[str, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> Machine:
        """Return a cluster as NCCL sees it. Raises InvalidArgumentError for links that this model does not know."""
        return _machine(cluster.to_json())

    @property
    def has_nvls(self) -> bool:
        """Whether the switches inside the node add and multicast."""
        return self.intra_link == "nvswitch" and self.generation.nvls_share > 0

    def network_of(self, group: Group) -> float:
        """Return the wire rate between nodes that a group gets.

        A group reaches the NICs of its own GPUs, and concurrent groups share them: with a NIC for each GPU, a group of
        one rank a node has one NIC, and all groups together have all of them.
        """
        reached = max(1.0, group.per_node_used * self.nics / self.gpus_per_node)
        return self.network * min(reached / self.nics, 1 / group.concurrent)

    def check(self, group: Group) -> None:
        """Raise InvalidArgumentError if the group does not fit on the nodes."""
        if group.per_node * group.concurrent > self.gpus_per_node:
            groups = f"{group.concurrent} groups of {group.per_node}" if group.concurrent > 1 else group.per_node
            raise InvalidArgumentError(
                f"per_node: {groups} ranks on a node of {self.name}, which has {units.count(self.gpus_per_node, 'GPU')}"
            )


@lru_cache(maxsize=64)
def _machine(text: str) -> Machine:
    fields: dict[str, Any] = json.loads(text)
    link, gpus = _core.parse_rate(fields["intra_bandwidth"]), int(fields["gpus_per_node"])
    assumed = []
    gpu = str(fields.get("gpu", ""))
    generation = nccl.generation_of(gpu)
    if generation is None:
        name = next(name for name, least in _LINKS if link >= least)
        generation = next(it for it in nccl.generations() if it.name == name)
        what = f"its GPUs ('{gpu}')" if gpu else "its GPUs"
        assumed.append(f"{what} are those of NCCL's generation {name}, because of their links; give `gpu` in its file")
    intra_link: IntraLink | None = fields.get("intra_link")
    if intra_link is None:
        switched = "mesh" not in fields and gpus > 1 and generation.name != "volta"
        intra_link = "pcie" if link <= _PCI_MOST_BPS else "nvswitch" if switched else "nvlink"
        if gpus > 1:
            assumed.append(f"GPUs of a node are connected by {intra_link}; give `intra_link` in its file")
    rails = fields.get("fabric", {}).get("kind") == "rails"
    nics = gpus if rails else int(fields.get("nics_per_node", 1))
    nominal = _core.parse_rate(fields["bandwidth"]) / 8 * (gpus if rails else 1)
    latency = _core.parse_time(fields["latency"])
    if fields.get("channel") != "tcp":
        # NCCL's own figures are those of RDMA.
        latency = max(0.0, latency - channels.constant("rdma.latency"))
    return Machine(
        name=fields["name"],
        generation=generation,
        gpus_per_node=gpus,
        intra_link=intra_link,
        link=link / 8,
        nominal=nominal,
        network=nominal * _left(fields.get("degraded", []), nics, fabric="fabric" in fields),
        nics=nics,
        nic_share=fields.get("efficiency", None if fields.get("channel", "none") != "none" else 1.0),
        hop_s=latency,
        assumed=tuple(assumed),
    )


def behind_slow_links(machine: Machine, cluster: Cluster, size: int, stride: int, world: int) -> Machine:
    """Return the machine with the network that slow links between switches leave to groups of ranks.

    Groups have `size` ranks, `stride` apart, of `world`. Less is left only where links carry less than the NICs of a
    leaf need. Raises InvalidArgumentError for links that the cluster does not have.
    """
    fields = json.loads(cluster.to_json())
    if all(_nic(one) for one in fields.get("degraded", [])):
        return machine
    left = _core.left_for_rings(cluster, world, size, stride)
    return replace(machine, network=machine.network * left)


def _nic(degraded: dict[str, Any]) -> re.Match[str] | None:
    return re.fullmatch(r"(node|worker)\d+", str(degraded["link"]).replace(" ", ""))


def _left(degraded: list[dict[str, Any]], nics: int, *, fabric: bool) -> float:
    """Return the share of its NICs' rate that is left to the slowest node.

    NCCL cuts a buffer into equal parts for its channels, so that one slow NIC slows down all; a missing one is left
    out.
    """
    shares = [1.0]
    for one in degraded:
        link, factor = str(one["link"]), float(one["factor"])
        if _nic(one) is None:
            if fabric:
                continue
            raise InvalidArgumentError(
                f"NCCL's model knows the NICs of nodes (node3) and, with several a node, of GPUs (worker3), not {link}",
                setting="degraded",
            )
        whole = link.startswith("node")
        if factor == 0 and (whole or nics == 1):
            raise InvalidArgumentError(f"{link} has no NIC left; NCCL would hang", setting="degraded")
        shares.append(factor if factor > 0 else (nics - 1) / nics)
    return min(shares)
