"""Reads the profiles of TensorFlow and JAX (XPlane): a protocol buffer of planes, lines and events.

The schema is https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto (Apache
License 2.0). Its wire format is read here, field by field: lengths are checked before anything is copied, unknown
fields are skipped, and no library is needed. Times of events are picoseconds since their line's timestamp.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline._internal.documents import read_packed
from paceline.errors import InvalidArgumentError

_MOST_BYTES = 2_000_000_000
_MOST_EVENTS = 20_000_000
_WHOLE = "a whole file of tf.profiler (plugins/profile/…/HOST.xplane.pb)"

Value = int | float | str | bytes
"""The value of a statistic."""


@dataclass
class Event:
    """An event of a line; seconds since the epoch of the file's clock."""

    name: str
    start: float
    end: float
    stats: dict[str, Value]


@dataclass
class Line:
    """A thread of the host, or a stream of a device."""

    name: str
    events: list[Event] = field(default_factory=list)


@dataclass
class Plane:
    """A device, or the host's CPUs."""

    name: str
    lines: list[Line] = field(default_factory=list)


class _Damaged(Exception):
    """The bytes are no message of this kind."""


def read_xplane(path: Path) -> list[Plane]:
    """Return the planes of a file. Raises InvalidArgumentError."""
    content = read_packed(path, _MOST_BYTES, "an .xplane.pb file")
    try:
        return _Reader(memoryview(content)).planes()
    except _Damaged as error:
        raise InvalidArgumentError(f"{path}: is not XPlane: {error}", remedy=_WHOLE) from None


class _Reader:
    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._events = 0

    def planes(self) -> list[Plane]:
        return [
            self._plane(_part(value, "planes")) for number, value in _fields(self._content, "the file") if number == 1
        ]

    def _plane(self, message: memoryview) -> Plane:
        names: dict[int, tuple[str, dict[int, Value]]] = {}
        stats: dict[int, str] = {}
        plane, lines, raw_stats = Plane(""), [], []
        for number, value in _fields(message, "a plane"):
            if number == 2:
                plane.name = _text(value)
            elif number == 3:
                lines.append(_part(value, "lines"))
            elif number == 4:
                key, entry = _entry(value)
                names[key] = self._metadata(entry)
            elif number == 5:
                key, entry = _entry(value)
                stats[key] = next((_text(one) for at, one in _fields(entry, "stat_metadata") if at == 2), "")
            elif number == 6:
                raw_stats.append(value)
        plane.lines = [self._line(line, names, stats) for line in lines]
        return plane

    def _metadata(self, message: memoryview) -> tuple[str, dict[int, Value]]:
        """Return an event's name, and the statistics that all of its kind have."""
        name = display = ""
        stats: dict[int, Value] = {}
        for number, value in _fields(message, "event_metadata"):
            if number == 2:
                name = _text(value)
            elif number == 4:
                display = _text(value)
            elif number == 5:
                key, stat = _stat(_part(value, "stats"))
                stats[key] = stat
        return name or display, stats

    def _line(self, message: memoryview, names: dict[int, tuple[str, dict[int, Value]]], stats: dict[int, str]) -> Line:
        line, timestamp_ns, events = Line(""), 0, []
        for number, value in _fields(message, "a line"):
            if number == 2 or (number == 11 and value):
                line.name = _text(value)
            elif number == 3:
                timestamp_ns = _number(value)
            elif number == 4:
                events.append(_part(value, "events"))
        self._events += len(events)
        if self._events > _MOST_EVENTS:
            raise _Damaged(f"more than {_MOST_EVENTS:,} events; profile fewer steps")
        line.events = [self._event(event, timestamp_ns, names, stats) for event in events]
        return line

    def _event(
        self,
        message: memoryview,
        timestamp_ns: int,
        names: dict[int, tuple[str, dict[int, Value]]],
        stats: dict[int, str],
    ) -> Event:
        kind = offset = duration = 0
        own: dict[int, Value] = {}
        for number, value in _fields(message, "an event"):
            if number == 1:
                kind = _number(value)
            elif number == 2:
                offset = _signed(_number(value))
            elif number == 3:
                duration = _signed(_number(value))
            elif number == 4:
                key, stat = _stat(_part(value, "stats"))
                own[key] = stat
        name, common = names.get(kind, ("", {}))
        if duration < 0:
            raise _Damaged(f"the event '{name:.40}' lasts {duration} ps")
        start = timestamp_ns * 1e-9 + offset * 1e-12
        every = {stats.get(key, ""): self._value(stat, stats) for key, stat in (common | own).items()}
        return Event(name, start, start + duration * 1e-12, every)

    @staticmethod
    def _value(stat: Value, stats: dict[int, str]) -> Value:
        return stats.get(stat.key, "") if isinstance(stat, _Reference) else stat


class _Reference(int):
    """A statistic's value that is the name of another."""

    @property
    def key(self) -> int:
        return int(self)


def _stat(message: memoryview) -> tuple[int, Value]:
    key = 0
    found: Value = 0
    for number, value in _fields(message, "a statistic"):
        if number == 1:
            key = _number(value)
        elif number == 2:
            if not isinstance(value, memoryview) or len(value) != 8:
                raise _Damaged("a statistic's number has not 8 bytes")
            found = struct.unpack("<d", value)[0]
        elif number in (3, 4):
            found = _number(value) if number == 3 else _signed(_number(value))
        elif number == 5:
            found = _text(value)
        elif number == 6:
            found = bytes(_part(value, "bytes_value"))
        elif number == 7:
            found = _Reference(_number(value))
    return key, found


def _entry(value: int | memoryview) -> tuple[int, memoryview]:
    """Return key and value of an entry of a map."""
    key, inner = 0, memoryview(b"")
    for number, one in _fields(_part(value, "an entry"), "an entry"):
        if number == 1:
            key = _number(one)
        elif number == 2:
            inner = _part(one, "an entry's value")
    return key, inner


def _fields(message: memoryview, what: str) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a message: numbers, and for other wire types their bytes."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at, what)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise _Damaged(f"{what} has a field 0")
        if kind == 0:
            value, at = _varint(message, at, what)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(message, at, what)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise _Damaged(f"{what} has a field of wire type {kind}")
        if length > end - at:
            raise _Damaged(f"{what} ends {length - (end - at):,} bytes too early")
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int, what: str) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message):
            raise _Damaged(f"{what} ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise _Damaged(f"{what} has a number of more than 10 bytes")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise _Damaged("text stands where a number belongs")
    return value


def _part(value: int | memoryview, what: str) -> memoryview:
    if isinstance(value, int):
        raise _Damaged(f"a number stands where {what} belongs")
    return value


def _text(value: int | memoryview) -> str:
    return str(_part(value, "a name"), "utf-8", "replace")
