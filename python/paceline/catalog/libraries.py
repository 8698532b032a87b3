"""Communication libraries: how they group, hand over and send gradients, from libraries/*.json.

A file names the library's strategy and its options, and holds constants, each with unit, source and uncertainty. One
that `extends` another says only what differs. `paceline list libraries` and docs/reference/libraries.md list them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._internal.nearest import nearest
from paceline.catalog.constants import Constant, checked_constants, read_document, value_of
from paceline.catalog.names import LibraryName
from paceline.catalog.nccl import RELEASE, RELEASES
from paceline.catalog.strategies import find_coordinator, find_strategy, unknown
from paceline.errors import InvalidArgumentError

_FOLDER = Path(__file__).parent / "libraries"
NONE, DEFAULT, COORDINATED = "none", "ddp", "horovod"
"""The bare schedule; what is forecast by default; and what is, if a coordinator is asked for."""
UNLIMITED = 2**40
"""A bucket of this many bytes holds any model: a library that exchanges all gradients at once has it."""
ALL_AT_ONCE = "all gradients at once"
UNITS: Mapping[str, str] = {
    "bucket_size": "bytes",
    "fused_per_cycle": "bytes",
    "fusion_threshold": "bytes",
    "call": "s per tensor",
    "agreement": "s per tensor and rank",
    "message_overhead": "s per message",
    "host_bandwidth": "bit/s",
    "polling": "s per byte and rank",
    "reduction_bandwidth": "bit/s",
    "intra_bandwidth": "bit/s",
    "streams": "connections between two nodes",
}
"""Units of all constants that a library may have."""
MEANING: Mapping[str, str] = {
    "bucket_size": "gradients are fused into buckets of up to this size",
    "fused_per_cycle": "gradients are fused as they become ready: the bytes of one cycle",
    "fusion_threshold": "the most that is fused",
    "call": "what handing over a gradient adds to the backward pass",
    "agreement": "the coordinator's time for a gradient, beside the backward pass",
    "message_overhead": "cost of a message at its sender, beside the channel's; not with `native`, which has its own, "
    "nor with `sharp`, whose pieces cards make",
    "host_bandwidth": "rate at which a rank copies between a GPU and the network",
    "polling": "what copying a byte takes longer for each rank of the job",
    "reduction_bandwidth": "rate at which a rank adds received data",
    "intra_bandwidth": "rate of a GPU inside its node, if below the node's",
    "streams": "TCP connections between two nodes",
}
_FIELDS = (
    "name",
    "summary",
    "family",
    "extends",
    "strategy",
    "coordinator",
    "channel",
    "servers",
    "nccl",
    "small",
    "options",
    "constants",
)


@dataclass(frozen=True)
class SmallMessages:
    """The strategy of small messages, where it is not the library's own."""

    to: int
    """The largest, in bytes."""
    strategy: str
    source: str


@dataclass(frozen=True)
class Library:
    """A library: its habits and constants."""

    name: LibraryName
    summary: str
    family: str
    """Libraries of one family move data alike, so measurements of one are evidence about the others."""
    strategy: str
    """The strategy that it uses by itself."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a forecast that it implies; those of a strategy only under its own."""
    channel: str = ""
    """The only channel that it supports; empty: the cluster's."""
    servers: str = ""
    """Where its parameter servers run; empty: as the cluster says."""
    coordinator: str = ""
    """The coordinator that its ranks agree through, whose usual cost is in its constants; empty: none."""
    nccl: str = ""
    """The release of NCCL that chooses under `native`; empty: the newest one that is known."""
    small: SmallMessages | None = None
    """How it exchanges small messages; None: as large ones."""
    constants: Mapping[str, Constant] = field(default_factory=dict)

    @property
    def spec(self) -> str:
        """Return the name, with the release of NCCL where it is not the newest: `ddp@2.8`."""
        return self.name if self.nccl in ("", RELEASE) else f"{self.name}@{self.nccl}"

    @property
    def is_bare(self) -> bool:
        """Whether it stands for the bare schedule."""
        return self.name == NONE

    def value(self, name: str) -> float | None:
        """Return a constant in SI units; None if the library has none of this name."""
        return value_of(self.constants[name]) if name in self.constants else None

    def native(self) -> _core.Library:
        """Return it in the form of the native module."""
        return _core.Library(
            self.name,
            self.strategy,
            server_place=self.servers or None,
            nccl=self.nccl or None,
            options=dict(self.options),
            constants={name: value_of(constant) for name, constant in self.constants.items()},
        )

    def for_message(self, size: float) -> Library:
        """Return the library with the strategy that it takes for one message of so many bytes."""
        if self.small is None or size > self.small.to:
            return self
        return replace(self, strategy=self.small.strategy)

    def scaled(self, name: str, factor: float) -> Library:
        """Return the library with a constant times a factor; the same library if it has none of this name."""
        if name not in self.constants:
            return self
        own = self.constants[name]
        return replace(self, constants={**self.constants, name: replace(own, value=own.value * factor)})

    def required(self, name: str) -> float:
        """Return a constant that the library has."""
        return value_of(self.constants[name])


@lru_cache(maxsize=1)
def library_names() -> tuple[str, ...]:
    """Return the names of all libraries, `none` first."""
    names = sorted(path.stem for path in _FOLDER.glob("*.json"))
    return (NONE, *(name for name in names if name != NONE))


@lru_cache(maxsize=64)
def find_library(name: str) -> Library:
    """Return the library of this name, or of a name and a release of NCCL: `ddp@2.8`.

    Raises InvalidArgumentError, which suggests a similar name or lists the releases.
    """
    typed, at, release = name.partition("@")
    name = typed.lower()
    if name not in library_names():
        near = nearest(name, library_names())
        raise unknown("library", name, [near] if near else [], "paceline list libraries")
    library = read_library(_FOLDER / f"{name}.json")
    if not at:
        return library
    if library.strategy != "native":
        raise InvalidArgumentError(f"{name} is not NCCL's and has no release of it", remedy=f"{{this={name}}}")
    _check_release(release, name)
    return replace(library, nccl=release)


def _check_release(release: str, where: str) -> None:
    if release not in RELEASES:
        raise InvalidArgumentError(
            f"{where}: unknown NCCL release '{release[:80]}'",
            remedy=f"{where}@{RELEASES[-1]} (known: {', '.join(RELEASES)})",
        )


def all_libraries() -> tuple[Library, ...]:
    """Return all libraries, `none` first."""
    return tuple(find_library(name) for name in library_names())


def read_library(path: Path) -> Library:
    """Read and check a library's file. Raises InvalidArgumentError, which names the file and the field."""
    own = read_document(path, "library")
    for name in own:
        if name not in _FIELDS:
            raise InvalidArgumentError(
                f"{path.name}: unknown field '{name[:80]}'", remedy=f"one of {', '.join(_FIELDS)}"
            )
    if own.get("name") != path.stem:
        raise InvalidArgumentError(
            f"{path.name}: name: must be the file's name, '{path.stem}'", remedy=f'"name": "{path.stem}"'
        )
    base = find_library(own["extends"]) if "extends" in own else None
    constants = checked_constants(own.get("constants", []), path.name, UNITS)
    library = Library(
        name=own["name"],
        summary=own.get("summary", ""),
        family=own.get("family", base.family if base else ""),
        strategy=own.get("strategy", base.strategy if base else ""),
        options={**(base.options if base else {}), **own.get("options", {})},
        channel=own.get("channel", base.channel if base else ""),
        servers=own.get("servers", base.servers if base else ""),
        coordinator=own.get("coordinator", base.coordinator if base else ""),
        nccl=own.get("nccl", base.nccl if base else ""),
        small=_small(own["small"], path.name) if "small" in own else base.small if base else None,
        constants={**(base.constants if base else {}), **constants},
    )
    _check(library, path.name)
    return library


def _small(value: object, where: str) -> SmallMessages:
    example = '"small": {"to": 2048, "strategy": "recursive-doubling", "source": "…"}'
    if not isinstance(value, dict) or sorted(value) != ["source", "strategy", "to"]:
        raise InvalidArgumentError(f"{where}: small: needs to, strategy and source", remedy=example)
    to, strategy, source = value["to"], value["strategy"], value["source"]
    if not isinstance(to, int) or isinstance(to, bool) or not 0 < to < 2**40:
        raise InvalidArgumentError(f"{where}: small.to: must be bytes, above 0, not {str(to)[:80]}", remedy=example)
    if not isinstance(strategy, str) or not isinstance(source, str) or not source:
        raise InvalidArgumentError(f"{where}: small: strategy and source must be text", remedy=example)
    try:
        return SmallMessages(to, find_strategy(strategy).name, source)
    except InvalidArgumentError as error:
        raise error.within(f"{where}: small") from None


def _check(library: Library, where: str) -> None:
    for name in ("summary", "family"):
        if not getattr(library, name):
            raise InvalidArgumentError(f"{where}: {name}: is missing", remedy=f'"{name}": "…"')
    try:
        find_strategy(library.strategy)
        if library.coordinator:
            find_coordinator(library.coordinator)
    except InvalidArgumentError as error:
        raise error.within(where) from None
    if library.channel not in ("", "tcp", "rdma"):
        raise InvalidArgumentError(
            f"{where}: channel: unknown channel '{library.channel}'", remedy='"channel": "tcp" (or rdma)'
        )
    if library.nccl:
        _check_release(library.nccl, f"{where}: nccl")
    if library.servers not in ("", "colocated", "own-nodes"):
        raise InvalidArgumentError(
            f"{where}: servers: unknown place '{library.servers}'", remedy='"servers": "colocated" (or own-nodes)'
        )
    fuses = {"fused_per_cycle", "fusion_threshold"} & set(library.constants)
    if len(fuses) == 1 or (fuses and "bucket_size" in library.constants):
        raise InvalidArgumentError(
            f"{where}: constants: must have bucket_size, or fused_per_cycle and fusion_threshold, or none",
            remedy="drop bucket_size, or both others",
        )
