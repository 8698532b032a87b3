"""The nodes that are assumed of a GPU if no cluster is named: those in which it is sold, or else eight in a machine.

Forecasts of one job and of several, of models and of recordings, ask here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from paceline._core import Cluster, written_rate
from paceline._internal import units
from paceline.catalog import channels, nccl
from paceline.catalog.constants import as_rate
from paceline.catalog.devices import NODES
from paceline.catalog.hardware import Hardware
from paceline.catalog.library import load_cluster

GPUS_PER_NODE = 8
"""Of a GPU that no built-in cluster has: servers and cloud instances have up to 8. A job of fewer has one node."""
_PCIE = {
    "volta": "pcie",
    "turing": "pcie",
    "ampere": "pcie-4",
    "ada": "pcie-4",
    "hopper": "pcie-5",
    "blackwell": "pcie-5",
}
"""The slot of a GPU without NVLink by its architecture: PCI Express 3.0, 4.0 and 5.0 x16."""


@dataclass(frozen=True)
class Nodes:
    """The nodes that are assumed of a GPU."""

    title: str
    """The GPU."""
    cluster: Cluster
    known: str | None = None
    """The built-in cluster whose nodes they are; None if none has this GPU."""

    def note(self, given: Collection[str] = (), spelling: dict[str, str] | None = None) -> str | None:
        """Return what is assumed, beside the fields of the cluster that were given; None if that is nothing.

        `spelling`: how the settings `gpus_per_node`, `bandwidth` and `cluster` are given here.
        """
        names = {name: name for name in ("gpus_per_node", "bandwidth", "cluster")} | (spelling or {})
        if self.known is not None:
            return f"assuming the nodes of {self.known}, which have this GPU; {names['cluster']} takes others"
        left = [name for name in ("gpus_per_node", "bandwidth") if name not in given]
        if not left:
            return None
        cluster = self.cluster
        is_pcie = cluster.intra_link == "pcie"
        inside = f"PCI Express of {written_rate(cluster.intra_bandwidth_bps)}" if is_pcie else "NVLink"
        assumed = {
            "gpus_per_node": f"up to {cluster.gpus_per_node} in a node, connected by {inside}",
            "bandwidth": f"{written_rate(cluster.bandwidth_bps)} between nodes",
        }
        return (
            f"no built-in cluster has the {self.title}: assuming {units.listed([assumed[name] for name in left])}; "
            f"{units.listed([names[name] for name in left])}, or {names['cluster']}, say what yours are"
        )


def nodes_of(gpu: Hardware) -> Nodes:
    """Return the nodes of a GPU: of its cluster, or else of 8 that share a node by NVLink or PCI Express."""
    if gpu.node is not None:
        return Nodes(gpu.title, load_cluster(gpu.node), gpu.node)
    return Nodes(gpu.title, load_cluster(None, gpus_per_node=GPUS_PER_NODE, gpu=gpu.title, **_inside(gpu)))


def nodes_of_device(device: str) -> Nodes:
    """Return the nodes of a device of the published rates (`V100`)."""
    if (known := NODES.get(device)) is not None:
        return Nodes(device, load_cluster(known), known)
    is_pcie = (channels.inside_of(device) or "pcie").startswith("pcie")
    fields = channels.node_fields(device) | ({"intra_link": "pcie"} if is_pcie else {})
    return Nodes(device, load_cluster(None, gpus_per_node=GPUS_PER_NODE, **fields))


def slot_bps(gpu: Hardware) -> float | None:
    """Return what NCCL gets of a GPU's PCI Express slot, in bits per second; None for one with NVLink."""
    if gpu.link_bandwidth is not None and gpu.bus_bandwidth is not None:
        return None
    return channels.constant(f"inside.{_PCIE[gpu.architecture]}")


def _inside(gpu: Hardware) -> dict[str, Any]:
    slot = slot_bps(gpu)
    if slot is not None:
        return {"intra_bandwidth": as_rate(slot), "intra_link": "pcie"}
    assert gpu.bus_bandwidth is not None
    # NCCL's ring gets this share of what it assumes of the links.
    generation = nccl.generation_of(gpu.title)
    share = nccl.constant(f"ring.share.{gpu.architecture if generation is None else generation.name}")
    return {"intra_bandwidth": as_rate(8 * gpu.bus_bandwidth / share)}
