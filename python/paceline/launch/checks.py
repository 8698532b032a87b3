"""Checks of the agent before anything starts: folder, command, ports and addresses of its host."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from paceline._internal.netif import default_address
from paceline._internal.ports import bind_free
from paceline._internal.system import boot

OTHER_PORT = "another --port, or drop --port (finds a free one)"


class Problem(Exception):
    """The job cannot run on this host."""

    # Errors when starting a program that are due to its file or format.
    USAGE: ClassVar = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.E2BIG})

    def __init__(self, message: str, *, remedy: str | None = None, usage: bool = False) -> None:
        """`usage`: the request is invalid; the machine is not at fault. `remedy`: words to type instead."""
        super().__init__(message)
        self.usage = usage
        self.remedy = remedy


def enter(folder: str) -> None:
    """Change to the job's working directory. Raises Problem."""
    try:
        os.chdir(folder)
    except OSError as error:
        remedy = "cd to a folder that exists on all hosts"
        raise Problem(f"the folder {folder}: {error.strerror}", remedy=remedy, usage=True) from None


def check_command(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse a command that cannot be executed here. Raises Problem."""
    name = command[0]
    if not name:
        raise Problem("the command is empty", remedy="-- python train.py", usage=True)
    if shutil.which(name, path=environment.get("PATH", os.defpath)) is not None:
        return
    hint = f"-- python {name}" if name.endswith(".py") else None
    if Path(name).is_dir():
        raise Problem(f"{name} is a folder, not a command", remedy="-- python train.py", usage=True)
    if not Path(name).exists():
        raise Problem(f"there is no command '{name[:200]}'", remedy=hint or "-- python train.py", usage=True)
    if "/" not in name:
        raise Problem(f"there is no command '{name}' on PATH", remedy=hint or f"-- ./{name}", usage=True)
    raise Problem(f"{name} cannot be executed", remedy=hint or f"chmod +x {name}", usage=True)


def machine() -> str:
    """Return an identifier that is the same for all agents on this machine and network, and for no others."""
    try:
        return f"{boot()} {Path('/proc/self/ns/net').stat().st_ino}"  # Containers share only the boot id.
    except OSError:
        return socket.gethostname()


def own_addresses() -> dict[str, str | None]:
    """Return the addresses at which this host may be reached: according to sshd, and by default.

    `client` is the source of the remote shell's connection.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    client, server = (words[0], words[2]) if len(words) == 4 else (None, None)
    return {"client": client, "server": server, "default": default_address()}


class Ports:
    """Two free ports of this host, for torch's store and Paceline's rendezvous, reserved until they are needed."""

    def __init__(self, wanted: int | None) -> None:
        """`wanted` is the port of the rendezvous; None: any port. Raises Problem if it is in use."""
        self._held: list[socket.socket] = []
        self.rendezvous = self._hold(wanted)
        self.master = self._hold(None)

    def _hold(self, wanted: int | None) -> int:
        # Rank 0 may listen on an address of either family.
        dual = socket.has_dualstack_ipv6()
        held = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        self._held.append(held)
        if dual:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if wanted is None:
                bind_free(held, "")
            else:
                held.bind(("", wanted))
            held.listen(1)  # Otherwise Linux would let two sockets with SO_REUSEADDR share the port.
        except OSError as error:
            self.release()
            if wanted is None:
                raise Problem(f"no port could be reserved: {error.strerror}") from None
            raise Problem(f"--port {wanted}: {error.strerror}", remedy=OTHER_PORT, usage=True) from None
        return int(held.getsockname()[1])

    def release(self) -> None:
        """Release the ports for rank 0."""
        for held in self._held:
            held.close()
        self._held.clear()
