"""Maps a published network to the simulator: a node's link and channel become rates.

The link rate is not the flow rate: a library that opens one TCP connection to its neighbour gets the rate of a single
stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from paceline.studies.published.constants import constant
from paceline.studies.published.data import Row


class Channel(Enum):
    """The channel over which a node sends."""

    TCP = "TCP"
    RDMA = "RDMA"


# The path inside a node by GPU name: the constant of the first words that match.
_INSIDE = (
    (("k80", "k40", "m40"), "inside.pcie-shared"),
    (("h100", "h200", "gh200"), "inside.nvlink-h100"),
    (("a100", "a800"), "inside.nvlink-a100"),
    (("v100 pcie", "v100-pcie", "p100 pcie", "p100-pcie"), "inside.pcie"),
    (("v100",), "inside.nvlink-v100"),
    (("p100", "dgx-1"), "inside.nvlink-p100"),
)


@dataclass(frozen=True)
class Network:
    """The network of a row. `flow_bps`: the share of a node's link that the library reaches."""

    channel: Channel
    link_bps: float
    flow_bps: float
    latency_s: float
    inside_bps: float


def inside_bps(gpu: str) -> float:
    """Return a GPU's rate to the others in its node, in each direction, in bits per second."""
    return constant(_inside(gpu) or "inside.pcie")


def shares_pci_express(gpu: str) -> bool:
    """Return whether the GPUs of a node share a PCI Express tree and boards."""
    return _inside(gpu) == "inside.pcie-shared"


def knows_inside(gpu: str) -> bool:
    """Return whether the GPU's name determines the path inside its node."""
    return _inside(gpu) is not None


def _inside(gpu: str) -> str | None:
    words = gpu.lower()
    return next((name for names, name in _INSIDE if any(word in words for word in names)), None)


def network_of(row: Row, channel: Channel, *, streams: int) -> Network:
    """Return a channel. `streams`: a node's connections; one reaches a single stream's rate, several the link's rate.

    For rows without a link, that is, on one node.
    """
    inside = inside_bps(row.gpu)
    link = row.link_bps or inside
    if channel is Channel.RDMA:
        share = constant("rdma.share.roce" if link <= constant("rdma.roce-to") else "rdma.share")
        return Network(channel, link, link * share, constant("rdma.latency"), inside)
    if "p3dn" in row.gpu.lower():
        # NCCL opens several connections there, with jumbo frames.
        return Network(channel, link, link * constant("tcp.share.jumbo"), constant("tcp.latency"), inside)
    flow = link * constant("tcp.share")
    if streams == 1:
        flow = min(flow, _stream_bps(link))
    return Network(channel, link, flow, constant("tcp.latency"), inside)


def _stream_bps(link: float) -> float:
    """Return the rate of a single TCP stream, interpolated between measurements at 25 and 100 Gbit/s."""
    slow, fast = constant("tcp.slow-to"), 100e9
    share = min(1.0, max(0.0, (link - slow) / (fast - slow)))
    return constant("tcp.stream") + share * (constant("tcp.stream.100g") - constant("tcp.stream"))


_SAY_RDMA = ("rdma", "verbs", "gdr", "infiniband", "roce", "ddl")
_SAY_TCP = ("tcp", "grpc", "gloo")


def names_channel(row: Row) -> bool:
    """Return whether `sync` or `system` names the channel."""
    words = f"{row.sync} {row.system}".lower()
    return any(word in words for word in (*_SAY_RDMA, *_SAY_TCP))


def channel_of(row: Row) -> Channel:
    """Return the channel that `sync` or `system` names; by default TCP up to 25 Gbit/s and RDMA above."""
    words = f"{row.sync} {row.system}".lower()
    if any(word in words for word in _SAY_RDMA):
        return Channel.RDMA
    if any(word in words for word in _SAY_TCP):
        return Channel.TCP
    return Channel.RDMA if (row.link_bps or 0) > constant("tcp.slow-to") else Channel.TCP
