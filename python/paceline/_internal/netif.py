"""Addresses of this machine: of an interface, in a network, or towards another host. Sends nothing."""

from __future__ import annotations

import ipaddress
import itertools
import socket
import struct
import sys
from pathlib import Path

from paceline.errors import InvalidArgumentError

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IF_INET6 = Path("/proc/net/if_inet6")
_LINK_SCOPE, _UNUSABLE = 0x20, 0x08 | 0x40  # IPV6_ADDR_LINKLOCAL of net/ipv6.h; IFA_F_DADFAILED, IFA_F_TENTATIVE
# TEST-NET-2 of RFC 5737 and the prefix of RFC 3849: no host has them, so they are reached by the default route.
_FAR = ("198.51.100.1", "2001:db8::1")
LOOPBACK = ("127.0.0.1", "::1")


def addresses() -> dict[str, list[str]]:
    """Return the addresses of every interface at which others can reach it, IPv4 first (Linux only; empty elsewhere).

    Link-local IPv6 addresses are left out: they need a scope that is only valid on the other machine.
    """
    by_name: dict[str, list[str]] = {}
    if not sys.platform.startswith("linux"):
        return by_name
    for _, name in socket.if_nameindex():
        by_name[name] = [address for address in (_ipv4(name),) if address is not None]
    for name, address, scope, flags in ipv6():
        if scope != _LINK_SCOPE and not flags & _UNUSABLE:
            by_name.setdefault(name, []).append(address)
    return by_name


def _ipv4(name: str) -> str | None:
    import fcntl

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:  # It has none, or the system has no IPv4 at all.
        return None
    return socket.inet_ntoa(answer[20:24])


def ipv6() -> list[tuple[str, str, int, int]]:
    """Return interface, address, scope and flags of every IPv6 address, those of proc(5) (Linux only)."""
    try:
        lines = _IF_INET6.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []
    words = [line.split() for line in lines]
    return [
        (name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address)), int(scope, 16), int(flags, 16))
        for address, _, _, scope, flags, name in words
    ]


def check_interface(text: str) -> None:
    """Refuse text that cannot name an interface on any machine. Raises InvalidArgumentError."""
    if text in ("0.0.0.0", "::", "*"):
        raise InvalidArgumentError(
            f"{text} means every interface, and other ranks need one address",
            remedy="eth0 (an interface), 10.0.0.0/24 (a network), or an address",
        )
    if "/" in text:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise InvalidArgumentError(f"'{text[:80]}' is not a network", remedy="10.0.0.0/24") from None
    elif not text or any(letter.isspace() or not letter.isprintable() for letter in text) or len(text) > 64:
        raise InvalidArgumentError(f"'{text[:80]}' is not an interface, network or address", remedy="eth0")


def address_of(text: str, source: str) -> str:
    """Return this machine's address for an interface (eth0), a network (10.0.0.0/24) or an address.

    InvalidArgumentError.
    """
    try:
        check_interface(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}: {error.reason}", remedy=error.remedy) from None
    known = addresses()
    if known.get(text):
        return known[text][0]
    if "/" in text:
        network = ipaddress.ip_network(text, strict=False)
        for one in itertools.chain.from_iterable(known.values()):
            if ipaddress.ip_address(one) in network:
                return one
        problem = f"this machine has no address in {text}"
    elif text in known:
        problem = f"interface {text} has no address that other machines can use (link-local ones are none)"
    else:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            problem = f"this machine has no interface '{text}'"
        else:
            if address.version == 6 and address.is_link_local:
                problem = f"{text} is a link-local address, which other machines cannot use without their own scope"
            elif is_own(str(address)):
                return str(address)
            else:
                problem = f"{text} is not an address of this machine; a network (10.0.0.0/24) fits several hosts"
    has = ", ".join(f"{name} {one}" for name, own in known.items() for one in own) or "no interface with an address"
    raise InvalidArgumentError(f"{source}: {problem}", remedy=f"one of {has}")


def is_own(address: str) -> bool:
    """Return whether a server on this machine can listen on the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def towards(host: str) -> str | None:
    """Return the address of this machine from which `host` is reached; None if it is unknown or unreachable."""
    try:
        targets = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, address in sorted(targets, key=lambda entry: entry[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # Connecting a datagram socket looks up the route and sends nothing.
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def default_address() -> str:
    """Return this machine's address on the default route, or else of an interface; loopback if there is none."""
    routed = next((address for far in _FAR if (address := towards(far)) is not None), None)
    own = (one for one in itertools.chain.from_iterable(addresses().values()) if not is_loopback(one))
    return routed or next(own, None) or loopback()


def loopback() -> str:
    """Return the address by which only this machine reaches itself: 127.0.0.1, or ::1 where IPv4 is off."""
    return next((address for address in LOOPBACK if is_own(address)), LOOPBACK[0])


def is_loopback(address: str) -> bool:
    """Return whether this is an address of loopback; False for a name."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def address_for(first: str) -> str:
    """Return this machine's address for a job of several machines, of which `first` is the host of rank 0."""
    address = towards(first)
    if address is None:
        return loopback()
    by_name = not is_loopback(first) and first != "localhost"
    # Many systems list their own name with a loopback address.
    return default_address() if is_loopback(address) and by_name else address


def split_endpoint(text: str) -> str:
    """Return the host of `host:port` or `[v6]:port`."""
    return text.rpartition(":")[0].strip("[]")


def endpoint(address: str, port: int) -> str:
    """Return `address:port`, with brackets around an IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
