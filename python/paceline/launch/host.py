"""The launcher's side of one agent: its process and the messages from and to it."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from paceline._internal.netif import default_address, is_own, towards
from paceline.errors import InvalidArgumentError
from paceline.launch.frames import Decoder, Frame, Lines, Outbox
from paceline.launch.hosts import Place, address_part

_READ = 1 << 18
_MOST_WORDS = 2000
_PATIENCE_S = 2.0


class AgentHost:
    """A host that runs ranks of the job."""

    def __init__(self, place: Place, command: Sequence[str], *, remote: bool) -> None:
        """Start its agent. Raises InvalidArgumentError if the remote shell does not exist."""
        self.place = place
        self.remote = remote
        self.ready: dict[str, Any] | None = None
        self.done = False
        self.over = False
        self.pids: dict[int, int] = {}
        self.ended: set[int] = set()
        self.decoder = Decoder()
        self._words = b""
        self._lines = Lines()
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C should reach only the launcher, which ends the ranks.
            )
        except OSError as error:
            raise InvalidArgumentError(f"--rsh: {command[0]}: {error.strerror}", remedy="--rsh ssh") from None
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdout = self.process.stdout
        self.stderr = self.process.stderr
        os.set_blocking(self.stdout.fileno(), False)
        os.set_blocking(self.stderr.fileno(), False)
        self.inbox = Outbox(self.process.stdin.fileno())

    @property
    def name(self) -> str:
        """The host's name, as the user wrote it."""
        return self.place.host.name

    def tell(self, order: dict[str, Any]) -> None:
        """Send a line."""
        self.inbox.put(json.dumps(order).encode() + b"\n")

    def frames(self) -> Iterator[Frame] | None:
        """Return new frames; None at the end. Raises ValueError for malformed ones."""
        try:
            data = os.read(self.stdout.fileno(), _READ)
        except BlockingIOError:
            return iter(())
        return self.decoder.feed(data) if data else None

    def complaints(self) -> bytes | None:
        """Return the stderr output of the remote shell or the agent; None at the end."""
        try:
            data = os.read(self.stderr.fileno(), _READ)
        except BlockingIOError:
            return b""
        self._words = (self._words + data)[-_MOST_WORDS:]
        return self._lines.feed(data, time.monotonic()) if data else self._lines.finish() or None

    def why_lost(self) -> str:
        """Return the likely reason why an agent ended early."""
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:  # It closed its output but is still running.
            self.process.kill()
            code = self.process.wait()
        with contextlib.suppress(OSError):
            while data := os.read(self.stderr.fileno(), _READ):
                self._words = (self._words + data)[-_MOST_WORDS:]
        outcome = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
        what = "its remote shell" if self.remote else "its agent"
        lines = (self.decoder.junk + b"\n" + self._words).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        message = f"host {self.name}: {what} {outcome}"
        if self.ready is None:
            message += " before its ranks started"
        if "No module named" in last and "paceline" in last:
            last += "; install paceline on that host, at the same path or for its python3"
        return f"{message}: {last}" if last else message

    def kill(self) -> None:
        """Kill the agent or the remote shell at once, and ranks on this machine whose agent has died."""
        self.process.kill()
        if not self.remote:
            for rank, pid in self.pids.items():
                if rank not in self.ended:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)

    def close(self) -> None:
        """Close its pipes, which ends it, and wait for that."""
        for file in (self.process.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def first_address(hosts: Sequence[AgentHost]) -> str | None:
    """Return an address of the first host for the others; None if it only has the loopback address.

    The address from sshd comes first, because that connection works; then the name, then the default route.
    """
    first = hosts[0]
    assert first.ready is not None
    if first.remote:
        default = str(first.ready["default"])
        reached = _ssh_address(first, "server") or _resolved(address_part(first.name)) or default
        return None if _loopback(reached) else reached
    # The first host is this machine: the others know the address from which it connected to them.
    others = [host for host in hosts if host.remote]
    seen = [address for host in others if (address := _ssh_address(host, "client")) and is_own(address)]
    routes = [address for host in others if (address := towards(address_part(host.name))) and not _loopback(address)]
    reached = next(iter([*seen, *routes, default_address()]))
    return None if _loopback(reached) else reached


def _ssh_address(host: AgentHost, end: str) -> str | None:
    """Return one end of the host's SSH_CONNECTION; None if it was inherited from this process's own login."""
    assert host.ready is not None
    own = os.environ.get("SSH_CONNECTION", "").split()
    inherited = len(own) == 4 and (own[0], own[2]) == (host.ready["client"], host.ready["server"])
    address = host.ready[end]
    return None if inherited or address is None or _loopback(address) else str(address)


def _resolved(name: str) -> str | None:
    """Return the address from a name server, preferring IPv4, if other hosts can use it."""
    try:
        results = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    results.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return next((str(entry[4][0]) for entry in results if not _loopback(str(entry[4][0]))), None)


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


# Command lines that start agents contain neither the job nor its secret, which are sent through standard input.


# -P: modules in the job's working directory must not replace Python's own in the agent.
_AGENT = ("-P", "-m", "paceline.launch.agent")
# Keep-alives detect a lost host within a minute; accept-new accepts the keys of new hosts.
DEFAULT_RSH = "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ServerAliveInterval=15"


def local_agent() -> list[str]:
    """Return the command that starts an agent here."""
    return [sys.executable, *_AGENT]


def remote_agent(rsh: Sequence[str], host: str) -> list[str]:
    """Return the command that starts an agent there: with this Python if it exists there, or the remote PATH's.

    The remote shell gets `exec sh -c '…'`, which all login shells understand.
    """
    path = os.environ.get("PYTHONPATH")
    script = "; ".join(
        [
            f"python={shlex.quote(sys.executable)}",
            '[ -x "$python" ] || python=python3',
            *([f"PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}", "export PYTHONPATH"] if path else []),
            f'exec "$python" {shlex.join(_AGENT)}',
        ]
    )
    return [*rsh, host, f"exec sh -c {shlex.quote(script)}"]


def parse_rsh(text: str) -> list[str]:
    """Return the words of `--rsh`. Raises InvalidArgumentError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"--rsh: '{text[:80]}' has unbalanced quotes ({error})", remedy="--rsh 'ssh -p 2222'"
        ) from None
    if not words:
        raise InvalidArgumentError("--rsh: is empty", remedy="--rsh 'ssh -p 2222'")
    return words
