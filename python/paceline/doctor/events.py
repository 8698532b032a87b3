"""Reads the events of a timeline file, line by line if each event is a line: a file may have a million."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from paceline._internal.files import why_unread
from paceline.errors import InvalidArgumentError

Event = dict[str, Any]

RECORD = "paceline run -np N --timeline RUN.json -- python SCRIPT"
_AT_ONCE = 4096
"""Lines that are parsed together, which takes a quarter of the time of parsing them one by one."""
_MOST_AT_ONCE = 500_000_000
"""Characters that are read at once."""
_FIRST = '"traceEvents": ['
_LAST, _END = "]}", "]"
"""The last lines of a timeline and of a rank's part, which is an array."""


def events(path: Path) -> Iterator[Event]:
    """Return the events of a timeline. Raises InvalidArgumentError that names file, line and remedy."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InvalidArgumentError(f"{path}: is a pipe or a device", remedy=f"cat {path} > run.json")
        with path.open(encoding="utf-8") as file:
            lines = _lines(path, file)
            first = next(lines, "")
            if first.rstrip().endswith(_FIRST):
                yield from _by_line(path, lines, _LAST)
                return
            second = next(lines, "") if first.strip() == "[" else ""
            if _is_event(second):
                yield from _by_line(path, chain([second], lines), _END)
            else:
                # Of another program, all in one line perhaps.
                rest = file.read(_MOST_AT_ONCE)
                if len(rest) == _MOST_AT_ONCE:
                    raise InvalidArgumentError(
                        f"{path}: has more than 500 MB that is not an event a line", remedy=RECORD
                    )
                yield from _whole(path, first + second + rest)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {why_unread(error)}") from None
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{path}: is not text, so it is not a timeline", remedy=RECORD) from None


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines of a file that may be one line of gigabytes; that of a file in one line is whole."""
    while line := file.readline(_MOST_AT_ONCE):
        if len(line) == _MOST_AT_ONCE:
            raise InvalidArgumentError(
                f"{path}: has a line of more than 500 MB, so it is not a timeline", remedy=RECORD
            )
        yield line


def _is_event(line: str) -> bool:
    """Return whether the line is a whole event, as each line is of what ranks write."""
    try:
        return isinstance(json.loads(line.strip().removesuffix(",")), dict)
    except (ValueError, RecursionError):
        return False


def _by_line(path: Path, file: Iterator[str], last: str) -> Iterator[Event]:
    number, ended = 1, False
    while chunk := list(islice(file, _AT_ONCE)):
        if ended and any(line.strip() for line in chunk):
            raise InvalidArgumentError(f"{path}:{number + 1}: goes on after its end", remedy=RECORD)
        lines = [line for line in chunk if not _is_tail(line)]
        tail = [index for index, line in enumerate(lines) if line.strip() == last]
        if tail:
            if any(line.strip() for line in lines[tail[0] + 1 :]):
                raise InvalidArgumentError(f"{path}: goes on after its end", remedy=RECORD)
            lines, ended = lines[: tail[0]], True
        text = "".join(lines).rstrip().rstrip(",")
        try:
            parsed = json.loads(f"[{text}]")
        except (ValueError, RecursionError):
            raise _wrong_line(path, chunk, number, last) from None
        yield from _checked(path, parsed)
        number += len(chunk)
    if not ended:
        raise _cut(path)


def _is_tail(line: str) -> bool:
    """Return whether it is the end of a message. These are not needed, and are a third of all lines."""
    return '"cat":"message"' in line and '"ph":"e"' in line


def _wrong_line(path: Path, lines: list[str], before: int, last: str) -> InvalidArgumentError:
    for number, line in enumerate(lines, before + 1):
        try:
            json.loads(line.strip().rstrip(",").removesuffix(last) or "null")
        except (ValueError, RecursionError):
            if not line.endswith("\n"):
                return _cut(path)
            return InvalidArgumentError(f"{path}:{number}: is not JSON", remedy=RECORD)
    return InvalidArgumentError(f"{path}: commas between events are missing", remedy=RECORD)


def _cut(path: Path) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{path}: ends in the middle: the run was killed while writing it, or is still running", remedy=RECORD
    )


def _whole(path: Path, text: str) -> Iterator[Event]:
    """Read a file that another program has written or changed."""
    if not text.strip():
        raise InvalidArgumentError(f"{path}: is empty: the run was killed, or is still running", remedy=RECORD)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgumentError(f"{path}: is not JSON, so it is not a timeline", remedy=RECORD) from None
    listed = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise InvalidArgumentError(f"{path}: has no traceEvents, so it is not a timeline", remedy=RECORD)
    yield from _checked(path, listed)


def _checked(path: Path, listed: list[Any]) -> Iterator[Event]:
    for event in listed:
        if not isinstance(event, dict):
            raise InvalidArgumentError(f"{path}: an event is {json.dumps(event)[:80]}, not an object", remedy=RECORD)
        yield event
