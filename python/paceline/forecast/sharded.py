"""Additions to a forecast whose iteration is a plan: exposed communication by collective, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline import _core
from paceline.forecast.footprint import FRAGMENTED, Footprint, allocatable_bytes


@dataclass(frozen=True)
class ExposedBy:
    """Seconds of an iteration in which the slowest rank's computation waits, by collective.

    What delays an iteration besides is in `Sharded`: together they are what it takes beyond computation alone.
    """

    all_gather_s: float
    reduce_scatter_s: float
    all_reduce_s: float
    compression_s: float = 0.0
    """Of compressing and decompressing, instead of a collective."""

    def to_dict(self) -> dict[str, float]:
        """Return it as `--json` prints it."""
        return {name: seconds for name, seconds in vars(self).items() if name != "compression_s" or seconds > 0}


@dataclass(frozen=True)
class Memory:
    """Bytes on a GPU at the peak of an iteration, by kind; `activations_bytes` is None if the trace does not say."""

    peak_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    gathered_bytes: int
    communication_bytes: int
    """Buffers that FSDP2 copies gathered units out of, and gradients into."""
    activations_bytes: int | None
    reserved_bytes: int
    """By PyTorch's allocator, blocks that it keeps though nothing is in them included."""
    context_bytes: int
    """The CUDA context."""
    nccl_bytes: int
    """NCCL's buffers."""

    @property
    def total_bytes(self) -> int:
        """All that the process takes of a GPU."""
        return self.reserved_bytes + self.beside_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes that are not from PyTorch's allocator."""
        return self.context_bytes + self.nccl_bytes

    def fits_into(self, capacity_bytes: int) -> bool:
        """Return whether a GPU with so much memory has enough."""
        return self.peak_bytes <= allocatable_bytes(capacity_bytes, self.beside_bytes)

    def is_tight_in(self, capacity_bytes: int) -> bool:
        """Return whether it fits, but the allocator may reserve all of a GPU's memory."""
        return self.fits_into(capacity_bytes) and FRAGMENTED * self.reserved_bytes + self.beside_bytes > capacity_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {**vars(self), "total_bytes": self.total_bytes}

    @classmethod
    def of(cls, peak: _core.Memory, beside: Footprint | None = None) -> Memory:
        """Return what the native module says, and what a process takes besides; None: nothing."""
        footprint = beside or Footprint(peak.peak_bytes, 0, 0)
        return cls(
            peak.peak_bytes,
            peak.parameters_bytes,
            peak.gradients_bytes,
            peak.optimizer_bytes,
            peak.gathered_bytes,
            peak.communication_bytes,
            peak.activations_bytes,
            footprint.reserved_bytes,
            footprint.context_bytes,
            footprint.nccl_bytes,
        )


@dataclass(frozen=True)
class Host:
    """Bytes of one GPU's part of training that are not in its memory."""

    memory: Mapping[str, int]
    """In the host's memory, by kind."""
    drives: int = 0
    """On NVMe drives."""
    gpus: int = 1
    """GPUs that share the host."""
    capacity_bytes: int | None = None
    """Memory of a node; None: not known."""
    drives_capacity_bytes: int | None = None
    """Of a node's drives."""

    @property
    def node_bytes(self) -> int:
        """Bytes of a node's memory that are needed."""
        return self.gpus * sum(self.memory.values())

    @property
    def fits(self) -> bool | None:
        """Whether a node has enough memory and drives; None if that is not known."""
        return max(self.shares) <= 1 if self.shares else None

    @property
    def shares(self) -> list[float]:
        """How many times the memory and the drives of a node are needed, as far as these are known."""
        pairs = [(self.node_bytes, self.capacity_bytes), (self.gpus * self.drives, self.drives_capacity_bytes)]
        return [size / max(1, capacity) for size, capacity in pairs if capacity is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        own: dict[str, Any]
        keys = {name: f"{name.replace(' ', '_').removeprefix('optimizer_')}_bytes" for name in self.memory}
        own = {keys[name]: size for name, size in self.memory.items()} | {"nvme_bytes": self.drives}
        own |= {"node_bytes": self.node_bytes, "node_nvme_bytes": self.gpus * self.drives}
        return own | {"node_capacity_bytes": self.capacity_bytes, "fits": self.fits}


@dataclass(frozen=True)
class Fit:
    """The memory that an iteration needs of a GPU and of its host, beside what they have."""

    memory: Memory
    capacity_bytes: int | None
    """Memory of a GPU, if it is known."""
    host: Host | None
    """The bytes that a GPU has in the memory of its host or on its drives; None: nothing."""

    @property
    def fits(self) -> bool | None:
        """Whether a GPU has enough memory, and its host; None if that is not known."""
        if self.host is not None and self.host.fits is False:
            return False
        return None if self.capacity_bytes is None else self.memory.fits_into(self.capacity_bytes)

    @property
    def shortage(self) -> float:
        """How many times the memory that may be used is needed, of a GPU or of its host; 0 where none is known."""
        known = [] if self.host is None else self.host.shares
        if self.capacity_bytes is not None:
            allocatable = allocatable_bytes(self.capacity_bytes, self.memory.beside_bytes)
            known = [*known, self.memory.peak_bytes / max(1, allocatable)]
        return max(known, default=0.0)

    @property
    def is_tight(self) -> bool:
        """Whether it fits, but the allocator may reserve all that is left, and then slow the job down."""
        return self.capacity_bytes is not None and self.memory.is_tight_in(self.capacity_bytes)


@dataclass(frozen=True)
class Sharded:
    """Additions to a forecast whose iteration is a plan."""

    sharding: str
    shard_ranks: int
    """Ranks over which the state is sharded."""
    passes: int
    """Passes through the model in an iteration."""
    units: int
    parameters: int
    exposed: ExposedBy
    straggling_s: float
    """By how much the slowest rank computes longer than the trace by itself."""
    slowed_s: float
    """By how much NCCL's kernels slow down its computation."""
    memory: Memory
    resolution: str
    """`messages` or `collectives`: what was simulated."""
    calls_s: float = 0.0
    """By how much handing gradients over to the library lengthens the backward pass."""
    sync_every: int = 1
    """Iterations of a round, in the last of which ranks exchange something."""
    capacity_bytes: int | None = None
    """Memory of a GPU, if it is known."""
    host: Host | None = None
    """The bytes that a GPU has in the memory of its host or on its drives; None: nothing."""
    likely: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes between which measured memory is with a probability of 80 %, by kind: `peak`, `reserved`, `total`."""
    for_verdict: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes below and above which one in five jobs is each, by kind."""

    @property
    def fit(self) -> Fit:
        """The memory that it needs, beside what there is."""
        return Fit(self.memory, self.capacity_bytes, self.host)

    @property
    def fits(self) -> bool | None:
        """Whether a GPU has enough memory, and its host; None if that is not known."""
        return self.fit.fits

    @property
    def in_question(self) -> tuple[int, int] | None:
        """The bytes between which the verdict changes: the interval of what is allocated, or of all; None: it is sure.

        It is also None where that is not known.
        """
        if self.capacity_bytes is None or (self.host is not None and self.host.fits is False):
            return None
        limits = {
            "peak": allocatable_bytes(self.capacity_bytes, self.memory.beside_bytes),
            "total": self.capacity_bytes,
        }
        kind = next((kind for kind in limits if kind in self.for_verdict), None)
        if kind is None:
            return None
        low, high = self.for_verdict[kind]
        return (low, high) if low <= limits[kind] < high else None

    @property
    def may_not_fit(self) -> bool:
        """Whether it fits, but one in five of such jobs does not."""
        return bool(self.fits) and self.in_question is not None

    @property
    def verdict(self) -> str | None:
        """`fits` or `does not fit`; where the interval leaves that open: `may not fit`, `probably does not fit`.

        None: unknown.
        """
        is_open = self.in_question is not None
        return {
            None: None,
            True: "may not fit" if is_open else "fits",
            False: "probably does not fit" if is_open else "does not fit",
        }[self.fits]

    @property
    def shortage(self) -> float:
        """How many times the memory that may be used is needed, of a GPU or of its host; 0 where none is known."""
        return self.fit.shortage

    @property
    def is_tight(self) -> bool:
        """Whether it fits, but the allocator may reserve all that is left, and then slow the job down."""
        return self.fit.is_tight

    @property
    def room_bytes(self) -> int:
        """Bytes of a known memory that nothing takes, if it fits."""
        return max(0, (self.capacity_bytes or 0) - self.memory.total_bytes)

    def bytes_of(self, kind: str) -> int:
        """Return the bytes of a kind of memory: `peak`, `reserved` or `total`."""
        size: int = getattr(self.memory, f"{kind}_bytes")
        return size

    @classmethod
    def of(cls, plan: _core.Sharded) -> Sharded:
        """Return what the native module says of a plan."""
        exposed = plan.exposed
        return cls(
            sharding=plan.sharding,
            shard_ranks=plan.shard_ranks,
            passes=plan.passes,
            units=plan.units,
            parameters=plan.parameters,
            exposed=ExposedBy(
                exposed.all_gather_s, exposed.reduce_scatter_s, exposed.all_reduce_s, exposed.compression_s
            ),
            straggling_s=plan.straggling_s,
            slowed_s=plan.slowed_s,
            memory=Memory.of(plan.memory),
            resolution=plan.resolution,
            calls_s=plan.calls_s,
            sync_every=plan.sync_every,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        plain = {**vars(self), "exposed": self.exposed.to_dict(), "memory": self.memory_dict()}
        plain |= {"fits": self.fits, "verdict": self.verdict, "tight": self.is_tight}
        del plain["host"]
        plain |= {} if self.host is None else {"host": self.host.to_dict()}
        del plain["likely"], plain["for_verdict"]
        if self.sync_every == 1:
            del plain["sync_every"]
        return plain

    def memory_dict(self) -> dict[str, Any]:
        """Return the memory with its interval, which is None where too few were measured."""
        interval = {f"{kind}_bytes": list(ends) for kind, ends in self.likely.items()}
        return {**self.memory.to_dict(), "interval": interval or None}
