"""Rates of libraries on a link over TCP and RDMA, and the paths inside a node, from channels.json."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Literal

from paceline import _core
from paceline._core import Cluster
from paceline.catalog.constants import Constant, checked_constants, read_document, value_of

_FILE = Path(__file__).parent / "channels.json"
Channel = Literal["none", "tcp", "rdma"]
_SHARE, _RATE, _LOG = "share of the link", "bit/s", "standard deviation of the logarithm"
_UNITS = {
    "tcp.latency": "s",
    "tcp.message": "s per message",
    "tcp.share": _SHARE,
    "tcp.stream": _RATE,
    "tcp.stream.at": _RATE,
    "tcp.stream.100g": _RATE,
    "tcp.jitter": _LOG,
    "rdma.latency": "s",
    "rdma.message": "s per message",
    "rdma.share": _SHARE,
    "rdma.share.roce": _SHARE,
    "rdma.roce-to": _RATE,
    "rdma.jitter": _LOG,
    "auto.tcp-to": _RATE,
    "inside.pcie": _RATE,
    "inside.pcie-4": _RATE,
    "inside.pcie-5": _RATE,
    "inside.pcie-4-x8": _RATE,
    "inside.pcie-shared": _RATE,
    "inside.nvlink-p100": _RATE,
    "inside.nvlink-v100": _RATE,
    "inside.nvlink-a100": _RATE,
    "inside.nvlink-h100": _RATE,
    "inside.nvlink-b200": _RATE,
    "inside.nvlink-one": _RATE,
    "inside.xgmi-mi250x": _RATE,
    "inside.xgmi-mi300x": _RATE,
    "inside.xgmi-mi355x": _RATE,
    "inside.qpi": _RATE,
    "inside.object-store": _RATE,
    "contention.pcie-shared": "share of the computation",
}


@lru_cache(maxsize=1)
def all_constants() -> dict[str, Constant]:
    """Return the constants by name, in the order of the file."""
    document = read_document(_FILE, "channels")
    return checked_constants(document.get("constants"), _FILE.name, _UNITS)


def constant(name: str) -> float:
    """Return a constant of the file: seconds, bits per second, or a share."""
    return value_of(all_constants()[name])


def native() -> _core.Channels:
    """Return in the form of the native module what messages get of links."""
    return _core.Channels(
        tcp_share=constant("tcp.share"),
        rdma_share=constant("rdma.share"),
        rdma_share_roce=constant("rdma.share.roce"),
        rdma_roce_to_bps=constant("rdma.roce-to"),
        tcp_stream_bps=constant("tcp.stream"),
        tcp_stream_at_bps=constant("tcp.stream.at"),
        tcp_stream_100g_bps=constant("tcp.stream.100g"),
        tcp_jitter=constant("tcp.jitter"),
        rdma_jitter=constant("rdma.jitter"),
        rdma_latency_s=constant("rdma.latency"),
    )


def auto(link_bps: float) -> Channel:
    """Return the usual channel of links of this rate."""
    return "tcp" if link_bps <= constant("auto.tcp-to") else "rdma"


def inside() -> list[str]:
    """Return the paths between the GPUs of a node: `nvlink-v100`, `pcie-4`, …."""
    return [name.removeprefix("inside.") for name in all_constants() if name.startswith("inside.")]


def with_channel(
    cluster: Cluster,
    channel: str | None = None,
    *,
    bare: bool = False,
    given: Collection[str] = (),
) -> Cluster:
    """Return the cluster with its channel decided, and with the latency and cost per message that it does not give.

    Args:
        cluster: The cluster.
        channel: The channel instead of the cluster's; `auto` decides by the link's rate.
        bare: For the bare schedule (`--library none`): `auto` is none, and messages cost nothing by themselves.
        given: Fields that count even if they are 0, which a `Cluster` also has if nobody gave them.
    """
    own = cluster.channel
    wanted = channel or own
    if wanted == "auto":
        wanted = "none" if bare and channel is None else auto(cluster.bandwidth_bps)
    if wanted == own == "none":
        return cluster
    of_another = channel is not None and own not in ("auto", "none", wanted)
    changed = cluster.replace(channel=wanted)
    if of_another:
        changed = changed.replace(latency_s=0.0, message_overhead_s=0.0, efficiency=None, stream_bandwidth_bps=None)
    if wanted == "none":
        return changed
    is_given = {name: name in given and not of_another for name in ("latency", "message_overhead")}
    if changed.latency_s == 0 and not is_given["latency"]:
        changed = changed.replace(latency_s=constant(f"{wanted}.latency"))
    if changed.message_overhead_s == 0 and not is_given["message_overhead"] and not bare:
        changed = changed.replace(message_overhead_s=constant(f"{wanted}.message"))
    return changed
