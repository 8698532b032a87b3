"""Messages between launcher and agent: frames from the agent, lines of JSON to it. Neither side blocks on them."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

# Precedes the frames, so that a login shell's output before it is recognized.
MAGIC = b"\0paceline-agent-1\0"
_HEADER = struct.Struct(">BII")
_LONGEST = 4 << 20
_MOST_JUNK = 64 << 10


class FrameKind(IntEnum):
    """The contents of a frame."""

    READY = 1  # JSON: fields that the launcher needs before it sends go
    PROBLEM = 2  # JSON: why the job cannot start here
    STARTED = 3  # JSON: pid of the rank
    STDOUT = 4  # bytes printed by the rank
    STDERR = 5
    EXITED = 6  # JSON: how the rank ended
    DONE = 7  # no process is left on this host
    RECORD = 8  # bytes: the next piece of the rank's recording; sent before EXITED
    JOINING = 9  # JSON: the rank has begun to join the job, or that is done or has failed


@dataclass(frozen=True)
class Frame:
    """A message of an agent, possibly about one of its ranks."""

    kind: FrameKind
    rank: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """Return the payload of kinds that carry JSON."""
        fields: dict[str, Any] = json.loads(self.payload)
        return fields


def encode(kind: FrameKind, rank: int = 0, payload: bytes | dict[str, Any] = b"") -> bytes:
    """Return a frame as bytes."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return _HEADER.pack(kind, rank, len(data)) + data


class Decoder:
    """Decodes bytes into frames. `junk` contains the bytes before the agent's first frame."""

    def __init__(self) -> None:
        """Start empty."""
        self.junk = b""
        self._data = bytearray()
        self._begun = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return the complete frames. Raises ValueError for malformed ones."""
        self._data += data
        if not self._begun:
            at = self._data.find(MAGIC)
            if at < 0:
                if len(self._data) > _MOST_JUNK:
                    raise ValueError("the remote shell prints output, but no agent answers")
                self.junk = bytes(self._data)
                return
            self.junk = bytes(self._data[:at])
            del self._data[: at + len(MAGIC)]
            self._begun = True
        while len(self._data) >= _HEADER.size:
            kind, rank, size = _HEADER.unpack_from(self._data)
            if size > _LONGEST:
                raise ValueError("the agent's messages are malformed")
            end = _HEADER.size + size
            if len(self._data) < end:
                return
            payload = bytes(self._data[_HEADER.size : end])
            del self._data[:end]
            yield Frame(FrameKind(kind), rank, payload)


class Outbox:
    """Bytes to be written to a descriptor without blocking."""

    def __init__(self, descriptor: int) -> None:
        """Make the descriptor non-blocking."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.broken = False
        self._waiting = bytearray()

    def __len__(self) -> int:
        """Return the number of queued bytes."""
        return len(self._waiting)

    def put(self, data: bytes) -> None:
        """Append, and write as much as possible now."""
        if not self.broken:
            self._waiting += data
            self.flush()

    def flush(self) -> None:
        """Write as much as possible now."""
        with contextlib.suppress(BlockingIOError):
            try:
                while self._waiting:
                    written = os.write(self.descriptor, memoryview(self._waiting)[: 1 << 16])
                    del self._waiting[:written]
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                self.broken = True  # The reader is gone.
                self._waiting.clear()


class Lines:
    """Splits the output of a rank into pieces of whole lines.

    A line longer than `LONGEST` is split. Progress bars, which return to the start of their line without ending it, are
    forwarded once a second.
    """

    LONGEST = 256 << 10
    PATIENCE_S = 1.0

    def __init__(self) -> None:
        """Start empty."""
        self._rest = bytearray()
        self._since = 0.0

    def feed(self, data: bytes, now: float) -> bytes:
        """Return the whole lines so far; keep the rest."""
        searched = len(self._rest)
        self._rest += data
        cut = self._rest.rfind(b"\n", searched) + 1
        if not cut and now - self._since >= self.PATIENCE_S:
            cut = self._rest.rfind(b"\r", 0, len(self._rest) - 1) + 1
        if not cut and len(self._rest) >= self.LONGEST:
            cut = len(self._rest)
        if not cut:
            return b""
        self._since = now
        return self._take(cut)

    def finish(self) -> bytes:
        """Return the incomplete last line."""
        return self._take(len(self._rest))

    def _take(self, cut: int) -> bytes:
        piece = bytes(self._rest[:cut])
        del self._rest[:cut]
        return piece
