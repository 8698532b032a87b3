"""Hosts, addresses and ports of an engine's ranks and servers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from paceline._internal.netif import endpoint
from paceline._internal.ports import free_ports

from paceline_lab.bench.host_group import HostGroup

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Slot:
    """The place of a rank, with two ports that were free just now, or of a server, with one."""

    number: int
    host: int
    local: int
    """Its number on its host."""
    local_size: int
    address: str
    ports: tuple[int, ...]

    @property
    def endpoint(self) -> str:
        """Address and port to listen on."""
        return endpoint(self.address, self.ports[0])


@dataclass(frozen=True)
class Places:
    """All slots of a run, and which host this is."""

    host: int
    ranks: tuple[Slot, ...]
    servers: tuple[Slot, ...]
    """Server k is on the host of rank k modulo the number of ranks."""
    hosts: int
    run: str
    """Identifies this run."""
    interface: str
    """This host's interface, in the form of PACELINE_INTERFACE."""

    @property
    def own(self) -> list[Slot]:
        """The ranks of this host."""
        return [slot for slot in self.ranks if slot.host == self.host]

    @property
    def own_servers(self) -> list[Slot]:
        """The servers of this host."""
        return [slot for slot in self.servers if slot.host == self.host]

    @property
    def loopback(self) -> bool:
        """Whether all ranks are on one host."""
        return self.hosts == 1


def arrange(group: HostGroup, workers: int, servers: int, address: str) -> Places:
    """Distribute ranks evenly over the hosts, the same on all hosts. `address` is this host's own."""
    hosts = min(group.hosts, workers)
    each = [workers // hosts + (host < workers % hosts) for host in range(hosts)]
    host_of = [host for host, count in enumerate(each) for _ in range(count)]
    server_hosts = [host_of[server % workers] for server in range(servers)]
    here = group.host
    ports = free_ports(address, 2 * host_of.count(here) + server_hosts.count(here))
    gathered: list[dict[str, Any]] = group.gather({"address": address, "ports": ports, "run": secrets.token_hex(8)})
    left = [list(one["ports"]) for one in gathered]
    ranks, seen = [], [0] * hosts
    for number, host in enumerate(host_of):
        two = left[host].pop(), left[host].pop()
        ranks.append(Slot(number, host, seen[host], each[host], gathered[host]["address"], two))
        seen[host] += 1
    serving = [
        Slot(number, host, 0, 0, gathered[host]["address"], (left[host].pop(),))
        for number, host in enumerate(server_hosts)
    ]
    return Places(here, tuple(ranks), tuple(serving), hosts, gathered[0]["run"], address)


def job_of(places: Places) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job and its rendezvous in the form of `launch.variables`."""
    first = places.ranks[0]
    job = {
        "inherited": {},
        "settings": {},
        "named": {},
        "count": sum(slot.host == places.host for slot in places.ranks),
        "first": places.own[0].number if places.own else 0,
        "size": len(places.ranks),
        "node": places.host,
        "nodes": places.hosts,
        "id": places.run,
        "all_servers": 0,
        "switches": 0,
        "nodes_per_rack": None,
    }
    go = {
        "address": first.address,
        "master_port": first.ports[0],
        "rendezvous": endpoint(first.address, first.ports[1]),
        "interface": places.interface,
    }
    return job, go
