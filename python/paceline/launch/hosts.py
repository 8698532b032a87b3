"""Host lists, host files, and the assignment of ranks to hosts."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline._internal.documents import read_small
from paceline._internal.files import why_unread
from paceline.errors import InvalidArgumentError

MOST_RANKS = 4096
_NAME = re.compile(r"(?:[\w.\-]+@)?(?:[\w.\-]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\])", re.ASCII)
_LINE = re.compile(r"(?P<host>\S+?)(?::(?P<colon>[^:\]\s]*))?(?:\s+slots\s*=\s*(?P<slots>\S+))?", re.ASCII)


@dataclass(frozen=True)
class Host:
    """A host as the user names it (possibly `alice@node1`), and its number of slots."""

    name: str
    slots: int


@dataclass(frozen=True)
class Place:
    """A host with its `count` ranks from `first` on, possibly none."""

    host: Host
    first: int
    count: int
    servers: tuple[int, ...] = ()
    """Numbers of its parameter servers; the processes that act as switches have the last numbers."""

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return range(self.first, self.first + self.count)

    @property
    def processes(self) -> int:
        """Number of its ranks and servers."""
        return self.count + len(self.servers)


def parse_hosts(text: str, source: str = "--hosts") -> list[Host]:
    """Parse `a:2,b` (one slot if no number is given). Raises InvalidArgumentError that names `source`."""
    hosts: list[Host] = []
    for word in text.split(","):
        if not word.strip():
            raise InvalidArgumentError(f"{source}: '{text[:80]}' has an empty item", remedy="node1:2,node2:2")
        _add(hosts, word.strip(), source)
    return hosts


def read_hostfile(path: Path) -> list[Host]:
    """Read lines `host slots=2`, `host:2` or `host`; `#` starts a comment.

    Raises InvalidArgumentError with file and line.
    """
    try:
        lines = read_small(path).splitlines()
    except UnicodeDecodeError:
        remedy = f"iconv -t UTF-8 {path}"
        raise InvalidArgumentError(f"--hostfile {path}: is not UTF-8 text", remedy=remedy) from None
    except OSError as error:
        raise InvalidArgumentError(f"--hostfile {path}: {why_unread(error)}") from None
    hosts: list[Host] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            _add(hosts, text, f"{path}:{number}")
    if not hosts:
        raise InvalidArgumentError(f"--hostfile {path}: names no host", remedy="lines such as: node1 slots=2")
    return hosts


def _add(hosts: list[Host], text: str, where: str) -> None:
    match = _LINE.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(
            f"{where}: '{text[:80]}' is not a host", remedy="node1:2, or in a file node1 slots=2"
        )
    if match["colon"] is not None and match["slots"] is not None:
        raise InvalidArgumentError(
            f"{where}: '{text[:80]}' gives its number of slots twice", remedy="node1:2, or node1 slots=2"
        )
    name, slots = match["host"], match["colon"] if match["colon"] is not None else match["slots"]
    if name.startswith("-") or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{where}: '{name[:80]}' is not a host's name", remedy="node1:2 (an IPv6 address: [fd00::1]:2)"
        )
    if slots is not None and not (slots.isascii() and slots.isdigit() and len(slots) < 9 and int(slots) > 0):
        raise InvalidArgumentError(
            f"{where}: '{slots[:80]}' slots of host {name} are not a whole number above 0", remedy=f"{name}:2"
        )
    if any(host.name == name for host in hosts):
        raise InvalidArgumentError(
            f"{where}: host {name} is listed twice", remedy=f"{name}:4 (once, with all its slots)"
        )
    hosts.append(Host(name, int(slots) if slots else 1))


def place(hosts: list[Host], ranks: int | None) -> list[Place]:
    """Fill one host after another; use all slots without `ranks`. Hosts without a rank are left out.

    Raises InvalidArgumentError.
    """
    slots = sum(host.slots for host in hosts)
    wanted = slots if ranks is None else ranks
    if wanted > MOST_RANKS:
        raise InvalidArgumentError(
            f"{wanted} ranks are more than {MOST_RANKS}, the maximum of paceline run", remedy=f"-np {MOST_RANKS}"
        )
    if wanted > slots:
        raise InvalidArgumentError(
            f"-np {wanted}: the hosts have {slots} slot{'s' if slots != 1 else ''}",
            remedy=f"-np {slots}, or more slots: node1:{wanted}",
        )
    places: list[Place] = []
    first = 0
    for host in hosts:
        count = min(host.slots, wanted - first)
        if count > 0:
            places.append(Place(host, first, count))
            first += count
    return places


def spread(places: Sequence[Place], servers: int) -> list[Place]:
    """Return the places with this many servers, assigned in turn."""
    return [replace(place, servers=tuple(range(node, servers, len(places)))) for node, place in enumerate(places)]


def address_part(name: str) -> str:
    """Return the host without user name and brackets."""
    return name.rpartition("@")[2].strip("[]")


def is_this_machine(name: str) -> bool:
    """Return whether the name means this machine, as far as can be told without a name server."""
    if "@" in name:
        return False  # The remote shell starts another user's processes.
    own = socket.gethostname()
    return address_part(name) in {"localhost", "127.0.0.1", "::1", own, own.partition(".")[0]}
