"""Reads the profiles of TensorFlow and JAX (XPlane): a protocol buffer of planes, lines and events.

The schema is https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto (Apache
License 2.0), of which the messages below have the fields that are needed. Names are bytes there: those of kernels
need not be UTF-8. Times of events are picoseconds since their line's timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._internal.documents import read_packed
from paceline.errors import InvalidArgumentError
from paceline.interop.protocol_buffers import Field, message_classes, need_protobuf

if TYPE_CHECKING:
    from google.protobuf.message import Message

_MOST_BYTES = 2_000_000_000
_MOST_EVENTS = 20_000_000
_EMPTY_EVENT = b"\x22\x00"
_WHOLE = "a whole file of tf.profiler (plugins/profile/…/HOST.xplane.pb)"

Value = int | float | str | bytes
"""The value of a statistic."""
Kinds = dict[int, tuple[str, dict[str, Value]]]
"""Names of events, and the statistics that all of a name have."""


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
    """The bytes are no message of this kind, or too many."""


@cache
def _classes() -> dict[str, type[Message]]:
    """Return the schema's messages by name. Planes, lines and events are bytes: each is parsed when it is needed."""
    return message_classes(
        "tensorflow.profiler",
        {
            "XSpace": [Field("planes", 1, "bytes", repeated=True)],
            "XPlane": [
                Field("name", 2, "bytes"),
                Field("lines", 3, "bytes", repeated=True),
                Field("event_metadata", 4, "EventEntry", repeated=True),
                Field("stat_metadata", 5, "StatEntry", repeated=True),
            ],
            "EventEntry": [Field("key", 1, "int64"), Field("value", 2, "XEventMetadata")],
            "XEventMetadata": [
                Field("name", 2, "bytes"),
                Field("display_name", 4, "bytes"),
                Field("stats", 5, "XStat", repeated=True),
            ],
            "StatEntry": [Field("key", 1, "int64"), Field("value", 2, "XStatMetadata")],
            "XStatMetadata": [Field("name", 2, "bytes")],
            "XLine": [
                Field("name", 2, "bytes"),
                Field("timestamp_ns", 3, "int64"),
                Field("events", 4, "bytes", repeated=True),
                Field("display_name", 11, "bytes"),
            ],
            "XEvent": [
                Field("metadata_id", 1, "int64"),
                Field("offset_ps", 2, "int64"),
                Field("duration_ps", 3, "int64"),
                Field("stats", 4, "XStat", repeated=True),
            ],
            "XStat": [
                Field("metadata_id", 1, "int64"),
                Field("double_value", 2, "double", oneof="value"),
                Field("uint64_value", 3, "uint64", oneof="value"),
                Field("int64_value", 4, "int64", oneof="value"),
                Field("str_value", 5, "bytes", oneof="value"),
                Field("bytes_value", 6, "bytes", oneof="value"),
                Field("ref_value", 7, "uint64", oneof="value"),
            ],
        },
    )


def read_xplane(path: Path) -> list[Plane]:
    """Return the planes of a file. Raises InvalidArgumentError, without protobuf, too."""
    need_protobuf("Profiles (.xplane.pb)")
    content = read_packed(path, _MOST_BYTES, "an .xplane.pb file")
    try:
        # An event takes memory even if it is empty, which is two bytes here.
        if content.count(_EMPTY_EVENT) > _MOST_EVENTS:
            raise _Damaged(f"more than {_MOST_EVENTS:,} events are empty")
        planes = _Reader().planes(content)
    except _Damaged as error:
        raise InvalidArgumentError(f"{path}: is not XPlane: {error}", remedy=_WHOLE) from None
    if not planes:
        raise InvalidArgumentError(f"{path}: is not XPlane: it has no planes", remedy=_WHOLE)
    return planes


class _Reader:
    def __init__(self) -> None:
        self._message = _classes()
        self._events = 0

    def _parsed(self, kind: str, content: bytes, what: str) -> Any:  # noqa: ANN401
        from google.protobuf.message import DecodeError

        try:
            return self._message[kind].FromString(content)
        except DecodeError as error:
            raise _Damaged(f"{what} is damaged or ends too early ({error})") from None

    def planes(self, content: bytes) -> list[Plane]:
        """Return the planes of a file's content."""
        return [self._plane(plane) for plane in self._parsed("XSpace", content, "the file").planes]

    def _plane(self, content: bytes) -> Plane:
        plane = self._parsed("XPlane", content, "a plane")
        stats = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
        # An event's name, and the statistics that all of its kind have.
        kinds = {
            entry.key: (_text(entry.value.name or entry.value.display_name), _values(entry.value.stats, stats))
            for entry in plane.event_metadata
        }
        return Plane(_text(plane.name), [self._line(line, kinds, stats) for line in plane.lines])

    def _line(self, content: bytes, kinds: Kinds, stats: Mapping[int, str]) -> Line:
        line = self._parsed("XLine", content, "a line")
        self._events += len(line.events)
        if self._events > _MOST_EVENTS:
            raise _Damaged(f"more than {_MOST_EVENTS:,} events; profile fewer steps")
        start = line.timestamp_ns * 1e-9
        return Line(
            _text(line.display_name or line.name), [self._event(event, start, kinds, stats) for event in line.events]
        )

    def _event(self, content: bytes, line_start: float, kinds: Kinds, stats: Mapping[int, str]) -> Event:
        event = self._parsed("XEvent", content, "an event")
        name, common = kinds.get(event.metadata_id, ("", {}))
        if event.duration_ps < 0:
            raise _Damaged(f"the event '{name:.40}' lasts {event.duration_ps} ps")
        start = line_start + event.offset_ps * 1e-12
        return Event(name, start, start + event.duration_ps * 1e-12, common | _values(event.stats, stats))


def _values(stats: Iterable[Any], names: Mapping[int, str]) -> dict[str, Value]:
    """Return statistics by name; the value of some is the name of another."""
    values: dict[str, Value] = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        value: Value = 0 if kind is None else getattr(stat, kind)
        if kind == "ref_value":
            value = names.get(int(value), "")
        elif kind == "str_value":
            value = _text(value)  # type: ignore[arg-type]
        values[names.get(stat.metadata_id, "")] = value
    return values


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
