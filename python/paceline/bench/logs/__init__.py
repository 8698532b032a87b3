"""Reads logs of other benchmarks, whose format is recognised from their contents.

| module | reads |
| --- | --- |
| tf_cnn | tf_cnn_benchmarks, and the output of `paceline bench` for one engine |
| nccl | nccl-tests (all_reduce_perf and the others) |
| osu | the OSU micro-benchmarks: latency and bandwidth, of collectives and of pairs |
| show | the tables |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline._internal.files import read_small, why_unread
from paceline.bench.logs import nccl, osu, tf_cnn
from paceline.bench.logs.found import Read, ReadError
from paceline.errors import InvalidArgumentError

__all__ = ["Read", "read_log"]

_MOST = 64 << 20
_LONGEST_LINE = 4096
"""Number of characters of a line that are parsed; no result is longer."""
_FORMATS: tuple[tuple[Callable[[list[str]], bool], Callable[[list[str]], Read]], ...] = (
    (tf_cnn.recognised, tf_cnn.read),
    (nccl.recognised, nccl.read),
    (osu.recognised, osu.read),
)


def read_log(path: Path) -> Read:
    """Read a log. Raises InvalidArgumentError naming the file, the line and the problem."""
    try:
        text = read_small(path, _MOST)
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"--read {path}: is not UTF-8 text") from None
    except OSError as error:
        raise InvalidArgumentError(f"--read {path}: {why_unread(error)}") from None
    lines = [line[:_LONGEST_LINE] for line in text.splitlines()]
    for recognised, read in _FORMATS:
        if recognised(lines):
            try:
                if text[-1] not in "\r\n" and any(letter.isdigit() for letter in lines[-1]):
                    raise ReadError(
                        len(lines), "has no line end: the log is truncated; add a newline if it is complete"
                    )
                found = read(lines)
            except ReadError as error:
                raise InvalidArgumentError(f"--read {path}:{error.line}: {error}") from None
            found.source = str(path)
            return found
    raise InvalidArgumentError(
        f"--read {path}: is neither a log of tf_cnn_benchmarks nor of nccl-tests nor of OSU's benchmarks"
    )
