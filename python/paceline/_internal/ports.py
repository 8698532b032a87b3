"""Free ports for servers that start later, in other processes."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack
from pathlib import Path

_CHOICE = random.SystemRandom()
_FIRST, _AFTER_LAST = 20_000, 30_000
"""Below the ports of Kubernetes' nodes, and those that systems choose: from 32768 on under Linux, 49152 elsewhere."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FEWEST = 1000
_TRIES = 100


def bind_free(server: socket.socket, address: str) -> int:
    """Bind a socket to a free port that the system does not choose for another one, and return the port.

    A port that `bind` has chosen (port 0) may be given to anybody once the socket is closed, also to the job's own
    ranks, each of which has a listener. It is such a one only if the system chooses from nearly all ports, or no other
    is free.

    Args:
        server: A TCP socket that is not bound.
        address: An address of this machine, or nothing for all.

    Raises:
        OSError: The address is not this machine's.
    """
    ports = _candidates()
    for port in _CHOICE.sample(ports, min(_TRIES, len(ports))):
        try:
            server.bind((address, port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return port
    server.bind((address, 0))
    return int(server.getsockname()[1])


def free_ports(address: str, count: int) -> list[int]:
    """Return different ports of an address that are free now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.socket(family)) for _ in range(count)]
        return [bind_free(server, address) for server in servers]


def _candidates() -> range:
    """Return the ports to choose from; none if the system chooses from nearly all by itself."""
    try:
        lowest = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        lowest = _AFTER_LAST
    ports = range(_FIRST, min(_AFTER_LAST, lowest))
    return ports if len(ports) >= _FEWEST else range(0)
