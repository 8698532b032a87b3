"""Reads and writes Chakra execution traces: length-prefixed protocol buffers, one file a rank.

The schema is MLCommons' schema/protobuf/et_def.proto (https://github.com/mlcommons/chakra, Apache License 2.0); the
messages below have all its fields but a node's inputs and outputs. An attribute's value has one field, and then one
for a list, for each type of `SCALARS`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._internal.documents import read_packed
from paceline.errors import InvalidArgumentError
from paceline.interop.protocol_buffers import SCALARS, Field, message_classes, need_protobuf

if TYPE_CHECKING:
    from google.protobuf.message import Message

_MOST_BYTES = 2_000_000_000
_MOST_NODES = 5_000_000
"""Of a rank: a step of a large model has some hundred thousand."""
_MOST_EMPTY = 1000
_BLANKS = 4096


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


_TRACES = "Chakra execution traces"


@cache
def _classes() -> dict[str, type[Message]]:
    """Return the schema's messages by name."""
    values = [
        one
        for place, scalar in enumerate(SCALARS)
        for one in (
            Field(f"{scalar}_val", 3 + 2 * place, scalar, oneof="value"),
            Field(f"{scalar}_list", 4 + 2 * place, f"{scalar.capitalize()}List", oneof="value"),
        )
    ]
    lists = {f"{scalar.capitalize()}List": [Field("values", 1, scalar, repeated=True)] for scalar in SCALARS}
    attributes = "AttributeProto"
    return message_classes(
        "ChakraProtoMsg",
        {
            **lists,
            attributes: [Field("name", 1, "string"), Field("doc_string", 2, "string"), *values],
            "Node": [
                Field("id", 1, "uint64"),
                Field("name", 2, "string"),
                Field("type", 3, "int32"),
                Field("ctrl_deps", 4, "uint64", repeated=True),
                Field("data_deps", 5, "uint64", repeated=True),
                Field("start_time_micros", 6, "uint64"),
                Field("duration_micros", 7, "uint64"),
                Field("attr", 10, attributes, repeated=True),
            ],
            "GlobalMetadata": [Field("version", 1, "string"), Field("attr", 2, attributes, repeated=True)],
        },
    )


def write(path: Path, trace: ExecutionTrace) -> None:
    """Write a file. Raises InvalidArgumentError without protobuf."""
    need_protobuf(_TRACES)
    from google.protobuf.proto import serialize_length_prefixed

    classes = _classes()
    with path.open("wb") as file:
        metadata: Any = classes["GlobalMetadata"](version=trace.version)
        _fill(metadata.attr, trace.attributes)
        serialize_length_prefixed(metadata, file)
        for node in trace.nodes:
            message: Any = classes["Node"](
                id=node.id,
                name=node.name,
                type=node.type,
                ctrl_deps=node.ctrl_deps,
                data_deps=node.data_deps,
                start_time_micros=node.start_us,
                duration_micros=node.duration_us,
            )
            _fill(message.attr, node.attributes)
            serialize_length_prefixed(message, file)


def _fill(messages: Any, attributes: Mapping[str, Attribute]) -> None:  # noqa: ANN401 - a repeated field
    for name, attribute in attributes.items():
        message = messages.add(name=name)
        if attribute.kind.endswith("_list"):
            values = getattr(message, attribute.kind)
            values.SetInParent()  # An empty list is one, too.
            values.values.extend(attribute.value)
        else:
            setattr(message, attribute.kind, attribute.value)


def read(path: Path) -> ExecutionTrace:
    """Return a file's content. Raises InvalidArgumentError."""
    messages = _messages(path, _content(path))
    first = next(messages, None)
    if first is None:
        raise InvalidArgumentError(f"{path}: is empty", remedy="a Chakra execution trace (.et)")
    return ExecutionTrace(first.version, _attributes(first), [_node(message) for message in messages])


def _messages(path: Path, content: bytes) -> Iterator[Any]:
    """Yield the metadata and the nodes."""
    need_protobuf(_TRACES)
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    classes = _classes()
    stream, kind, count, empty = io.BytesIO(content), classes["GlobalMetadata"], 0, 0
    while True:
        begin = stream.tell()
        try:
            message = parse_length_prefixed(kind, stream)
        except (DecodeError, ValueError, EOFError) as error:
            where = f"node {count - 1} (from 0)" if count else "its first message"
            raise InvalidArgumentError(
                f"{path}: {where}, at byte {begin}: {error}",
                remedy="a whole Chakra execution trace of et_def.proto (.et)",
            ) from error
        if message is None:
            return
        if count > _MOST_NODES:
            raise InvalidArgumentError(f"{path}: has more than {_MOST_NODES:,} nodes", remedy="fewer steps")
        # A node of zeros is one byte, and a file of them would be as many nodes.
        empty = empty + 1 if stream.tell() == begin + 1 else 0
        if empty > _MOST_EMPTY:
            raise InvalidArgumentError(
                f"{path}: node {count - 1} (from 0), at byte {begin}, is empty, like the {_MOST_EMPTY} before it",
                remedy="a Chakra execution trace of et_def.proto (.et)",
            )
        yield message
        kind, count = classes["Node"], count + 1


def _node(message: Any) -> Node:  # noqa: ANN401
    return Node(
        message.id,
        message.name,
        message.type,
        list(message.data_deps),
        list(message.ctrl_deps),
        message.start_time_micros,
        message.duration_micros,
        _attributes(message),
    )


def _attributes(message: Any) -> dict[str, Attribute]:  # noqa: ANN401
    attributes = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            value = getattr(attribute, kind)
            attributes[attribute.name] = Attribute(kind, list(value.values) if kind.endswith("_list") else value)
    return attributes


def _content(path: Path) -> bytes:
    content = read_packed(path, _MOST_BYTES, "the .et files")
    if content[:_BLANKS].lstrip()[:1] == b"{":
        raise InvalidArgumentError(
            f"{path}: is JSON, not Chakra's protocol buffers (.et)",
            remedy=f"paceline import kineto {path} (torch.profiler's JSON)",
        )
    return content
