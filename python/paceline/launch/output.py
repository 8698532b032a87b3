"""The output of ranks: printed with prefixes, or written to one file per rank."""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

from paceline.errors import InvalidArgumentError
from paceline.launch.frames import FrameKind

_RETURN = re.compile(rb"\r(?!\n|$)")
_OPEN_FILES = 64
_PATIENCE_MS = 500


class Output(Protocol):
    """A destination of output. `mode` tells the agents how to split it: raw, lines or files (both streams in one)."""

    mode: str
    hurry: bool
    """Set when the job is being stopped: do not wait for a reader that stopped reading."""

    def put(self, rank: int, kind: FrameKind, data: bytes) -> None:
        """Accept output: in mode `lines`, whole lines, except perhaps the last. Raises OSError."""

    def close(self) -> None:
        """Finish after the last output."""


class Terminal:
    """Prints to stdout and stderr."""

    def __init__(self, names: Sequence[str], *, prefix: bool) -> None:
        """`names` of all processes. The output of one process is unchanged and immediate, of several line by line."""
        self.mode = "raw" if len(names) == 1 else "lines"
        self.hurry = False
        self._names = names
        self._prefix = prefix and self.mode == "lines"
        self._streams = {FrameKind.STDOUT: _Stream(sys.stdout), FrameKind.STDERR: _Stream(sys.stderr)}

    def put(self, rank: int, kind: FrameKind, data: bytes) -> None:
        """Print whole lines at a time, each with one prefix."""
        if self.mode == "lines":
            if not data.endswith(b"\n"):
                data += b"\n"
            if self._prefix:
                name = self._names[rank]
                own = rf"(?m)^\[{name.replace(' ', ' ?')}\]:? ?".encode()  # torch's, before tracebacks and warnings
                data = prefixed(f"[{name}] ".encode(), re.sub(own, b"", data))
        self._streams[kind].write(data, self)

    def close(self) -> None:
        """Do nothing."""


class _Stream:
    """Writes unbuffered, and waits for a reader only while signals can be handled."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._muted = stream is None  # closed by the user with >&-
        self._descriptor = -1
        if stream is None:
            return
        try:
            self._descriptor = stream.fileno()
        except OSError:  # not a file, in tests
            return
        with contextlib.suppress(OSError):  # Another process of the terminal may have made it non-blocking.
            os.set_blocking(self._descriptor, True)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        # Regular files never block. Of others, this much can be written without blocking once they are ready.
        self._most = 1 << 20 if stat.S_ISREG(os.fstat(self._descriptor).st_mode) else select.PIPE_BUF

    def write(self, data: bytes, terminal: Terminal) -> None:
        """Write all of it, unless the job is being stopped and nobody reads."""
        if self._stream is not None and self._descriptor < 0:
            self._stream.buffer.write(data)
            return
        rest = memoryview(data)
        while rest and not self._muted:
            if self._poll.poll(_PATIENCE_MS):
                rest = rest[os.write(self._descriptor, rest[: self._most]) :]
            elif terminal.hurry:
                self._muted = True


def prefixed(prefix: bytes, lines: bytes) -> bytes:
    """Put the prefix before each line, also after a carriage return.

    `lines` ends with one.
    """
    if b"\r" in lines:
        lines = _RETURN.sub(b"\r" + prefix, lines)
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


class Files:
    """Writes rank-N.log, server-N.log and switch.log, with stdout and stderr in the order of printing."""

    mode = "files"
    hurry = False

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Create the folder, and an empty file for each of these processes. Raises InvalidArgumentError."""
        self._folder, self._names = folder, names
        self._open: dict[int, BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for rank in range(len(names)):
                self._path(rank).write_bytes(b"")
        except OSError as error:
            raise InvalidArgumentError(
                f"--output-dir {folder}: {error.strerror} ({error.filename})", remedy="--output-dir /tmp/run"
            ) from None

    def put(self, rank: int, kind: FrameKind, data: bytes) -> None:
        """Append."""
        file = self._open.get(rank)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            file = self._open[rank] = self._path(rank).open("ab", buffering=0)
        file.write(data)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _path(self, rank: int) -> Path:
        return self._folder / f"{self._names[rank].replace(' ', '-')}.log"


class Collected:
    """Collects the output of ranks and servers; servers are numbered after the ranks.

    Example:
        >>> output = Collected()  # doctest: +SKIP
        >>> cluster.run(command, output=output), output.stdout(0)  # doctest: +SKIP
    """

    mode = "raw"
    hurry = False

    def __init__(self) -> None:
        """Start with nothing."""
        self._pieces: dict[tuple[int, FrameKind], bytearray] = {}

    def put(self, rank: int, kind: FrameKind, data: bytes) -> None:
        """Append the output of a process.

        Args:
            rank: Number of the process.
            kind: Stdout or stderr.
            data: The printed bytes.
        """
        self._pieces.setdefault((rank, kind), bytearray()).extend(data)

    def close(self) -> None:
        """Do nothing."""

    def stdout(self, rank: int) -> str:
        """Return the standard output of a process; bytes that are not UTF-8 are replaced.

        Args:
            rank: Number of the process: its rank, or the number of ranks plus the index of the server.
        """
        return self._pieces.get((rank, FrameKind.STDOUT), bytearray()).decode(errors="replace")

    def stderr(self, rank: int) -> str:
        """Return the standard error of a process; bytes that are not UTF-8 are replaced.

        Args:
            rank: Number of the process, as for `stdout`.
        """
        return self._pieces.get((rank, FrameKind.STDERR), bytearray()).decode(errors="replace")


class Discarded:
    """Discards the output of ranks and servers."""

    mode = "raw"
    hurry = False

    def put(self, rank: int, kind: FrameKind, data: bytes) -> None:
        """Discard it.

        Args:
            rank: Number of the process.
            kind: Stdout or stderr.
            data: The printed bytes.
        """

    def close(self) -> None:
        """Do nothing."""
