"""Reads and writes Chakra execution traces: length-prefixed protocol buffers, one file a rank.

The schema is MLCommons' schema/protobuf/et_def.proto (https://github.com/mlcommons/chakra, Apache License 2.0); the
numbers below are its field numbers. The wire format is that of https://protobuf.dev/programming-guides/encoding/. It is
written out here because Paceline needs three messages of it and otherwise no library for protocol buffers.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import InvalidArgumentError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_BYTES = 2_000_000_000


class NodeType(IntEnum):
    """Kinds of nodes."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


COLLECTIVES = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "reduce-scatter",
    "barrier",
)
"""`CollectiveCommType` by its number."""
ALL_REDUCE = 0


@dataclass(frozen=True)
class Attribute:
    """A value with the name of its field in `AttributeProto`, such as `int64_val`."""

    kind: str
    value: Any


@dataclass
class Node:
    """A node of the graph. Times are microseconds."""

    id: int
    name: str
    type: int
    data_deps: list[int] = field(default_factory=list)
    ctrl_deps: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def value(self, name: str) -> Any:  # noqa: ANN401
        """Return the value of an attribute; None if there is none."""
        attribute = self.attributes.get(name)
        return None if attribute is None else attribute.value


@dataclass
class ExecutionTrace:
    """A file: its metadata and its nodes in the file's order."""

    version: str
    attributes: dict[str, Attribute]
    nodes: list[Node]


_SCALARS: dict[int, tuple[str, int, str]] = {
    3: ("double", _FIXED64, "<d"),
    5: ("float", _FIXED32, "<f"),
    7: ("int32", _VARINT, "signed"),
    9: ("int64", _VARINT, "signed"),
    11: ("uint32", _VARINT, ""),
    13: ("uint64", _VARINT, ""),
    15: ("sint32", _VARINT, "zigzag"),
    17: ("sint64", _VARINT, "zigzag"),
    19: ("fixed32", _FIXED32, "<I"),
    21: ("fixed64", _FIXED64, "<Q"),
    23: ("sfixed32", _FIXED32, "<i"),
    25: ("sfixed64", _FIXED64, "<q"),
    27: ("bool", _VARINT, "bool"),
    29: ("string", _LENGTH, "text"),
    31: ("bytes", _LENGTH, ""),
}
"""`AttributeProto.value` by field number: type, wire type, form. The number after it is the list of that type."""

_NUMBERS = {f"{name}_val": number for number, (name, _, _) in _SCALARS.items()} | {
    f"{name}_list": number + 1 for number, (name, _, _) in _SCALARS.items()
}


def write(path: Path, trace: ExecutionTrace) -> None:
    """Write a file."""
    with path.open("wb") as file:
        file.write(_delimited(_metadata_bytes(trace)))
        for node in trace.nodes:
            file.write(_delimited(_node_bytes(node)))


def read(path: Path) -> ExecutionTrace:
    """Return a file's content. Raises InvalidArgumentError."""
    content = _content(path)
    messages = list(_messages(path, content))
    if not messages:
        raise InvalidArgumentError(f"{path}: is empty; expected a Chakra execution trace (.et)")
    metadata = ExecutionTrace("", {}, [])
    try:
        for number, value in _fields(messages[0]):
            if number == 1:
                metadata.version = _text(value)
            elif number == 2:
                name, attribute = _attribute(value)
                metadata.attributes[name] = attribute
        for message in messages[1:]:
            metadata.nodes.append(_node(message))
    except _MalformedError as error:
        where = f"node {len(metadata.nodes)} (from 0)" if metadata.version or metadata.nodes else "its first message"
        raise InvalidArgumentError(
            f"{path}: {where}: {error}; expected a Chakra execution trace of schema et_def.proto (.et)"
        ) from error
    return metadata


class _MalformedError(Exception):
    """The bytes are not a message of the schema."""


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise InvalidArgumentError(f"{path}: is a folder; name the .et files in it")
    if not path.exists():
        raise InvalidArgumentError(f"{path}: there is no such file; check the path")
    if path.stat().st_size > _MOST_BYTES:
        raise InvalidArgumentError(f"{path}: has more than 2 GB; convert fewer steps")
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidArgumentError(f"{path}: the gzip file is damaged ({error}); copy it again") from error
    if content.lstrip()[:1] == b"{":
        raise InvalidArgumentError(
            f"{path}: is JSON; give Chakra's protocol buffers (.et), or torch.profiler's JSON to paceline import-kineto"
        )
    return content


def _messages(path: Path, content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        try:
            size, begin = _varint(content, at)
        except _MalformedError:
            size, begin = len(content), at
        if begin + size > len(content):
            raise InvalidArgumentError(
                f"{path}: ends in the middle of a message at byte {at}; it is not a Chakra execution trace (.et), or "
                "incomplete: copy it again"
            )
        yield content[begin : begin + size]
        at = begin + size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            _malformed("a number does not end")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & (1 << 64) - 1, at
        shift += 7


def _malformed(why: str) -> NoReturn:
    raise _MalformedError(why)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield field numbers with an integer, or the bytes of what has a length or is fixed."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _LENGTH:
            size, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            _malformed(f"field {number} has wire type {wire}")
        if at + size > len(message):
            _malformed(f"field {number} is longer than its message")
        yield number, message[at : at + size]
        at += size


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        _malformed("a text is a number")
    try:
        return value.decode()
    except UnicodeDecodeError:
        _malformed("a text is not UTF-8")


def _integer(value: object) -> int:
    if not isinstance(value, int):
        _malformed("a number is not a varint")
    return value


def _scalar(number: int, value: object) -> Any:  # noqa: ANN401
    _, wire, form = _SCALARS[number]
    if wire == _VARINT:
        plain = _integer(value)
        if form == "bool":
            return bool(plain)
        if form == "signed":
            return plain - (1 << 64) if plain >> 63 else plain
        return (plain >> 1) ^ -(plain & 1) if form == "zigzag" else plain
    if not isinstance(value, bytes):
        _malformed("a value has the wrong wire type")
    if wire == _LENGTH:
        return _text(value) if form == "text" else value
    if len(value) != struct.calcsize(form):
        _malformed("a value has the wrong length")
    return struct.unpack(form, value)[0]


def _repeated(number: int, message: object) -> list[Any]:
    if not isinstance(message, bytes):
        _malformed("a list is a number")
    _, wire, form = _SCALARS[number]
    values: list[Any] = []
    for key, value in _fields(message):
        if key != 1:
            continue
        if wire == _LENGTH or isinstance(value, int):
            values.append(_scalar(number, value))
        elif wire == _VARINT:  # Packed, as proto3 does by default.
            values += [_scalar(number, plain) for plain in _packed(value)]
        else:
            width = struct.calcsize(form)
            values += [_scalar(number, value[i : i + width]) for i in range(0, len(value), width)]
    return values


def _packed(value: bytes) -> Iterator[int]:
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _attribute(message: object) -> tuple[str, Attribute]:
    if not isinstance(message, bytes):
        _malformed("an attribute is a number")
    name, found = "", Attribute("", None)
    for number, value in _fields(message):
        if number == 1:
            name = _text(value)
        elif number in _SCALARS:
            found = Attribute(f"{_SCALARS[number][0]}_val", _scalar(number, value))
        elif number - 1 in _SCALARS:
            found = Attribute(f"{_SCALARS[number - 1][0]}_list", _repeated(number - 1, value))
    return name, found


def _node(message: bytes) -> Node:
    node = Node(0, "", 0)
    for number, value in _fields(message):
        if number == 1:
            node.id = _integer(value)
        elif number == 2:
            node.name = _text(value)
        elif number == 3:
            node.type = _integer(value)
        elif number in (4, 5):
            ids = node.ctrl_deps if number == 4 else node.data_deps
            ids += [value] if isinstance(value, int) else list(_packed(value))
        elif number == 6:
            node.start_us = _integer(value)
        elif number == 7:
            node.duration_us = _integer(value)
        elif number == 10:
            name, attribute = _attribute(value)
            node.attributes[name] = attribute
    return node


def _encoded(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(message: bytes) -> bytes:
    return _encoded(len(message)) + message


def _field(number: int, wire: int, content: bytes) -> bytes:
    key = _encoded(number << 3 | wire)
    return key + (_delimited(content) if wire == _LENGTH else content)


def _scalar_bytes(number: int, value: Any) -> bytes:  # noqa: ANN401
    _, wire, form = _SCALARS[number]
    if wire == _VARINT:
        plain = int(value)
        return _encoded((plain << 1) ^ (plain >> 63) if form == "zigzag" else plain)
    if wire == _LENGTH:
        return value.encode() if form == "text" else bytes(value)
    return struct.pack(form, value)


def _attribute_bytes(name: str, attribute: Attribute) -> bytes:
    number = _NUMBERS[attribute.kind]
    if number in _SCALARS:
        value = _field(number, _SCALARS[number][1], _scalar_bytes(number, attribute.value))
    else:
        value = _field(number, _LENGTH, _list_bytes(number - 1, attribute.value))
    return _field(1, _LENGTH, name.encode()) + value


def _list_bytes(number: int, values: Sequence[Any]) -> bytes:
    if _SCALARS[number][1] == _LENGTH:
        return b"".join(_field(1, _LENGTH, _scalar_bytes(number, value)) for value in values)
    return _field(1, _LENGTH, b"".join(_scalar_bytes(number, value) for value in values))


def _metadata_bytes(trace: ExecutionTrace) -> bytes:
    return _field(1, _LENGTH, trace.version.encode()) + b"".join(
        _field(2, _LENGTH, _attribute_bytes(name, attribute)) for name, attribute in trace.attributes.items()
    )


def _node_bytes(node: Node) -> bytes:
    def ids(number: int, values: Iterable[int]) -> bytes:
        packed = b"".join(_encoded(value) for value in values)
        return _field(number, _LENGTH, packed) if packed else b""

    return b"".join(
        [
            _field(1, _VARINT, _encoded(node.id)),
            _field(2, _LENGTH, node.name.encode()),
            _field(3, _VARINT, _encoded(node.type)),
            ids(4, node.ctrl_deps),
            ids(5, node.data_deps),
            _field(6, _VARINT, _encoded(node.start_us)),
            _field(7, _VARINT, _encoded(node.duration_us)),
            *(_field(10, _LENGTH, _attribute_bytes(name, value)) for name, value in node.attributes.items()),
        ]
    )
