"""torch's store in a job of `paceline run` or Ray: it listens where its ranks connect, and not on every interface.

Rank 0 serves the store in which torch's ranks find each other. It has no authentication, so it should not be reachable
from elsewhere: on one machine it listens on loopback, otherwise on the address of the chosen interface. torch has no
option for that, but takes a socket that listens already.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from paceline._internal.operating_system import LIVE

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

VARIABLE = "PACELINE_RUN_ID"
"""Set by launchers whose MASTER_ADDR is the address to listen on."""


def restrict() -> None:
    """Make torch's store listen on MASTER_ADDR alone, if a launcher of ours has set it. Idempotent."""
    if not os.environ.get(VARIABLE):
        return
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch._C._distributed_c10d import TCPStore

    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package's attribute is a function
    torchs = getattr(rendezvous, "_create_c10d_store", None)
    if torchs is None or getattr(torchs, "is_restricted", False):
        return

    def create(  # noqa: PLR0917 - as torch calls it
        hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
    ) -> Store:
        listener = _listener(hostname, port) if rank == 0 else None
        if listener is None:
            store: Store = torchs(hostname, port, rank, world_size, timeout, use_libuv)
            return store
        return TCPStore(
            host_name=hostname,
            port=port,
            world_size=world_size,
            is_master=True,
            timeout=timeout,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
            use_libuv=use_libuv,
        )

    create.is_restricted = True  # type: ignore[attr-defined]
    rendezvous._create_c10d_store = create  # type: ignore[attr-defined]  # torch's own


def _listener(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens on the launcher's address; None if torch is to find its own way.

    For example, an earlier store of this process still listens there, which torch uses again.
    """
    launched = host == os.environ.get("MASTER_ADDR") and str(port) == os.environ.get("MASTER_PORT")
    if not launched or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return None
    try:
        return LIVE.listen(str(ipaddress.ip_address(host)), port)
    except (ValueError, OSError):
        return None
