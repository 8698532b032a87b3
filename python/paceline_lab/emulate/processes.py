"""Processes on the hosts of a cluster: listing and stopping them."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "PACELINE_EMULATED"
"""The environment variable with the token of the cluster that a process was started in."""

_TERMINATE_S = 1.0
_KILL_S = 3.0
_MOST_LETTERS = 60


@dataclass(frozen=True)
class Process:
    """A process on a host. The descriptor refers to it even when its number belongs to another process."""

    pid: int
    descriptor: int
    host: str
    command: str

    def __str__(self) -> str:
        """Return `worker0: pid 7 (sleep 60)`."""
        return f"{self.host}: pid {self.pid} ({self.command})"


def start_of(pid: int) -> int | None:
    """Return the start time in ticks since boot, which distinguishes it from later processes; None if it has ended."""
    try:
        # proc(5): pid (comm) state … starttime is field 22, and comm may contain anything
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None


@contextmanager
def inside(networks: Mapping[int, str], token: str | None = None) -> Iterator[list[Process]]:
    """Return all processes whose network namespace has one of these inode numbers, except this one and zombies.

    Once a namespace is gone, another may get its number. If that is possible, only processes with `token` in their
    environment count.
    """
    inner: list[Process] = []
    try:
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                with suppress(OSError):
                    process = _on_host(folder, networks, token)
                    inner += [process] if process is not None else []
        yield inner
    finally:
        for process in inner:
            os.close(process.descriptor)


def _on_host(folder: Path, networks: Mapping[int, str], token: str | None) -> Process | None:
    """Return the process of a folder of /proc, if it counts. Raises OSError if it has gone or is another user's."""
    network = folder / "ns/net"
    if network.stat().st_ino not in networks:
        return None
    descriptor = os.pidfd_open(int(folder.name))
    try:
        host = networks.get(network.stat().st_ino)  # Check again: from now on it cannot be another process.
        marked = token is None or f"{MARK}={token}".encode() in (folder / "environ").read_bytes().split(b"\0")
        if host is not None and marked:
            return Process(int(folder.name), os.dup(descriptor), host, _command(folder))
        return None
    finally:
        os.close(descriptor)


def _command(folder: Path) -> str:
    words = (folder / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return "".join(letter for letter in words if letter.isprintable())[:_MOST_LETTERS]


def end(networks: Mapping[int, str], token: str | None = None) -> list[str]:
    """Stop processes: SIGTERM, a second later SIGKILL.

    Return words for those stopped, and for those that survived both.
    """
    ended: dict[int, str] = {}
    number, limit = signal.SIGTERM, time.monotonic() + _TERMINATE_S
    while True:
        with inside(networks, token) as left:
            if not left:
                break
            ended.update({process.pid: str(process) for process in left})
            for process in left:
                with suppress(OSError):
                    signal.pidfd_send_signal(process.descriptor, number)
            _wait([process.descriptor for process in left], limit)
        if time.monotonic() >= limit:
            if number == signal.SIGKILL:
                break
            number, limit = signal.SIGKILL, time.monotonic() + _KILL_S
    return list(ended.values())


def _wait(descriptors: Sequence[int], limit: float) -> None:
    """Wait until all have ended, or until the time limit."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left = len(descriptors)
    while left and (rest := limit - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(rest * 1000):
            poll.unregister(descriptor)
            left -= 1
