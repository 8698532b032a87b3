"""The contents of timelines: what ranks did, in nanoseconds since the start of the job, on one clock."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paceline.async_ps.report import ANSWER
from paceline.doctor.intervals import Interval, Intervals, clip, union

MARKS = ("input", "forward", "backward", "wait", "optimizer")
"""Activities of the script between operations, which torch's hooks mark."""

AGREEMENT = frozenset(
    {"which tensors are ready", "lengths of the requests", "requests of each rank", "which operations begin"},
)
"""Labels of the coordinators' own operations, which move none of the script's data."""


_BLOCK = re.compile(r"(all-gather|reduce-scatter) of (.+?)(?:: .*)?")


class Block(NamedTuple):
    """A collective of a block whose parameters are sharded, which FSDP2 waits for in the middle of a pass."""

    collective: str
    name: str

    @classmethod
    def of(cls, label: str) -> Block | None:
        """Return it from the name of an operation or of a wait; None if that is no block's."""
        match = _BLOCK.fullmatch(label.removeprefix("wait for "))
        return cls(match[1], match[2]) if match else None


@dataclass(frozen=True, slots=True)
class Span:
    """An interval with a name."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective operation, from its beginning to its end on this rank."""

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
    """The operation that moved it, possibly with others."""
    requested: int
    agreed: int
    done: int


@dataclass(frozen=True, slots=True)
class Host:
    """A host as a rank saw it."""

    name: str
    processes: int
    """Processes of the job on it."""
    cores: int
    """Cores that they could use together."""

    @property
    def is_crowded(self) -> bool:
        """Whether processes of the job take turns on its cores."""
        return self.processes > self.cores


@dataclass(slots=True)
class Rank:
    """The recording of one rank."""

    rank: int
    dropped: int = 0
    """Number of spans that were dropped because there were too many."""
    host: Host | None = None
    """Where it ran; None for recordings of earlier versions."""
    marks: dict[str, list[Span]] = field(default_factory=lambda: {name: [] for name in MARKS})
    operations: list[Operation] = field(default_factory=list)
    """Operations, except those of coordinators."""
    votes: list[Operation] = field(default_factory=list)
    """Operations of coordinators."""
    tensors: list[Tensor] = field(default_factory=list)
    pipeline: list[Span] | None = None
    """When its input pipeline was at work; None: nobody watched."""
    coordinator: dict[str, list[Span]] = field(default_factory=dict)
    """Coordinator spans by activity: sleep, late wake-up, wait for votes, report, wait for the decision."""
    spun: int = 0
    """Nanoseconds in which a coordinator kept a core busy while waiting for votes."""
    applied: Counter[int] = field(default_factory=Counter)
    """Gradients that a server has applied one by one, by their staleness in updates."""
    moved: dict[tuple[int, str, bool], int] = field(default_factory=dict)
    """Bytes of messages by operation, role (`worker 0`, `server 2`) and direction (True: outgoing)."""

    def pipeline_within(self, step: Interval) -> Intervals | None:
        """Return when the input pipeline was at work in a step; None if nobody watched."""
        if self.pipeline is None:
            return None
        first = max(0, bisect_left(self.pipeline, step[0], key=lambda span: span.begin) - 1)
        last = bisect_left(self.pipeline, step[1], key=lambda span: span.begin)
        return union(clip(((span.begin, span.end) for span in self.pipeline[first:last]), *step))

    def sort(self) -> None:
        """Sort by time."""
        for spans in (*self.marks.values(), *self.coordinator.values()):
            spans.sort(key=lambda span: (span.begin, span.end))
        if self.pipeline is not None:
            self.pipeline.sort(key=lambda span: (span.begin, span.end))
        self.operations.sort(key=lambda operation: (operation.begin, operation.number))
        self.tensors.sort(key=lambda tensor: (tensor.requested, tensor.operation, tensor.name))


@dataclass(slots=True)
class Recording:
    """A timeline file, or the parts of one."""

    path: Path
    ranks: list[Rank]
    """Ranks that train, in order."""
    servers: list[Rank]
    """Server processes."""
    missing: list[int]
    """Ranks that others mention but that were not recorded."""
    notes: list[str]

    @property
    def world_size(self) -> int:
        """Number of ranks that train, including those that were not recorded."""
        return len(self.ranks) + len(self.missing)

    @property
    def is_asynchronous(self) -> bool:
        """Whether servers applied each gradient when it arrived (`--strategy async-ps`)."""
        return bool(self.staleness) or any(one.name == ANSWER for rank in self.ranks for one in rank.operations)

    @property
    def staleness(self) -> Mapping[int, int]:
        """Gradients by staleness in updates, ascending, over all servers that were recorded."""
        applied = sum((server.applied for server in self.servers), Counter[int]())
        return dict(sorted(applied.items()))

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are known to have run on the same host."""
        hosts = {rank.host.name if rank.host else None for rank in self.ranks}
        return len(hosts) == 1 and None not in hosts

    @property
    def crowded(self) -> list[Host]:
        """Hosts on which processes of the job take turns on the cores."""
        hosts = {rank.host.name: rank.host for rank in self.ranks if rank.host is not None}
        return [host for _, host in sorted(hosts.items()) if host.is_crowded]
