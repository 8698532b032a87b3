"""Messages of protocol buffers that are described in Python, for google.protobuf's runtime.

Generated code runs only with the releases of protobuf for which it was generated. A description runs with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline._internal.extras import install
from paceline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from google.protobuf.message import Message

SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)


class Field(NamedTuple):
    """A field of a message. Its kind is one of `SCALARS`, or the name of a message."""

    name: str
    number: int
    kind: str
    repeated: bool = False
    oneof: str | None = None


def need_protobuf(what: str) -> None:
    """Raise InvalidArgumentError without protobuf. `what`: what needs it, as the subject of a sentence, in plural."""
    try:
        from google.protobuf import proto  # noqa: F401 - in protobuf 5.29 and newer
    except ImportError as error:
        raise InvalidArgumentError(f"{what} need protobuf 5.29 or newer ({error})", remedy=install("chakra")) from None


def message_classes(package: str, described: Mapping[str, Sequence[Field]]) -> dict[str, type[Message]]:
    """Return the classes of messages by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in described.items():
        message = file.message_type.add(name=name)
        oneofs = list(dict.fromkeys(one.oneof for one in fields if one.oneof is not None))
        for oneof in oneofs:
            message.oneof_decl.add(name=oneof)
        for one in fields:
            scalar = one.kind in SCALARS
            field = message.field.add(
                name=one.name, number=one.number, label="LABEL_REPEATED" if one.repeated else "LABEL_OPTIONAL"
            )
            if scalar:
                field.type = getattr(field, f"TYPE_{one.kind.upper()}")
            else:
                field.type_name = f".{package}.{one.kind}"
            if one.oneof is not None:
                field.oneof_index = oneofs.index(one.oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in described
    }
