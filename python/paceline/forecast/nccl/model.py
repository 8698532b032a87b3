"""The time of an NCCL collective, from the crate `nccl`: NCCL's choice, and constants calibrated on measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from paceline import _core
from paceline._core import Cluster
from paceline._core import NcclEstimate as Estimate
from paceline._core import NcclGroup as Group
from paceline._core import NcclMachine as Machine
from paceline._core import NcclTime as CollectiveTime
from paceline.catalog.builtin import load_cluster
from paceline.catalog.nccl import Algorithm, Kind, Protocol, assumed_values

__all__ = ["Caller", "CollectiveTime", "Estimate", "Group", "Machine", "bus_factor", "collective_time", "estimates"]

Caller = Literal["stream", "nccl-tests", "torch"]
"""How a collective is started: queued behind other work, so that its start costs nothing; in a loop by nccl-tests; or
by a call of torch.distributed that is timed alone."""


def bus_factor(kind: Kind, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth (nccl-tests doc/PERFORMANCE.md)."""
    return _core.nccl_bus_factor(kind, ranks)


def collective_time(
    kind: Kind,
    size: int,
    group: Group,
    cluster: Machine | Cluster | str | Path,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    caller: Caller = "stream",
) -> CollectiveTime:
    """Return the time of a collective with the algorithm and the protocol that NCCL uses.

    Args:
        kind: `allreduce`, `allgather`, `reducescatter`, `broadcast` or `reduce`.
        size: Bytes of the whole buffer; for all-gather and reduce-scatter that of all shards together.
        group: The ranks and how they are spread over the nodes.
        cluster: A cluster, its name or file, or a `Machine`, which saves reading it again.
        algorithm: Instead of NCCL's choice, as NCCL_ALGO sets it.
        protocol: Instead of NCCL's choice, as NCCL_PROTO sets it.
        caller: What starts it.

    Raises:
        InvalidArgumentError: A value is unknown, the group does not fit, or NCCL has no such combination.

    Example:
        >>> found = collective_time("allgather", 1 << 30, Group(64, 8), "dgx-h100")
        >>> found.algorithm, found.protocol
        ('ring', 'Simple')
    """
    on = cluster if isinstance(cluster, Machine) else load_cluster(cluster)
    return _core.nccl_time(
        kind, size, group, on, algorithm=algorithm, protocol=protocol, caller=caller, assumed=assumed_values()
    )


def estimates(kind: Kind, size: int, group: Group, machine: Machine) -> list[Estimate]:
    """Return the estimates with which NCCL itself chooses for a buffer of this many bytes, fastest first."""
    return _core.nccl_estimates(kind, size, group, machine)
