"""The hosts of a cluster: their names and addresses."""

from __future__ import annotations

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

_NETS = {"worker": "10.77.1", "server": "10.77.2", "switch": "10.77.3"}


@dataclass(frozen=True)
class Host:
    """A host of the cluster."""

    name: str
    """Such as worker0, server1, switch."""
    kind: str
    """worker, server or switch; the switch's NIC has no rate limit."""
    number: int
    """Index among the hosts of its kind."""
    address: str


def plan(workers: int, servers: int, *, switch: bool) -> tuple[Host, ...]:
    """Return all hosts, workers first. Raises InvalidArgumentError."""
    for what, number, least in (("workers", workers, 1), ("servers", servers, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MOST:
            raise InvalidArgumentError(f"{what}: {number!r:.20} is not a whole number between {least} and {MOST}")
    hosts = [_host("worker", number) for number in range(workers)]
    hosts += [_host("server", number) for number in range(servers)]
    return (*hosts, *([_host("switch", 0)] if switch else []))


def find(hosts: Sequence[Host], name: str) -> Host:
    """Return the host of this name. Raises InvalidArgumentError, which suggests a similar name."""
    for host in hosts:
        if host.name == name:
            return host
    near = nearest(name[:80], [host.name for host in hosts])
    hint = f"; did you mean {near}?" if near else f"; there are {hosts[0].name} to {hosts[-1].name}"
    raise InvalidArgumentError(f"there is no host '{name[:80]}' in this cluster{hint}")


def _host(kind: str, number: int) -> Host:
    name = kind if kind == "switch" else f"{kind}{number}"
    return Host(name, kind, number, f"{_NETS[kind]}.{number + 1}")
