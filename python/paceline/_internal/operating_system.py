"""The operating system as elastic jobs use it: clock, sockets, processes, signals and random numbers.

Code that takes an `OperatingSystem` runs unchanged in a simulation, which gives it another one.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any

_IDLE_S, _EVERY_S, _PROBES = 15, 5, 3
"""Keep-alives: a connection whose other end cannot be reached is closed after 30 s, even if nothing is being sent."""


class OperatingSystem:
    """This machine's."""

    def now(self) -> float:
        """Return the time in seconds, which never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        time.sleep(seconds)

    def token(self) -> str:
        """Return 32 hexadecimal digits that nobody can guess."""
        return secrets.token_hex(16)

    def selector(self) -> selectors.DefaultSelector:
        """Return a new selector."""
        return selectors.DefaultSelector()

    def listen(self, address: str, port: int) -> socket.socket:
        """Return a listening socket. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=128)

    def connect(self, host: str, port: int, limit_s: float) -> socket.socket:
        """Return a connection. Raises OSError."""
        connection = socket.create_connection((host, port), limit_s)
        keep_alive(connection)
        return connection

    def popen(self, words: Sequence[str], output: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command in its own session, without input. Raises OSError."""
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, env=environment, start_new_session=True)

    def kill(self, process: subprocess.Popen[bytes]) -> int:
        """Kill a started process and its children, and return its exit code."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    @contextmanager
    def signals(self, handler: Callable[[int, FrameType | None], Any]) -> Iterator[socket.socket | None]:
        """Catch SIGINT, SIGTERM and SIGHUP; yield a socket that becomes readable after one.

        A signal that is ignored (nohup) stays ignored. Outside the main thread nothing is caught, and None is yielded:
        Python handles signals in the main thread, so its owner decides what they mean.
        """
        if threading.current_thread() is not threading.main_thread():
            yield None
            return
        receiver, sender = socket.socketpair()
        for end in (receiver, sender):
            end.setblocking(False)
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, handler) for number in numbers}
        try:
            yield receiver
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)
            signal.set_wakeup_fd(wakeup)
            receiver.close()
            sender.close()


def keep_alive(connection: socket.socket) -> None:
    """Have the system close a connection whose other end cannot be reached any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _EVERY_S), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


LIVE = OperatingSystem()
