"""Reads and writes Chakra execution traces: length-prefixed protocol buffers, one file a rank.

The schema is MLCommons' schema/protobuf/et_def.proto (https://github.com/mlcommons/chakra, Apache License 2.0); the
messages below have all its fields but a node's inputs and outputs. They are described here, not by generated code:
that runs only with the releases of protobuf for which it was generated.
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
from paceline._internal.extras import install
from paceline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from google.protobuf.message import Message

_MOST_BYTES = 2_000_000_000
_MOST_NODES = 5_000_000
"""Of a rank: a step of a large model has some hundred thousand."""
_MOST_EMPTY = 1000
_BLANKS = 4096
_PACKAGE = "ChakraProtoMsg"
_SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Types of an attribute's value. From field 3 on, each has a field and then one for a list."""


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


def _need_protobuf() -> None:
    try:
        from google.protobuf import proto  # noqa: F401 - in protobuf 5.29 and newer
    except ImportError as error:
        raise InvalidArgumentError(
            f"Chakra execution traces need protobuf 5.29 or newer ({error})", remedy=install("chakra")
        ) from None


@cache
def _classes() -> dict[str, type[Message]]:
    """Return the schema's messages by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")

    def add(message: Any, name: str, number: int, kind: str, **options: Any) -> None:  # noqa: ANN401
        options |= {"type": f"TYPE_{kind.upper()}"} if kind in _SCALARS else {"type_name": f".{_PACKAGE}.{kind}"}
        options.setdefault("label", "LABEL_OPTIONAL")
        message.field.add(name=name, number=number, **options)

    repeated = {"label": "LABEL_REPEATED"}
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    for place, scalar in enumerate(_SCALARS):
        values = f"{scalar.capitalize()}List"
        add(file.message_type.add(name=values), "values", 1, scalar, **repeated)
        add(attribute, f"{scalar}_val", 3 + 2 * place, scalar, oneof_index=0)
        add(attribute, f"{scalar}_list", 4 + 2 * place, values, oneof_index=0)
    node = file.message_type.add(name="Node")
    for number, (name, kind) in enumerate({"id": "uint64", "name": "string", "type": "int32"}.items(), 1):
        add(node, name, number, kind)
    add(node, "ctrl_deps", 4, "uint64", **repeated)
    add(node, "data_deps", 5, "uint64", **repeated)
    add(node, "start_time_micros", 6, "uint64")
    add(node, "duration_micros", 7, "uint64")
    add(node, "attr", 10, "AttributeProto", **repeated)
    metadata = file.message_type.add(name="GlobalMetadata")
    add(metadata, "version", 1, "string")
    add(metadata, "attr", 2, "AttributeProto", **repeated)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("GlobalMetadata", "Node")
    }


def write(path: Path, trace: ExecutionTrace) -> None:
    """Write a file. Raises InvalidArgumentError without protobuf."""
    _need_protobuf()
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
    _need_protobuf()
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
    found = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            value = getattr(attribute, kind)
            found[attribute.name] = Attribute(kind, list(value.values) if kind.endswith("_list") else value)
    return found


def _content(path: Path) -> bytes:
    content = read_packed(path, _MOST_BYTES, "the .et files")
    if content[:_BLANKS].lstrip()[:1] == b"{":
        raise InvalidArgumentError(
            f"{path}: is JSON, not Chakra's protocol buffers (.et)",
            remedy=f"paceline import kineto {path} (torch.profiler's JSON)",
        )
    return content
