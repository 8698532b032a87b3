"""Memory that a job takes from a GPU beyond what a step allocates, and whether all of it fits.

PyTorch's allocator reserves blocks and keeps those that are freed. Blocks of one kind rarely serve another: gradients'
shards come from the stream of the reduce-scatters, gathered units from that of the all-gathers, and states are smaller
than logits. So each kind is reserved at its own peak (`c10/cuda/CUDACachingAllocator.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline._core import Memory as Peak
from paceline.catalog.gpus import titled
from paceline.catalog.models.dispatch import deepep_bytes
from paceline.catalog.models.exchanges import element_bytes
from paceline.forecast.sharding import GATHERED, kind, shard_ranks

if TYPE_CHECKING:
    from paceline.catalog.gpus import Hardware
    from paceline.catalog.models.workload import Workload
    from paceline.forecast.scenario import Scenario

MIB = 2**20
FULLEST = 0.955
"""Share of what context and NCCL leave that allocations may take: Llama 3 8B trained on an A100 with 80.3 of 84.4 GB
(fms-acceleration's a100_80gb_foak.csv); no job is known that took more."""
FRAGMENTED = 1.13
"""Times what is reserved by the rule above that most measured jobs stay below (docs/explanation/memory.md)."""
_ROUTED = 1.36
"""Times its peak that a mixture of experts reserves, because the sizes of its activations vary from step to step: two
jobs of ms-swift under Megatron-Core, both 1.36."""
_CONTEXT = {"maxwell": 0.6e9, "pascal": 0.6e9, "volta": 1.4e9, "turing": 0.6e9}
"""By architecture, where it is not `_LAZY`: GPUs whose measured jobs are older than CUDA 11.7, which loaded all kernels
(pytorch#86509: 667 MB; over 1 GB on V100, pytorch#107667)."""
_LAZY = 0.45e9
"""A context into which kernels are loaded when they are first used: 426 MiB (unsloth-zoo#1053, CUDA 13)."""
_CONNECTION = 14 * MIB
"""NCCL's buffers for a channel from one GPU to another, 10 + 2 MiB at one end and 2 at the other (nccl#1685)."""
_CHANNELS = {"nvlink": 24, "pcie": 2}
"""Of a ring of NCCL, by the beginning of the links' name: over NVSwitch, and over PCIe."""
_PEER_CHANNELS = 32
"""Of an all-to-all, to each GPU of the node (nccl#1685)."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a GPU that a process takes."""

    reserved_bytes: int
    """By PyTorch's allocator, at the most."""
    context_bytes: int
    """The CUDA context with the kernels that have been loaded."""
    nccl_bytes: int
    """Buffers of NCCL's communicators."""


def footprint(scenario: Scenario, peak: Peak) -> Footprint:
    """Return what a scenario takes whose allocations peak like this."""
    workload = scenario.workload
    hardware = titled(scenario.trace.device) if workload is None else workload.hardware
    context = context_bytes(hardware)
    nccl = _nccl_bytes(scenario, workload, hardware)
    reserved = _reserved_bytes(scenario, workload, peak)
    if (capacity := scenario.capacity_bytes) is not None:
        # Blocks that are not in use are given back before the allocator fails.
        reserved = max(peak.peak_bytes, min(reserved, capacity - context - nccl))
    return Footprint(reserved, context, nccl)


def context_bytes(hardware: Hardware | None) -> int:
    """Return the bytes of a CUDA context."""
    return round(_LAZY if hardware is None else _CONTEXT.get(hardware.architecture, _LAZY))


def allocatable_bytes(capacity_bytes: int, beside_bytes: int) -> int:
    """Return the most that a job may allocate of a GPU's memory."""
    return max(0, int(FULLEST * (capacity_bytes - beside_bytes)))


def floor_bytes(workload: Workload, sharding: str, workers: int, per_node: int, values: Mapping[str, Any]) -> int:
    """Return bytes that no peak is below: those held when the backward pass begins, without gathered units.

    Args:
        workload: What is trained.
        sharding: As it is typed.
        workers: Data-parallel ranks, over which it shards.
        per_node: Those of a node.
        values: Other settings.
    """
    name = kind(sharding)
    ranks = shard_ranks(sharding, workers, per_node)
    held = workload.memory(sharding="zero3" if name == "hsdp" else name, group=ranks)
    activations = held.activations + held.loss
    if values.get("param_dtype") is not None:
        # Parameters, and whether there is a master copy, are up to the element type.
        return activations
    return held.parameters + held.optimizer + activations


def _reserved_bytes(scenario: Scenario, workload: Workload | None, peak: Peak) -> int:
    if workload is None:
        return peak.apart_bytes
    if workload.own.has_experts:
        return max(peak.apart_bytes, round(_ROUTED * peak.peak_bytes))
    gathers = kind(scenario.options.get("sharding") or "none") in GATHERED
    tokens = workload.batch * workload.tokens // workload.context
    is_frozen = workload.model.is_frozen
    if gathers or is_frozen or tokens > max(layer.hidden for layer in workload.model.layers):
        # Eager kernels recompute a block in tensors of many sizes, which leave the blocks of the logits in pieces.
        # So does any kernel beside adapters, whose gradients are too small to leave blocks for anything. Blocks that
        # the loss has let go before serve a recomputed block.
        is_pieced = workload.kernels == "eager" or is_frozen
        return peak.apart_bytes + max(workload.loss_blocks_bytes, workload.least_passing_bytes if is_pieced else 0)
    # Activations are no larger than the gradients of the matrices that they are multiplied by, and take their blocks
    # on the same stream; logits are larger than those.
    logits = workload.batch * sum(layer.logits for layer in workload.model.layers) * 12 / workload.tensor
    return max(peak.peak_bytes, min(peak.apart_bytes, round(peak.state_bytes + logits)))


def _nccl_bytes(scenario: Scenario, workload: Workload | None, hardware: Hardware | None) -> int:
    """Return the buffers of a ring for each communicator, and of all-to-alls inside a node between experts.

    DeepEP has its own buffers instead of those of all-to-alls.
    """
    parallel = {} if workload is None else workload.parallelism
    is_hybrid = kind(scenario.options.get("sharding") or "none") == "hsdp"
    rings = (
        (scenario.workers > 1)
        + is_hybrid
        + sum(parallel.get(name, 1) > 1 for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"))
    )
    if hardware is None or not rings:
        return 0
    channels = _CHANNELS["pcie" if hardware.bus_bandwidth is None else "nvlink"]
    experts = parallel.get("expert_parallel", 1)
    per_node = scenario.cluster.gpus_per_node * parallel.get("tensor_parallel", 1)
    if workload is not None and workload.dispatch == "deepep" and experts > 1:
        row = max(layer.hidden for layer in workload.model.layers) * element_bytes(workload.precision)
        return _CONNECTION * rings * channels + deepep_bytes(row, experts, per_node)
    return _CONNECTION * (rings * channels + (min(experts, per_node) - 1) * _PEER_CHANNELS)
