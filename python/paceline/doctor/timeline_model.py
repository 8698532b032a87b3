"""What ranks did when, according to their timelines. Times are nanoseconds since the start of the job, on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MARKS = ("input", "forward", "backward", "wait", "optimizer")
"""What the script does between operations; torch's hooks mark it."""

AGREEMENT = frozenset(
    {"which tensors are ready", "how much each has to say", "what each asks for", "what begins"},
)
"""Labels of operations by which coordinators agree; they move none of the script's data."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that has a duration."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective operation, from its beginning on the rank to its end there."""

    number: int
    """This rank's own count."""
    name: str
    call: str
    size: int
    """Bytes."""
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor, from the moment at which it was requested (a gradient: ready) to its sum."""

    name: str
    size: int
    """Bytes."""
    operation: int
    """The operation that moved it, perhaps together with others."""
    asked: int
    agreed: int
    done: int


@dataclass(slots=True)
class Rank:
    """The recording of one rank."""

    rank: int
    dropped: int = 0
    """Spans that were not kept, for there were too many."""
    marks: dict[str, list[Span]] = field(default_factory=lambda: {name: [] for name in MARKS})
    operations: list[Operation] = field(default_factory=list)
    """Without those of coordinators."""
    votes: list[Operation] = field(default_factory=list)
    """Operations of coordinators."""
    tensors: list[Tensor] = field(default_factory=list)
    coordinator: dict[str, list[Span]] = field(default_factory=dict)
    """By what it does: sleep, late wake-up, wait for votes, report, wait for the decision."""
    spun: int = 0
    """Nanoseconds for which a coordinator that waited for votes kept a core busy."""
    moved: dict[tuple[int, str, bool], int] = field(default_factory=dict)
    """Bytes of messages, by operation, by role (`worker 0`, `server 2`), and whether they leave it."""

    def sort(self) -> None:
        """Sort by time."""
        for spans in (*self.marks.values(), *self.coordinator.values()):
            spans.sort(key=lambda span: (span.begin, span.end))
        self.operations.sort(key=lambda operation: (operation.begin, operation.number))
        self.tensors.sort(key=lambda tensor: (tensor.asked, tensor.operation, tensor.name))


@dataclass(slots=True)
class Recording:
    """A timeline file, or the parts of one."""

    path: Path
    ranks: list[Rank]
    """Those that train, in order."""
    servers: list[Rank]
    """Processes that only serve."""
    missing: list[int]
    """Ranks that others name and that are not there."""
    notes: list[str]

    @property
    def world_size(self) -> int:
        """Number of ranks that train, including those that were not recorded."""
        return len(self.ranks) + len(self.missing)
