"""Additions to a forecast whose iteration is a plan: exposed communication by collective, and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline import _core

TIGHT = 0.8
"""Share of a GPU's memory above which a peak is a tight fit: what the allocator reserves beyond it, the CUDA context,
NCCL's buffers and workspaces need room, too, and are not counted (docs/explanation/sharding.md). Allocators have
reserved 1.06 to 1.24 times the peaks that are forecast (docs/results/published.md), and 1 / 1.24 is 0.8."""


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

    @classmethod
    def of(cls, peak: _core.Memory) -> Memory:
        """Return what the native module says."""
        return cls(
            peak.peak_bytes,
            peak.parameters_bytes,
            peak.gradients_bytes,
            peak.optimizer_bytes,
            peak.gathered_bytes,
            peak.communication_bytes,
            peak.activations_bytes,
        )


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

    @property
    def fits(self) -> bool | None:
        """Whether a GPU has enough memory; None if its memory is not known."""
        return None if self.capacity_bytes is None else self.memory.peak_bytes <= self.capacity_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it fits, but leaves little room for what is not counted."""
        return bool(self.fits) and self.memory.peak_bytes > TIGHT * (self.capacity_bytes or 0)

    @property
    def room_bytes(self) -> int:
        """Bytes of a known memory that a peak leaves, if it fits."""
        return (self.capacity_bytes or 0) - self.memory.peak_bytes

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
        plain = {**vars(self), "exposed": self.exposed.to_dict(), "memory": vars(self.memory)}
        plain |= {"fits": self.fits, "tight": self.is_tight}
        if self.sync_every == 1:
            del plain["sync_every"]
        return plain
