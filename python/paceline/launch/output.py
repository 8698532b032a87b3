"""What the ranks print: passed on with prefixes, or kept in a file for each rank."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import BinaryIO, Protocol

from paceline._core import UserError
from paceline.launch.frames import Kind

_RETURN = re.compile(rb"\r(?!\n|$)")
_OPEN_FILES = 64


class Output(Protocol):
    """Where it goes. `mode` tells the agents how to cut it: raw, lines or files (both streams in one)."""

    mode: str

    def put(self, rank: int, kind: Kind, data: bytes) -> None:
        """A piece; in mode lines, of whole lines, the last of which may lack its end. Raises OSError."""

    def close(self) -> None:
        """Nothing more comes."""


class Terminal:
    """Passes on to stdout and stderr."""

    def __init__(self, ranks: int, *, prefix: bool) -> None:
        """One rank's output passes unchanged and at once; that of several line by line."""
        self.mode = "raw" if ranks == 1 else "lines"
        self._prefix = prefix and ranks > 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # some other process of the terminal may have made it non-blocking
                os.set_blocking(stream.fileno(), True)
        self._streams = {Kind.STDOUT: sys.stdout.buffer, Kind.STDERR: sys.stderr.buffer}

    def put(self, rank: int, kind: Kind, data: bytes) -> None:
        """One write for the piece, so that lines stay whole."""
        if self.mode == "lines":
            if not data.endswith(b"\n"):
                data += b"\n"
            if self._prefix:
                data = prefixed(b"[rank %d] " % rank, data)
        stream = self._streams[kind]
        stream.write(data)
        stream.flush()

    def close(self) -> None:
        """Nothing is open."""


def prefixed(prefix: bytes, lines: bytes) -> bytes:
    """The prefix before each line, also where a line returns to its start to be overwritten. `lines` ends with one."""
    if b"\r" in lines:
        lines = _RETURN.sub(b"\r" + prefix, lines)
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


class Files:
    """Writes rank-N.log files; stdout and stderr in the order in which they were printed."""

    mode = "files"

    def __init__(self, folder: Path, ranks: int) -> None:
        """Makes the folder, and an empty file for each rank. Raises UserError."""
        self._folder = folder
        self._open: dict[int, BinaryIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for rank in range(ranks):
                self._path(rank).write_bytes(b"")
        except OSError as error:
            raise UserError(f"--output-dir {folder}: {error.strerror} ({error.filename})") from None

    def put(self, rank: int, kind: Kind, data: bytes) -> None:
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
        return self._folder / f"rank-{rank}.log"
