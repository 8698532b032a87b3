"""The hosts of a cluster: their names and addresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError

NETWORK = "10.77.0.0/16"
PREFIX = 16
CARD = "eth0"
"""Name of every host's NIC."""
REALTIME = 10
"""Priority of ranks under SCHED_FIFO; the processes that start and stop them get one more."""
MOST = 250
"""Most workers, and most servers: the last part of an address."""
MOST_OVERSUBSCRIPTION = 1000

_NETS = {"worker": "10.77.1", "server": "10.77.2", "switch": "10.77.3"}


@dataclass(frozen=True)
class Host:
    """A host of the cluster."""

    name: str
    """Such as worker0, server1, switch; the switch of rack 0 is switch0."""
    kind: str
    """worker, server or switch; the switch's NIC has no rate limit."""
    number: int
    """Index among the hosts of its kind."""
    address: str
    rack: int | None = None
    """The rack it stands in; None without racks, and for what connects them."""


@dataclass(frozen=True)
class Racks:
    """Hosts in racks, each behind an uplink."""

    count: int
    hosts_per_rack: int
    """Workers first, then servers, as in a cluster file; the last rack may have fewer."""
    oversubscription: float

    @property
    def uplink(self) -> float:
        """Rate of a rack's uplink, in rates of a NIC."""
        return self.hosts_per_rack / self.oversubscription


def _check_counts(workers: int, servers: int) -> None:
    for what, number, least in (("workers", workers, 1), ("servers", servers, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MOST:
            raise InvalidArgumentError(f"{what}: must be {least}-{MOST}, not {number!r:.20}", remedy=f"{what}={least}")


def racks(workers: int, count: int, oversubscription: float = 1.0) -> Racks | None:
    """Return the racks of this many workers; None for a single one. Raises InvalidArgumentError."""
    _check_counts(workers, 0)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= workers:
        raise InvalidArgumentError(f"racks: must be 1-{workers}, the workers, not {count!r:.20}", remedy="racks=1")
    if not (math.isfinite(oversubscription) and 1 <= oversubscription <= MOST_OVERSUBSCRIPTION):
        raise InvalidArgumentError(
            f"oversubscription: must be 1-{MOST_OVERSUBSCRIPTION}, not {oversubscription:g}",
            remedy="{oversubscription=2} (a rack's uplink is half as fast as its hosts together)",
        )
    if count == 1:
        if oversubscription != 1:
            raise InvalidArgumentError(
                "oversubscription: needs several racks", remedy="{racks=2}, or drop {oversubscription}"
            )
        return None
    each = -(-workers // count)
    if -(-workers // each) < count:
        raise InvalidArgumentError(
            f"racks: {workers} workers, {each} in a rack, fill {-(-workers // each)} racks",
            remedy=f"{{racks={-(-workers // each)}}}",
        )
    return Racks(count, each, oversubscription)


def plan(workers: int, servers: int, *, switch: bool, racks: Racks | None = None) -> tuple[Host, ...]:
    """Return all hosts, workers first. With racks, each has a switch of its own. Raises InvalidArgumentError."""
    _check_counts(workers, servers)

    def rack(node: int) -> int | None:
        return None if racks is None else node // racks.hosts_per_rack

    hosts = [_host("worker", number, rack(number)) for number in range(workers)]
    hosts += [_host("server", number, rack(workers + number)) for number in range(servers)]
    if switch and racks is not None:
        hosts += [Host(f"switch{r}", "switch", 1 + r, f"{_NETS['switch']}.{r + 2}", r) for r in range(racks.count)]
    return (*hosts, *([_host("switch", 0)] if switch else []))


def find(hosts: Sequence[Host], name: str) -> Host:
    """Return the host of this name. Raises InvalidArgumentError, which suggests a similar name."""
    for host in hosts:
        if host.name == name:
            return host
    near = nearest(name[:80], [host.name for host in hosts])
    hint = near or f"{hosts[0].name} to {hosts[-1].name}"
    raise InvalidArgumentError(f"there is no host '{name[:80]}' in this cluster", remedy=hint)


def _host(kind: str, number: int, rack: int | None = None) -> Host:
    name = kind if kind == "switch" else f"{kind}{number}"
    return Host(name, kind, number, f"{_NETS[kind]}.{number + 1}", rack)
