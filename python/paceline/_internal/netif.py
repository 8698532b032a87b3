"""Addresses of this machine: of an interface, in a network, or towards another host. Sends nothing."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys

from paceline.errors import InvalidArgumentError

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_FAR = "198.51.100.1"  # TEST-NET-2 of RFC 5737: no host has it, so it is reached by the default route


def addresses() -> dict[str, str]:
    """Return the IPv4 address of every interface that has one (Linux only; empty elsewhere)."""
    found: dict[str, str] = {}
    if not sys.platform.startswith("linux"):
        return found
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def check_interface(text: str) -> None:
    """Refuse text that cannot name an interface on any machine. Raises InvalidArgumentError."""
    if text in ("0.0.0.0", "::", "*"):
        raise InvalidArgumentError(
            f"{text} means every interface, but other ranks need one address to connect to; "
            "name an interface (eth0), a network (10.0.0.0/24) or an address"
        )
    if "/" in text:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise InvalidArgumentError(f"'{text[:80]}' is not a network; write for example 10.0.0.0/24") from None
    elif not text or any(letter.isspace() or not letter.isprintable() for letter in text) or len(text) > 64:
        raise InvalidArgumentError(f"'{text[:80]}' is not an interface, network or address; write eth0, for example")


def address_of(text: str, source: str) -> str:
    """Return this machine's address for an interface (eth0), a network (10.0.0.0/24) or an address.

    InvalidArgumentError.
    """
    try:
        check_interface(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}: {error.reason}") from None
    known = addresses()
    if text in known:
        return known[text]
    if "/" in text:
        network = ipaddress.ip_network(text, strict=False)
        for address in known.values():
            if ipaddress.ip_address(address) in network:
                return address
        problem = f"this machine has no address in {text}"
    else:
        try:
            address = str(ipaddress.ip_address(text))
        except ValueError:
            problem = f"this machine has no interface '{text}'"
        else:
            if is_own(address):
                return address
            problem = f"{text} is not an address of this machine; a network (10.0.0.0/24) fits several hosts"
    has = ", ".join(f"{name} {address}" for name, address in known.items()) or "none with an IPv4 address"
    raise InvalidArgumentError(f"{source}: {problem}; it has {has}")


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
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, address in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # Connecting a datagram socket looks up the route and sends nothing.
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def default_address() -> str:
    """Return this machine's address on the default route, or 127.0.0.1 without one."""
    return towards(_FAR) or "127.0.0.1"


def endpoint(address: str, port: int) -> str:
    """Return `address:port`, with brackets around an IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
