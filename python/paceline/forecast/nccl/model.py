"""The time of an NCCL collective: NCCL's choice, and constants calibrated on measurements.

On one node NCCL chooses as its own model says. Between nodes its model of trees and of the protocols LL and LL128 is
two to three times too fast; there, what is fastest by calibrated times is taken: trees with LL for small buffers, rings
with Simple for large ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from paceline._core import Cluster
from paceline._internal import units
from paceline._internal.nearest import nearest
from paceline.catalog.library import load_cluster
from paceline.catalog.nccl import ALGORITHMS, KINDS, PROTOCOLS, Algorithm, Kind, Protocol, constant
from paceline.errors import InvalidArgumentError
from paceline.forecast.nccl import tuning
from paceline.forecast.nccl.machine import Group, Machine, behind_slow_links

Caller = Literal["stream", "nccl-tests", "torch"]
"""How a collective is started: queued behind other work, so that its start costs nothing; in a loop by nccl-tests; or
by a call of torch.distributed that is timed alone."""
# What LL and LL128 get of a link's rate (tuning.cc); their flags take the rest.
_PROTOCOL_SHARE = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
# What trees and PAT get of it (tuning.cc).
_TREE, _TREE_LL, _PAT = 0.92, 1 / 3.8, 0.75


@dataclass(frozen=True)
class CollectiveTime:
    """A collective and its forecast time."""

    kind: Kind
    size: int
    """Bytes, as nccl-tests counts them: of the whole buffer, which for all-gather and reduce-scatter holds a shard of
    every rank."""
    group: Group
    seconds: float
    algorithm: Algorithm | Literal["none"]
    """`none`: a group of one rank sends nothing."""
    protocol: Protocol
    machine: Machine

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the buffer per second."""
        return self.size / self.seconds if self.seconds > 0 else 0.0

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that pass each rank's link, as nccl-tests defines it."""
        return self.algorithm_bandwidth * bus_factor(self.kind, self.group.ranks)

    @property
    def tuning(self) -> tuning.Estimate | None:
        """What NCCL's own model would choose; None for one rank."""
        if self.group.ranks < 2:
            return None
        return tuning.estimates(self.kind, self.size, self.group, self.machine)[0]


def bus_factor(kind: Kind, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth (nccl-tests doc/PERFORMANCE.md)."""
    if kind in ("broadcast", "reduce"):
        return 1.0
    return (2.0 if kind == "allreduce" else 1.0) * (ranks - 1) / ranks


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
    for name, value, known in (
        ("kind", kind, KINDS),
        ("algorithm", algorithm, (None, *ALGORITHMS)),
        ("protocol", protocol, (None, *PROTOCOLS)),
        ("caller", caller, get_args(Caller)),
    ):
        if value not in known:
            raise _unknown(name, value, [it for it in known if it is not None])
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidArgumentError(f"size: {units.shown(size, repr)} is not a whole number of bytes")
    machine = cluster if isinstance(cluster, Machine) else _machine_of(load_cluster(cluster), group)
    machine.check(group)
    start = _start_s(caller, machine)
    if group.ranks == 1:
        return CollectiveTime(kind, size, group, start, "none", "Simple", machine)
    choices = [
        it for it in tuning.available(kind, group, machine) if algorithm in (None, it[0]) and protocol in (None, it[1])
    ]
    if not choices:
        raise _no_such(kind, group, machine, algorithm, protocol)
    if group.nodes == 1:
        found = _on_one_node(kind, size, group, machine, choices)
    else:
        found = _between_nodes(kind, size, group, machine, choices, forced=algorithm is not None)
    seconds, (chosen, by) = found
    return CollectiveTime(kind, size, group, start + seconds, chosen, by, machine)


def _machine_of(cluster: Cluster, group: Group) -> Machine:
    world = group.ranks * group.concurrent
    return behind_slow_links(Machine.of(cluster), cluster, group.ranks, group.concurrent, world)


Choice = tuple[Algorithm, Protocol]


def _on_one_node(kind: Kind, size: int, group: Group, machine: Machine, choices: list[Choice]) -> tuple[float, Choice]:
    ordered = tuning.estimates(kind, size, group, machine)
    best = next(it for it in ordered if (it.algorithm, it.protocol) in choices)
    algorithm, protocol = best.algorithm, best.protocol
    seconds = tuning.latency_s(kind, group, machine, (algorithm, protocol))
    seconds += size / _rate_inside(kind, size, group, machine, (algorithm, protocol))
    if protocol == "Simple":
        seconds += constant("fill") * size / (size + constant("fill.half"))
    return seconds, (algorithm, protocol)


def _rate_inside(kind: Kind, size: int, group: Group, machine: Machine, choice: Choice) -> float:
    """Return bytes of the buffer per second on one node."""
    algorithm, protocol = choice
    ranks, name = group.ranks, machine.generation.name
    if algorithm == "nvls":
        # The switches read S - S/n of every GPU and write S/n (all-reduce: both), each way of its link.
        passed = (ranks + 1) / ranks if kind == "allreduce" else (ranks - 1) / ranks
        return machine.link * constant(f"nvls.share.{name}") / passed
    bus = _ring_bus(machine)
    if algorithm == "tree":
        share = {"LL": _TREE_LL, "LL128": 7 / 9, "Simple": 1.0}[protocol]
        return bus * _TREE * share * 0.5 * tuning.tree_share(algorithm, protocol, size, machine)
    return bus * _PROTOCOL_SHARE[protocol] * tuning.ring_ratio(kind, ranks)


def _ring_bus(machine: Machine) -> float:
    """Return the bus bandwidth of rings inside a node."""
    is_pci = machine.intra_link == "pcie"
    return machine.link * constant("pci.share" if is_pci else f"ring.share.{machine.generation.name}")


def _between_nodes(
    kind: Kind, size: int, group: Group, machine: Machine, choices: list[Choice], *, forced: bool
) -> tuple[float, Choice]:
    found: list[tuple[float, Choice]] = []
    estimates = tuning.estimates(kind, size, group, machine)
    share = constant("network.share") if machine.nic_share is None else machine.nic_share
    network = machine.network_of(group) * share
    bus = network if group.per_node_used == 1 else min(network, _ring_bus(machine))
    for algorithm, protocol in choices:
        # Rings hide NVLSTree: it is slower for large buffers, and nobody has published its times for small ones.
        if algorithm == "nvls-tree" and not forced:
            continue
        if protocol != "Simple":
            own = next(it for it in estimates if (it.algorithm, it.protocol) == (algorithm, protocol))
            found.append((own.seconds * constant("ll.slowdown"), (algorithm, protocol)))
            continue
        factor = constant("hop.factor") if algorithm == "ring" else 1.0
        latency = tuning.latency_s(kind, group, machine, (algorithm, protocol), factor)
        if algorithm == "ring":
            rate = bus * tuning.ring_ratio(kind, group.ranks)
        elif algorithm == "tree":
            latency *= constant("tree.slowdown")
            rate = bus * _TREE * 0.5 * tuning.tree_share(algorithm, protocol, size, machine)
        elif algorithm == "nvls-tree":
            rate = machine.network_of(group) * constant("nvls-tree.share") * tuning.ring_ratio(kind, group.ranks)
        else:
            rate = bus * _PAT
        found.append((latency + size / rate, (algorithm, protocol)))
    return min(found)


def _start_s(caller: Caller, machine: Machine) -> float:
    if caller == "stream":
        return 0.0
    newest = caller == "torch" and machine.generation.name == "blackwell"
    return constant("call.torch.blackwell" if newest else f"call.{caller}")


def _unknown(name: str, value: object, known: list[str]) -> InvalidArgumentError:
    text = units.shown(value)
    near = nearest(text, known)
    hint = f"did you mean '{near}'?" if near else f"there are {', '.join(known)}"
    return InvalidArgumentError(f"{name}: unknown {name} '{text}'; {hint}")


def _no_such(
    kind: Kind, group: Group, machine: Machine, algorithm: Algorithm | None, protocol: Protocol | None
) -> InvalidArgumentError:
    every = list(tuning.available(kind, group, machine))
    words = " with ".join(it for it in (algorithm, protocol) if it is not None)
    there = ", ".join(dict.fromkeys(it for it, _ in every))
    return InvalidArgumentError(
        f"{'algorithm' if algorithm else 'protocol'}: NCCL has no {words} for {kind} over "
        f"{units.count(group.nodes, 'node')} of {machine.name}; there are {there}, LL and LL128 for rings and trees"
    )
