"""A cluster with the network that NCCL falls back to, or that a fault leaves it: causes to try on a scenario.

The words for each, its check and its remedy are in `catalog/causes.json`, by the same name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline._core import Cluster, Sockets
from paceline.catalog.channels import with_channel
from paceline.catalog.nccl import constant
from paceline.forecast.nccl.model import Machine

FabricName = Literal["sockets", "no-plugin", "gpudirect-off", "acs", "one-rail", "nic-pcie"]
_ACS = 0.5
"""Of the cards' rate, where their traffic with GPUs goes by the CPU: 9.84 of 22 GB/s (nccl-tests#112), 27 of 48
(nccl#949)."""
_HELPERS = Sockets(4, 1)
"""Of a connection: `ncclSocketGetNsockNthread` of NCCL's src/transport/net_socket.cc, by the PCI vendor 0x1ae0."""


@dataclass(frozen=True)
class Alternative:
    """A cluster whose NCCL uses another network."""

    name: FabricName
    """Of the cause in the catalog."""
    cluster: Cluster

    def carrying(self, bps: float) -> Cluster:
        """Return the cluster whose network carries so many bits per second of a node.

        Sockets have the threads that NCCL opens by itself on Google Cloud, and as many interfaces as that takes.
        """
        if self.cluster.channel != "tcp":
            return self.cluster.replace(bandwidth_bps=bps)
        interfaces = math.ceil(bps / (8 * constant("socket.interface")))
        return self.cluster.replace(bandwidth_bps=bps, nics_per_node=interfaces, nccl_sockets=_HELPERS)

    @property
    def rate_bps(self) -> float:
        """Bits per second of a node's network: through the host's memory at most half of each slot's."""
        if self.cluster.gpudirect:
            return self.cluster.bandwidth_bps
        machine = Machine.of(self.cluster)
        return min(self.cluster.bandwidth_bps, 8 * machine.nics * machine.generation.slot / 2)


def alternatives(cluster: Cluster) -> list[Alternative]:
    """Return a cluster of several nodes under each network that NCCL may have used instead of its own.

    Those that change nothing are left out: without RDMA there is no GPUDirect to lose. Raises InvalidArgumentError for
    a cluster that NCCL's model does not know.
    """
    return [one for one in _all(cluster) if one.cluster != cluster]


def _all(cluster: Cluster) -> Iterator[Alternative]:
    machine = Machine.of(cluster)
    if cluster.channel != "tcp":
        yield from _without_rdma(cluster, machine)
    if machine.nics > 1:
        yield Alternative("one-rail", _on_one_nic(cluster, machine))
    left = min(1.0, machine.generation.slot / 2 * machine.nics / machine.network)
    yield Alternative("nic-pcie", cluster.replace(bandwidth_bps=cluster.bandwidth_bps * left))


def _without_rdma(cluster: Cluster, machine: Machine) -> Iterator[Alternative]:
    """Yield sockets of one interface in the place of all cards, and what slows messages between cards and GPUs."""
    sockets = with_channel(_on_one_nic(cluster, machine).replace(latency_s=0.0, efficiency=None), "tcp")
    yield Alternative("sockets" if cluster.nccl_plugin is None else "no-plugin", sockets)
    yield Alternative("gpudirect-off", cluster.replace(gpudirect=False))
    yield Alternative("acs", cluster.replace(bandwidth_bps=_ACS * cluster.bandwidth_bps))


def _on_one_nic(cluster: Cluster, machine: Machine) -> Cluster:
    if cluster.has_rails:
        return cluster.replace(fabric=None)
    return cluster.replace(bandwidth_bps=cluster.bandwidth_bps / machine.nics, nics_per_node=1)
