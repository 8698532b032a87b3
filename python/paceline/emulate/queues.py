"""The queues of a card: at a host's end a turn for each receiver, at the bridge's end first come, first served.

So do real ones: a host's queues part its connections (fq_codel and fq, what most systems have), a port of a switch has
one queue for all. With one queue at the host, what was written first leaves first: of four receivers that are sent the
same, two had it 70 ms before the others (7 MB each at 500 Mbit/s), and acknowledgements stood behind others' data.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from paceline.emulate.shaping import ETHERNET, LIMIT_BYTES, MTU, Shape

MOST_TURNS = 64
"""With more hosts a card has one queue: looking for a packet's own takes too long."""

_ROOT, _CARD, _OTHERS, _FIRST = 0x10000, 0x10001, 0x10FFF, 0x10010
_IPV4 = 0x0800
_PACKETS = 10_000
"""Room for segments of each queue; LIMIT_BYTES hold no more."""


def fill_port(links: Any, index: int, shape: Shape) -> None:  # noqa: ANN401 - pyroute2 has no types
    """The bridge's end: a token bucket."""
    links.link("set", index=index, gso_max_size=shape.segment)
    links.tc("replace", "tbf", index, "1:", rate=shape.rate, burst=shape.burst, limit=LIMIT_BYTES)


def fill_card(links: Any, index: int, shape: Shape, addresses: Sequence[str]) -> None:  # noqa: ANN401
    """The host's end: a token bucket, behind it a queue for each of these receivers, and one for the rest."""
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
        keys = [f"0x{bytes(map(int, address.split('.'))).hex()}/0xffffffff+16"]  # where IPv4 has the receiver
        links.tc("add-filter", "u32", index, parent=_ROOT, prio=10, protocol=_IPV4, target=number, keys=keys)
