"""A cluster with the network that NCCL falls back to, or that a fault leaves it: causes to try on a scenario."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline._core import Cluster, Sockets
from paceline.catalog.channels import with_channel
from paceline.catalog.nccl import Kind, constant
from paceline.forecast.nccl.model import CollectiveTime, Group, Machine, collective_time

FabricName = Literal["sockets", "no-plugin", "no-gpudirect", "acs", "one-nic", "half-pcie"]
_ACS = 0.5
"""Of the cards' rate, where their traffic with GPUs goes by the CPU: 9.84 of 22 GB/s (nccl-tests#112), 27 of 48
(nccl#949)."""


_HELPERS = Sockets(4, 1)
"""Of a connection: `ncclSocketGetNsockNthread` of NCCL's src/transport/net_socket.cc, by the PCI vendor 0x1ae0."""


@dataclass(frozen=True)
class Alternative:
    """A cluster whose NCCL uses another network, and how to recognize it."""

    name: FabricName
    cluster: Cluster
    cause: str
    """In words: `NCCL over sockets instead of RDMA`."""
    check: str
    """A command, or the line of NCCL_DEBUG=INFO, that shows it."""

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


def compared(kind: Kind, size: int, group: Group, cluster: Cluster) -> list[tuple[Alternative, CollectiveTime]]:
    """Return the time of a collective under each alternative, the slowest first; `size` is in bytes."""
    times = [
        (one, collective_time(kind, size, group, one.cluster, caller="nccl-tests")) for one in alternatives(cluster)
    ]
    return sorted(times, key=lambda it: -it[1].seconds)


def _all(cluster: Cluster) -> Iterator[Alternative]:
    machine = Machine.of(cluster)
    if cluster.channel != "tcp":
        yield from _without_rdma(cluster, machine)
    if machine.nics > 1:
        yield Alternative(
            "one-nic",
            _on_one_nic(cluster, machine),
            f"one network card of {machine.nics} is used",
            "NCCL_DEBUG=INFO: 'Using' lists one card after NET/IB or NET/OFI; NCCL_IB_HCA",
        )
    nic = machine.network / machine.nics
    left = min(1.0, machine.generation.slot / 2 / nic)
    yield Alternative(
        "half-pcie",
        cluster.replace(bandwidth_bps=cluster.bandwidth_bps * left),
        "network cards have half of their PCI Express lanes, or the generation before",
        "sudo lspci -vv: LnkSta below LnkCap at the network card",
    )


def _without_rdma(cluster: Cluster, machine: Machine) -> Iterator[Alternative]:
    sockets = _over_sockets(_on_one_nic(cluster, machine))
    if cluster.nccl_plugin is None:
        yield Alternative(
            "sockets",
            sockets,
            "NCCL over sockets of one network interface instead of RDMA",
            "NCCL_DEBUG=INFO: NET/Socket where NET/IB is expected",
        )
    else:
        yield Alternative(
            "no-plugin",
            sockets,
            f"NCCL has not loaded its plugin {cluster.nccl_plugin}: sockets of one network interface",
            "NCCL_DEBUG=INFO: NET/Socket where NET/OFI or the plugin's name is expected",
        )
    yield Alternative(
        "no-gpudirect",
        cluster.replace(gpudirect=False),
        "GPUDirect RDMA is off: messages pass through host memory",
        "NCCL_DEBUG=INFO: 'via NET/…' without /GDRDMA; lsmod | grep nvidia_peermem",
    )
    yield Alternative(
        "acs",
        cluster.replace(bandwidth_bps=_ACS * cluster.bandwidth_bps),
        "ACS is on: messages between network cards and GPUs go by the CPU",
        "sudo lspci -vvv | grep ACSCtl: SrcValid+",
    )


def _on_one_nic(cluster: Cluster, machine: Machine) -> Cluster:
    if cluster.has_rails:
        return cluster.replace(fabric=None)
    return cluster.replace(bandwidth_bps=cluster.bandwidth_bps / machine.nics, nics_per_node=1)


def _over_sockets(cluster: Cluster) -> Cluster:
    return with_channel(cluster.replace(latency_s=0.0, efficiency=None), "tcp")
