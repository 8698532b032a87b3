"""The namespaces of a cluster, its bridge and its NICs; used in the holder, which does nothing else.

Nothing is visible by name outside: a namespace lives as long as a descriptor or a process in it, and the kernel removes
it with its links. The holder leaves the machine's own network before it makes anything.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paceline_lab.emulate import enter
from paceline_lab.emulate.errors import CannotEmulateError, ClusterError
from paceline_lab.emulate.plan import CARD, NETWORK, PREFIX, Host
from paceline_lab.emulate.shaping import ETHERNET, LIMIT_BYTES, MTU, Shape

_BRIDGE = "bridge"
_GROUPS = "224.0.0.0/4"
# Hundredths of a second. The bridge floods multicast until its querier has waited this long without hearing another
# one.
_QUERY_RESPONSE = 20
_TCP = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",
    "tcp_rmem": "4096 131072 4194304",
    "tcp_wmem": "4096 16384 4194304",
}
# Errors of a kernel that lacks a module, or forbids settings.
_LACKING = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EAFNOSUPPORT)
# Files that may forbid user namespaces, and the value that does.
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)


@dataclass(frozen=True)
class Namespace:
    """The network and host name of a host."""

    net: int
    """A descriptor."""
    uts: int


def isolate() -> bool:
    """Leave the machine's network for an empty one; return whether that took a user namespace.

    Raises CannotEmulateError.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        enter.unshare(enter.NEW_NET | enter.NEW_UTS)
        return False
    except OSError as error:
        if error.errno != errno.EPERM:
            raise CannotEmulateError(f"cannot create network namespaces: {error.strerror}") from None
    try:
        enter.unshare(enter.NEW_USER | enter.NEW_NET | enter.NEW_UTS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        raise CannotEmulateError(_forbidden(error)) from None
    return True


def _forbidden(error: OSError) -> str:
    why = ""
    for path, value in _SWITCHES:
        try:
            if Path(path).read_text(encoding="ascii").strip() == value:
                why = f" ({path} is {value})"
        except OSError:
            continue
    return (
        "an emulated cluster needs root, or user namespaces, and this system permits neither: "
        f"{error.strerror}{why}; a container needs CAP_SYS_ADMIN"
    )


class Network:
    """The bridge, in this process's namespace, and all hosts. Raises CannotEmulateError, ClusterError."""

    def __init__(self, racks: int = 0) -> None:
        """Make the bridge; with racks, one for each of them behind it."""
        from pyroute2 import IPRoute  # slow to import

        self._connect = IPRoute
        self._own = _here()
        self._cards: dict[str, tuple[Namespace, int, int]] = {}
        self._addresses: list[str] = []
        self.namespaces: dict[str, Namespace] = {}
        self._links = IPRoute()
        with _explained("the bridge"):
            _write_settings({})
            self._links.link("set", index=1, state="up")
            self._bridge = self._make_bridge(_BRIDGE)
            self._racks = [self._make_bridge(f"rack{rack}") for rack in range(racks)]
            self._uplinks = [self._make_uplink(rack) for rack in range(racks)]
        self._quiet_at = time.monotonic() + _QUERY_RESPONSE / 100

    def _make_bridge(self, name: str) -> int:
        self._links.link("add", ifname=name, kind="bridge", mtu=MTU, br_stp_state=0, br_forward_delay=0)
        index = _index(self._links, name)
        # The kernel reads the interval when the querier is switched on.
        intervals = {
            "br_mcast_query_response_intvl": _QUERY_RESPONSE,
            "br_mcast_startup_query_intvl": _QUERY_RESPONSE,
            "br_mcast_last_member_intvl": _QUERY_RESPONSE,
        }
        self._links.link("set", index=index, kind="bridge", br_mcast_snooping=1, **intervals)
        self._links.link("set", index=index, state="up")
        self._links.link("set", index=index, kind="bridge", br_mcast_querier=1)
        return index

    def _make_uplink(self, rack: int) -> tuple[int, int]:
        """Connect a rack's bridge with the one between the racks; return the two ends."""
        up, down = f"up{rack}", f"down{rack}"
        self._links.link("add", ifname=up, kind="veth", mtu=MTU, peer={"ifname": down, "mtu": MTU})
        ends = _index(self._links, up), _index(self._links, down)
        for end, bridge in zip(ends, (self._racks[rack], self._bridge), strict=True):
            self._links.link("set", index=end, master=bridge, state="up")
        return ends

    def add(self, host: Host, *, shaped: bool) -> None:
        """Add a host with its NIC, which gets its rate from `reshape` once all hosts exist."""
        with _explained(host.name):
            enter.unshare(enter.NEW_NET | enter.NEW_UTS)
            socket.sethostname(host.name)
            self.namespaces[host.name] = namespace = _here()
            try:
                _write_settings(_TCP)
                with self._connect() as links:
                    card = self._make_card(links, host)
            finally:
                _enter(self._own)
            port = _index(self._links, host.name)
            bridge = self._bridge if host.rack is None else self._racks[host.rack]
            self._links.link("set", index=port, master=bridge, state="up")
        self._addresses.append(host.address)
        if shaped:
            self._cards[host.name] = (namespace, card, port)

    def _make_card(self, links: Any, host: Host) -> int:  # noqa: ANN401 - pyroute2 has no types
        links.link("set", index=1, state="up")
        peer = {"ifname": host.name, "mtu": MTU, "net_ns_fd": self._own.net}
        links.link("add", ifname=CARD, kind="veth", mtu=MTU, peer=peer)
        card = _index(links, CARD)
        network = NETWORK.partition("/")[0]
        assert host.address.startswith(network.rsplit(".", 2)[0])
        links.addr("add", index=card, address=host.address, prefixlen=PREFIX)
        links.link("set", index=card, state="up")
        links.route("add", dst=_GROUPS, oif=card)
        return card

    def reshape(self, shape: Shape, uplink: Shape | None = None) -> None:
        """Set the rate of all rate-limited NICs and of the racks' uplinks, for connections made from now on."""
        for name in self._cards:
            self._shape(name, shape)
        for rack, ends in enumerate(self._uplinks):
            with _explained(f"the uplink of rack {rack}"):
                for end in ends:
                    fill_port(self._links, end, uplink or shape)

    def _shape(self, name: str, shape: Shape) -> None:
        namespace, card, port = self._cards[name]
        with _explained(f"the NIC of {name}"):
            _enter(namespace)
            try:
                with self._connect() as links:
                    fill_card(links, card, shape, self._addresses)
            finally:
                _enter(self._own)
            fill_port(self._links, port, shape)

    def shut(self) -> dict[int, str]:
        """Admit no more processes; return the networks' inode numbers, which are valid while this process lives."""
        networks: dict[int, str] = {}
        nothing = os.open(os.devnull, os.O_RDONLY)
        for name, namespace in self.namespaces.items():
            networks[os.fstat(namespace.net).st_ino] = name
            os.dup(namespace.net)
            os.dup2(nothing, namespace.net)
        return networks

    def settle(self) -> None:
        """Wait until the bridge sends multicast only to members: a fifth of a second after its creation."""
        time.sleep(max(0.0, self._quiet_at - time.monotonic()))


def _index(links: Any, name: str) -> int:  # noqa: ANN401
    (link,) = links.link("get", ifname=name)
    return int(link["index"])


def _here() -> Namespace:
    """Return descriptors of this thread's namespaces."""
    net, uts = (os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts"))
    return Namespace(net, uts)


def _enter(namespace: Namespace) -> None:
    enter.setns(namespace.net)
    enter.setns(namespace.uts)


def _write_settings(ipv4: dict[str, str]) -> None:
    """Set up this thread's namespace. IPv6 is off, so that only measured traffic uses the NICs."""
    for which in ("all", "default"):
        path = Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6")
        if path.exists():
            path.write_text("1")
    for name, value in ipv4.items():
        Path(f"/proc/sys/net/ipv4/{name}").write_text(value)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Add the subject to errors of the kernel."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise _error(error.errno)(f"{what} cannot be made: {error.strerror or error}{where}") from None
    except Exception as error:
        if type(error).__name__ != "NetlinkError":
            raise
        hint = "does the kernel have veth, bridge, sch_tbf, sch_htb and cls_u32?"
        raise _error(getattr(error, "code", None))(f"{what} cannot be made: {error}; {hint}") from None


def _error(number: int | None) -> type[click.ClickException]:
    return CannotEmulateError if number in _LACKING else ClusterError


def build(hosts: Sequence[Host], shape: Shape, uplink: Shape | None = None) -> Network:
    """Build the network of a cluster."""
    network = Network(racks=len({host.rack for host in hosts} - {None}))
    for host in hosts:
        network.add(host, shaped=host.kind != "switch")
    network.reshape(shape, uplink)
    network.settle()
    return network


# Queues of a NIC: round-robin over the receivers at the host's end, first come, first served at the bridge's.


MOST_TURNS = 64
"""With more hosts a NIC has a single queue, because classifying packets takes too long."""

_ROOT, _CARD, _OTHERS, _FIRST = 0x10000, 0x10001, 0x10FFF, 0x10010
_IPV4 = 0x0800
_PACKETS = 10_000
"""Segments per queue; more would not fit in LIMIT_BYTES."""


def fill_port(links: Any, index: int, shape: Shape) -> None:  # noqa: ANN401 - pyroute2 has no types
    """Shape the bridge's end: a token bucket."""
    links.link("set", index=index, gso_max_size=shape.segment)
    links.tc("replace", "tbf", index, "1:", rate=shape.rate, burst=shape.burst, limit=LIMIT_BYTES)


def fill_card(links: Any, index: int, shape: Shape, addresses: Sequence[str]) -> None:  # noqa: ANN401
    """Shape the host's end: a token bucket, behind it a queue for each of these receivers, and one for the rest."""
    if len(addresses) > MOST_TURNS:
        fill_port(links, index, shape)
        return
    from pyroute2.netlink.exceptions import NetlinkError  # slow to import
    from pyroute2.netlink.rtnl import TC_H_ROOT

    links.link("set", index=index, gso_max_size=shape.segment, txqlen=_PACKETS)
    with suppress(NetlinkError):  # there is none yet
        links.tc("del", index=index, parent=TC_H_ROOT)
    turn = max(shape.segment, MTU + ETHERNET)
    all_of_it = {"ceil": shape.rate, "cburst": shape.burst, "quantum": turn, "mtu": shape.segment + MTU}
    share = shape.rate // (len(addresses) + 1)
    queue = {"parent": _CARD, "rate": share, "burst": shape.segment, **all_of_it}
    links.tc("add", "htb", index, _ROOT, default=_OTHERS & 0xFFFF)
    links.tc("add-class", "htb", index, _CARD, parent=_ROOT, rate=shape.rate, burst=shape.burst, **all_of_it)
    links.tc("add-class", "htb", index, _OTHERS, **queue)
    for number, address in enumerate(addresses, _FIRST):
        links.tc("add-class", "htb", index, number, **queue)
        keys = [f"0x{bytes(map(int, address.split('.'))).hex()}/0xffffffff+16"]  # the receiver in the IPv4 header
        links.tc("add-filter", "u32", index, parent=_ROOT, prio=10, protocol=_IPV4, target=number, keys=keys)
