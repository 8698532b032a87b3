"""The messages between workers and servers: plain numbers and JSON, checked before memory is taken.

Every request is a message of `REQUEST` bytes under the tag `CONTROL`. Those that carry data announce it, so that the
server knows what to receive: model and weights, or one gradient, under the tag `DATA`. Answers begin with a message of
`REPLY` bytes. Messages between two processes under one tag arrive in order.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from math import prod
from typing import Any

from paceline.errors import JobError

GROUP = "asynchronous training"
"""The group of workers and servers, as messages call it."""
CONTROL, DATA, REPLY, TEXT, WEIGHTS = range(5)
"""Tags of messages."""
MOST_NUMBERS = 16
"""Options of an optimizer that travel with each gradient."""
MOST_TEXT = 64 << 20
"""Bytes of the description of a model."""
MOST_BYTES = 1 << 40
"""Bytes of the tensors of a model for which a server takes memory."""
DTYPES: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Types of parameters, and the bytes of an element."""

_REQUEST = struct.Struct(f"<6q{MOST_NUMBERS}d")
_REPLY = struct.Struct("<3q")
REQUEST, REPLY_BYTES = _REQUEST.size, _REPLY.size


class Kind(IntEnum):
    """The kinds of requests."""

    MODEL = 1
    """Take part in the training of a model; with its description, and from worker 0 with weights and states."""
    PUSH = 2
    """Apply a gradient, which follows."""
    PULL = 3
    """Send the parameters once the next iteration may start."""
    STATES = 4
    """Send the optimizer's states."""
    REPORT = 5
    """Send what was applied: staleness and, if it is recorded, the order."""
    FINISH = 6
    """Wait for this worker no more: it pushes nothing more."""
    LEAVE = 7
    """The same; and this worker requests nothing more."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of a worker."""

    kind: Kind
    model: int = 0
    """Which of the worker's optimizers, in the order of their creation."""
    part: int = 0
    """PUSH: the part, as an index into the server's own."""
    iteration: int = 0
    """PUSH: the worker's iteration, from 0. PULL: the one that it is to start."""
    pushes: int = 0
    """PULL: gradients that it has pushed in the iteration that it ends."""
    size: int = 0
    """MODEL: bytes of the description. REPORT: 1 for the order, too."""
    numbers: Sequence[float] = ()
    """PUSH: the optimizer's options, in the order of its rule."""

    def packed(self) -> bytearray:
        """Return the message."""
        numbers = [*self.numbers, *[0.0] * (MOST_NUMBERS - len(self.numbers))]
        head = (self.kind, self.model, self.part, self.iteration, self.pushes, self.size)
        return bytearray(_REQUEST.pack(*head, *numbers))

    @classmethod
    def parsed(cls, message: bytes | bytearray) -> Request:
        """Return the request of a message of `REQUEST` bytes. Raises JobError for one that no worker sends."""
        kind, model, part, iteration, pushes, size, *numbers = _REQUEST.unpack(message)
        if kind not in iter(Kind) or min(model, part, iteration, pushes, size) < 0:
            raise JobError(f"a message that no worker sends: {bytes(message[:48]).hex()}", remedy=_SAME)
        return cls(
            kind=Kind(kind), model=model, part=part, iteration=iteration, pushes=pushes, size=size, numbers=numbers
        )


_SAME = "the same version of paceline in all processes"


@dataclass(frozen=True)
class Reply:
    """The beginning of an answer."""

    failed: bool
    size: int = 0
    """Bytes of text that follow: JSON, or what failed."""
    remedy: int = 0
    """If it failed: how many of these bytes, at the end, are the remedy."""

    def packed(self) -> bytearray:
        """Return the message."""
        return bytearray(_REPLY.pack(self.failed, self.size, self.remedy))

    @classmethod
    def parsed(cls, message: bytes | bytearray) -> Reply:
        """Return the reply of a message. Raises JobError for one that no server sends."""
        failed, size, remedy = _REPLY.unpack(message)
        if failed not in (0, 1) or not 0 <= remedy <= size <= MOST_TEXT:
            raise JobError(f"a message that no server sends: {bytes(message).hex()}", remedy=_SAME)
        return cls(bool(failed), size, remedy)


@dataclass(frozen=True)
class TensorSpec:
    """A parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int
    """The optimizer's parameter group."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        """Return its description for messages."""
        return f"'{self.name}' as {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Part:
    """The elements of a tensor on one server: all, or with the placement `even` a share."""

    tensor: int
    start: int
    count: int


@dataclass(frozen=True)
class ModelSpec:
    """The description of what one optimizer trains, for one server."""

    rule: str
    """Name of the optimizer in `rules`."""
    flags: tuple[dict[str, bool], ...]
    """By parameter group: options that do not change."""
    tensors: tuple[TensorSpec, ...]
    parts: tuple[Part, ...]
    """Those of this server, in the order of its memory."""
    staleness: int | None
    """Bound on staleness in iterations; None: none."""
    records_order: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of this server's parts."""
        return sum(part.count * DTYPES[self.tensors[part.tensor].dtype] for part in self.parts)

    def packed(self, states: Sequence[State], digest: str) -> bytes:
        """Return it as JSON, with the states that follow the weights, and a digest of the weights."""
        document = {**asdict(self), "states": [asdict(state) for state in states], "digest": digest}
        return json.dumps(document).encode()


@dataclass(frozen=True)
class State:
    """One state of one part: a number, or a tensor of the part's shape and dtype, which follows."""

    part: int
    key: str
    number: float | None = None


@dataclass(frozen=True)
class Registration:
    """A worker's request to take part."""

    spec: ModelSpec
    states: tuple[State, ...]
    digest: str

    @classmethod
    def parsed(cls, text: bytes) -> Registration:
        """Return the registration of JSON. Raises JobError that names the field."""
        try:
            document = json.loads(text)
            spec = _spec(document)
            states = tuple(_state(each, spec) for each in document["states"])
            digest = _checked(document["digest"], str, "digest")
        except (KeyError, TypeError, ValueError, RecursionError, IndexError, AttributeError) as error:
            raise JobError(
                f"a description of a model that no worker sends: {type(error).__name__}: {error}", remedy=_SAME
            ) from None
        return cls(spec, states, digest)


def _checked(value: Any, kind: type, field: str) -> Any:  # noqa: ANN401 - JSON
    if type(value) is not kind:
        raise ValueError(f"{field}: {value!r:.80}")
    return value


def _count(value: Any, field: str) -> int:  # noqa: ANN401 - JSON
    if type(value) is not int or not 0 <= value <= MOST_BYTES:
        raise ValueError(f"{field}: {value!r:.80}")
    return value


def _spec(document: dict[str, Any]) -> ModelSpec:
    flags = tuple(
        {_checked(key, str, "flags"): _checked(value, bool, f"flags.{key}") for key, value in group.items()}
        for group in document["flags"]
    )
    tensors = tuple(_tensor(each, len(flags)) for each in document["tensors"])
    parts = tuple(_part(each, tensors) for each in document["parts"])
    staleness = document["staleness"]
    spec = ModelSpec(
        rule=_checked(document["rule"], str, "rule"),
        flags=flags,
        tensors=tensors,
        parts=parts,
        staleness=None if staleness is None else _count(staleness, "staleness"),
        records_order=_checked(document["records_order"], bool, "records_order"),
    )
    if spec.nbytes > MOST_BYTES:
        raise ValueError(f"parts: {spec.nbytes} bytes are more than a server holds")
    return spec


def _tensor(value: dict[str, Any], groups: int) -> TensorSpec:
    tensor = TensorSpec(
        name=_checked(value["name"], str, "name"),
        shape=tuple(_count(size, "shape") for size in value["shape"]),
        dtype=value["dtype"],
        group=_count(value["group"], "group"),
    )
    if tensor.dtype not in DTYPES or tensor.group >= groups or tensor.elements > MOST_BYTES:
        raise ValueError(f"tensors: {tensor}")
    return tensor


def _part(value: dict[str, Any], tensors: Sequence[TensorSpec]) -> Part:
    part = Part(*(_count(value[field], field) for field in ("tensor", "start", "count")))
    if part.start + part.count > tensors[part.tensor].elements:
        raise ValueError(f"parts: {part} exceeds {tensors[part.tensor]}")
    return part


def _state(value: dict[str, Any], spec: ModelSpec) -> State:
    part, number = _count(value["part"], "part"), value["number"]
    if part >= len(spec.parts) or not (number is None or type(number) in (int, float)):
        raise ValueError(f"states: {value!r:.80}")
    return State(part, _checked(value["key"], str, "key"), number)


def digest(buffers: Iterable[memoryview]) -> str:
    """Return a digest of bytes in order, by which a server compares the parameters of workers."""
    made = hashlib.blake2b(digest_size=16)
    for buffer in buffers:
        made.update(buffer)
    return made.hexdigest()


def difference(one: ModelSpec, other: ModelSpec) -> str | None:
    """Return how a worker's model differs from another's, `here` and `there`; None if it does not."""
    if one.rule != other.rule:
        return f"{one.rule} here, {other.rule} there"
    if one.flags != other.flags:
        changed = next(((mine, its) for mine, its in zip(one.flags, other.flags, strict=False) if mine != its), None)
        return f"{changed[0]} here, {changed[1]} there" if changed else "other parameter groups"
    for mine, its in zip(one.tensors, other.tensors, strict=False):
        if mine != its:
            return f"{mine} here, {its} there"
    if len(one.tensors) != len(other.tensors):
        return f"{len(one.tensors)} parameters here, {len(other.tensors)} there"
    if one.staleness != other.staleness:
        return f"staleness {_limit(one.staleness)} here, {_limit(other.staleness)} there"
    return None if one == other else "other servers, or only one of them records the order"


def _limit(staleness: int | None) -> str:
    return "none" if staleness is None else str(staleness)
