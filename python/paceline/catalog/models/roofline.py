"""Durations of operators on a GPU: a roofline with an efficiency for each class of operator.

| class | time |
| --- | --- |
| matrix product | FLOPs over a share of the peak, less for small hidden sizes; at least bytes over the memory's rate |
| attention, `flash` | FLOPs of the scores that the mask leaves, at a share of the rate of matrix products |
| attention, `unfused` | the FLOPs of all scores as a matrix product, and their passes through memory |
| everything else | bytes through memory |

A layer takes at least as long as the host needs to launch its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from paceline._core import Cluster
from paceline.catalog import names
from paceline.catalog.efficiency import TRANSFORMER_ENGINE, efficiency, matmul_share
from paceline.catalog.gpus import Hardware
from paceline.catalog.nccl import constant
from paceline.operators.power import cores_clock, relative_clock

AttentionKind = names.Attention
Kernels = names.Kernels
_RECOMPUTING_BACKWARD = 2.5
"""Flash attention's backward pass has 5 matrix products to the forward pass's 2 (T. Dao, FlashAttention-2, 2023)."""
_OVERLAPPING = ("hopper", "blackwell")
"""Architectures on which attention computes products asynchronously, beside softmax."""
_RING_HOP_S = 3.4e-6
"""Of NCCL's ring over NVLink, protocol Simple (NVIDIA/nccl src/graph/tuning.cc)."""
_BYTES = {"fp8": 2, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
"""Of an activation: FP8 training keeps activations in 16 bits."""


def element_bytes(precision: str) -> int:
    """Return the bytes of an activation or a gradient in this precision."""
    return _BYTES[precision]


def is_split(size: int, gpus_per_node: int) -> bool:
    """Whether some groups of so many neighboring GPUs are on two nodes, and others on one."""
    return 1 < size < gpus_per_node and gpus_per_node % size != 0


@dataclass(frozen=True)
class Links:
    """Links that carry a GPU's messages to other nodes."""

    gpus_per_node: int
    card: float
    """Bytes per second, each way: a GPU's share of its node's network cards, as NCCL uses them."""

    @classmethod
    def of(cls, cluster: Cluster) -> Links:
        """Return those of a cluster's nodes."""
        per_node = cluster.gpus_per_node
        # On rails, the rate is that of each GPU's card.
        sharing = 1 if cluster.has_rails else per_node
        share = cluster.efficiency or constant("network.share")
        return cls(per_node, cluster.bandwidth_bps / 8 / sharing * share)


@dataclass(frozen=True)
class Roofline:
    """A GPU at one precision. All methods return seconds."""

    hardware: Hardware
    precision: str
    attention: AttentionKind = "flash"
    kernels: Kernels = "fused"

    def matmul_rate(self, hidden: float) -> float:
        """Return the FLOP/s of matrix products in a model of this hidden size."""
        share = matmul_share(self.hardware.architecture, self.precision, self.kernels)
        rate = self.hardware.peak(self.precision) * share * self._clock
        return rate * hidden / (hidden + efficiency("matmul.fill"))

    @cached_property
    def _clock(self) -> float:
        """The clock of products under the power limit, relative to that at which shares of the peak were measured."""
        return (cores_clock if self.precision == "fp32" else relative_clock)(self.hardware)

    @property
    def memory_rate(self) -> float:
        """Bytes per second that memory-bound kernels reach."""
        return self.hardware.memory_bandwidth * efficiency("memory.share")

    @property
    def traffic_factor(self) -> float:
        """How often activations pass through memory, relative to fused kernels."""
        return {
            "eager": efficiency("traffic.eager"),
            "fused": 1.0,
            "compiled": efficiency("traffic.compiled"),
            "transformer-engine": efficiency("traffic.transformer-engine"),
        }[self.kernels]

    def matmul(self, flops: float, moved_bytes: float, hidden: float) -> float:
        """Time of a matrix product."""
        return max(flops / self.matmul_rate(hidden), moved_bytes / self.memory_rate)

    def memory(self, moved_bytes: float) -> float:
        """Time of a memory-bound kernel that reads and writes so many bytes."""
        return moved_bytes / self.memory_rate

    def attention_forward(self, flops: float, scores: float, hidden: float, *, causal: bool) -> float:
        """Time of attention's forward pass; `flops` and `scores` are those without a mask."""
        if self.attention == "flash":
            return (0.5 if causal else 1.0) * flops / self._flash_rate(hidden)
        rate = self.matmul_rate(hidden)
        # A third of the passes over the scores belongs to the forward pass.
        width = element_bytes(self.precision) / 2
        return flops / rate + scores * width * efficiency("attention.score") / 3 / self.memory_rate

    def _flash_rate(self, hidden: float) -> float:
        """Return the FLOP/s of flash attention: cuDNN's is in 16 bits beside products in 8."""
        if self.kernels != TRANSFORMER_ENGINE or self.hardware.architecture not in _OVERLAPPING:
            return self.matmul_rate(hidden) * efficiency("attention.flash")
        precision = "bf16" if self.precision == "fp8" else self.precision
        return replace(self, precision=precision).matmul_rate(hidden) * efficiency("attention.cudnn")

    def attention_backward(self, flops: float, scores: float, hidden: float, *, causal: bool) -> float:
        """Time of attention's backward pass."""
        factor = _RECOMPUTING_BACKWARD if self.attention == "flash" else 2.0
        return factor * self.attention_forward(flops, scores, hidden, causal=causal)

    def all_reduce(self, moved_bytes: float, ranks: int) -> float:
        """Time of an all-reduce among GPUs of a node: a ring's latency, and bytes at NCCL's bus bandwidth."""
        if ranks == 1:
            return 0.0
        assert self.hardware.bus_bandwidth is not None
        steps = 2 * (ranks - 1)
        return steps * _RING_HOP_S + steps / ranks * moved_bytes / self.hardware.bus_bandwidth

    def all_to_all(self, moved_bytes: float, ranks: int, links: Links) -> float:
        """Time in which each GPU sends so many bytes, an equal part to each: within nodes and between them."""
        near, inside = min(ranks, links.gpus_per_node), 0.0
        if near > 1:
            assert self.hardware.bus_bandwidth is not None
            inside = moved_bytes * (near - 1) / ranks / self.hardware.bus_bandwidth
        between = moved_bytes * (ranks - near) / ranks / links.card
        return (ranks - 1) * _RING_HOP_S + max(inside, between)

    def pass_around(self, moved_bytes: float, ranks: int, links: Links | None, *, gpus: int) -> float:
        """Time in which each rank sends so many bytes to its neighbor, piece by piece; `gpus`: of all of them."""
        rate = self.hardware.bus_bandwidth
        if links is not None and (rate is None or gpus > links.gpus_per_node):
            rate = links.card
        assert rate is not None
        return (ranks - 1) * _RING_HOP_S + moved_bytes / rate

    def launches(self, kernels: float) -> float:
        """Host time of so many launches; a compiled model replays a third of them."""
        return kernels * self.hardware.launch_s / (3 if self.kernels == "compiled" else 1)
