"""Reads logs of other benchmarks, whose format is recognized from their contents.

| module | reads |
| --- | --- |
| paste | lines, whatever launchers, loggers, terminals and mails put around them |
| tf_cnn | tf_cnn_benchmarks, and the output of `paceline bench` for one engine |
| nccl | nccl-tests (all_reduce_perf and the others) |
| nccl_json | JSON of nccl-tests and rccl-tests |
| osu | the OSU micro-benchmarks: latency and bandwidth, of collectives and of pairs |
| others | nothing: names logs that are not read |
| show | the tables |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from paceline._internal.documents import read_limited
from paceline._internal.files import list_of, why_unread
from paceline.errors import InvalidArgumentError
from paceline.interop.logs import nccl, nccl_json, osu, others, tf_cnn
from paceline.interop.logs.contents import Read, ReadError
from paceline.interop.logs.paste import cleaned, decoded

__all__ = ["Read", "read_log"]

_MOST = 64 << 20


class _Reader(Protocol):
    def __call__(self, lines: list[str], *, ended: bool) -> list[Read]: ...


_FORMATS: tuple[tuple[Callable[[list[str]], bool], _Reader], ...] = (
    (tf_cnn.recognized, tf_cnn.read),
    (nccl.recognized, nccl.read),
    (osu.recognized, osu.read),
)


def read_log(path: Path, option: str = "--read") -> list[Read]:
    """Read the benchmarks of a log, at least one. Raises InvalidArgumentError with file, line and fault.

    `option`: by which it was given, to begin messages.
    """
    named = f"{option} {path}".strip()
    try:
        text = decoded(read_limited(path, _MOST))
    except OSError as error:
        raise InvalidArgumentError(f"{named}: {why_unread(error)}", remedy=list_of(path)) from None
    lines = cleaned(text)
    try:
        benchmarks = (
            nccl_json.read(text)
            if nccl_json.recognized(text)
            else [
                one
                for recognized, read in _FORMATS
                if recognized(lines)
                for one in read(lines, ended=text[-1] in "\r\n")
            ]
        )
    except ReadError as error:
        raise InvalidArgumentError(f"{named}:{error.line}: {error}", remedy=error.remedy_as("flag")) from None
    if not benchmarks and (other := others.named(lines)) is not None:
        raise InvalidArgumentError(
            f"{named}: is a log of {other}, which is not read",
            remedy="paceline simulate --bandwidth RATE --latency TIME, or a log of nccl-tests",
        )
    if not benchmarks:
        raise InvalidArgumentError(
            f"{named}: has no headings of tf_cnn_benchmarks, nccl-tests or OSU's benchmarks",
            remedy="a whole log of one of them",
        )
    benchmarks.sort(key=lambda one: one.line)
    for one in benchmarks:
        one.source, one.alone = str(path), len(benchmarks) == 1
    return benchmarks
