"""By which address the ranks of other hosts reach the first host."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence

from paceline.interfaces import default_address, is_own, towards
from paceline.launch.host import AgentHost
from paceline.launch.hosts import address_part


def first_address(hosts: Sequence[AgentHost]) -> str | None:
    """What sshd says comes first: it knows the connection that works. Then the name, then the default route.

    None if there is no address but the loopback.
    """
    first = hosts[0]
    assert first.ready is not None
    if first.remote:
        default = str(first.ready["default"])
        found = _said(first, "server") or _resolved(address_part(first.name)) or default
        return None if _loopback(found) else found
    # The first host is this machine: the others know from where they were reached.
    others = [host for host in hosts if host.remote]
    seen = [address for host in others if (address := _said(host, "client")) and is_own(address)]
    routes = [address for host in others if (address := towards(address_part(host.name))) and not _loopback(address)]
    found = next(iter([*seen, *routes, default_address()]))
    return None if _loopback(found) else found


def _said(host: AgentHost, end: str) -> str | None:
    """An end of the host's SSH_CONNECTION; None if that is our own login, inherited."""
    assert host.ready is not None
    own = os.environ.get("SSH_CONNECTION", "").split()
    inherited = len(own) == 4 and (own[0], own[2]) == (host.ready["client"], host.ready["server"])
    address = host.ready[end]
    return None if inherited or address is None or _loopback(address) else str(address)


def _resolved(name: str) -> str | None:
    """The address that a name server gives, IPv4 before IPv6, if other hosts can use it."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return next((str(entry[4][0]) for entry in found if not _loopback(str(entry[4][0]))), None)


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True
