"""Transfers recordings from ranks to the launcher: through a folder to their agent, and from there in frames.

A rank leaves its trace in a private folder of its agent, which sends it when the rank has ended. Other hosts thus need
no common file system with the launcher.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.launch import injection
from paceline.launch.checks import Problem
from paceline.launch.frames import FrameKind, encode

MOST_OF_RANK = 32 << 20
"""Bytes; a tensor takes about 300, so this is enough for 100,000 tensors."""
MOST_OF_ALL = 240_000_000
"""Bytes; files over 256 MB are not read (docs/reference/trace-format.md)."""

_TRACE = "trace.json"
_PIECE = 1 << 20


class Exchange:
    """An agent's folder with the recordings of its ranks."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        """Create the folder. `wanted`: steps and warmup. Raises Problem."""
        self._wanted = wanted
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="paceline-record-"))
        except OSError as error:
            raise _no_folder(error) from None

    def environment(self, rank: int, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that make a rank record. Raises Problem."""
        folder = self._folder / str(rank)
        try:
            folder.mkdir()
        except OSError as error:
            raise _no_folder(error) from None
        recording = injection.Recording(output=str(folder / _TRACE), exchange=str(folder), rank=True, **self._wanted)
        return injection.injected(environ, recording)

    def frames(self, rank: int) -> Iterator[bytes]:
        """Return the rank's recording, in pieces; nothing if there is none."""
        folder = self._folder / str(rank)
        try:
            result, trace = (folder / injection.RESULT).read_bytes(), b"null"
            if (folder / _TRACE).exists():
                size = (folder / _TRACE).stat().st_size
                trace = (folder / _TRACE).read_bytes() if size <= MOST_OF_RANK else _too_large(size)
        except OSError:
            return
        record = b'{"result": %b, "trace": %b}' % (result, trace)
        for at in range(0, len(record), _PIECE):
            yield encode(FrameKind.RECORD, rank, record[at : at + _PIECE])

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _no_folder(error: OSError) -> Problem:
    return Problem(f"--record needs a folder for temporary files: {error.strerror}")


def _too_large(size: int) -> bytes:
    return json.dumps(f"its trace has {size:,} bytes; the limit is {MOST_OF_RANK:,}").encode()


class Records:
    """The launcher's side: the data that has arrived from each rank."""

    def __init__(self) -> None:
        """Start empty."""
        self._pieces: dict[int, bytearray] = {}
        self._size = 0

    def add(self, rank: int, piece: bytes) -> None:
        """Append the next piece of a rank's recording; pieces arrive in order. If they become too large, drop all."""
        self._size += len(piece)
        if self._size > MOST_OF_ALL:
            self._pieces.clear()
        else:
            self._pieces.setdefault(rank, bytearray()).extend(piece)

    @property
    def too_large(self) -> bool:
        """Whether more has arrived than the limit of a trace."""
        return self._size > MOST_OF_ALL

    def of(self, rank: int) -> tuple[dict[str, Any] | None, dict[str, Any] | str | None]:
        """Return the rank's report about its recording, and the trace or the reason why it is missing."""
        piece = self._pieces.pop(rank, None)
        if piece is None:
            return None, None
        record = json.loads(piece)
        return record["result"], record["trace"]
