"""Keyword arguments of the public functions, as types. Tests check them against the table of settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from paceline.catalog import names

Chunk = Literal["whole", "per-worker"]


class JobSettings(TypedDict, total=False):
    """Settings of a job (docs/reference/settings.md). None leaves the value of the environment variable."""

    strategy: names.Strategy | None
    servers: int | None
    chunk: Chunk | str | int | None
    placement: Literal["round-robin", "even"] | str | Path | None
    distribution: names.Distribution | None
    pull: names.Pull | None
    inside: names.Inside | None
    coordinator: names.Coordinator | None
    transport: names.Transport | None
    mpi_library: str | Path | None
    cuda_library: str | Path | None
    cuda: names.Cuda | None
    cuda_pointer_cache: bool | None
    nccl_library: str | Path | None
    streams: int | None
    multicast: str | None
    tls: bool | None
    single_copy: bool | None
    timeout_s: float | None
    start_timeout_s: float | None
    interface: str | None
    secret: str | None
    secret_file: str | Path | None
    rendezvous: str | None
    timeline: str | Path | None
    verbose: bool | None


class ScenarioOptions(TypedDict, total=False):
    """Options of a forecast other than trace, cluster, strategy and worker counts. None stands for the default."""

    chunk: Chunk | str | int | None
    """`whole`, `per-worker`, or bytes: a number, or text with a unit."""
    placement: Literal["round-robin", "even"] | str | Path | list[int] | None
    distribution: names.Distribution | None
    pull: names.Pull | None
    inside: names.Inside | None
    network: names.Network | None
    barrier: bool | None
    overlap: bool | None
    iterations: int | None
    seed: int | None
    critical_path: bool | None
    detail: bool | None
    reshard_after_forward: Literal["yes", "no"] | bool | int | None
    prefetch: int | None
    accumulate: int | None
    accumulate_sync: bool | None
    unit: str | None
    param_dtype: names.Dtype | names.ShortDtype | None
    reduce_dtype: names.Dtype | names.ShortDtype | None
    optimizer: names.Optimizer | None
    memory: int | str | None
    """Of a GPU: bytes, or text with a unit."""


class CoreOptions(ScenarioOptions, total=False):
    """Options of a scenario other than trace, cluster, strategy and workers."""

    sharding: str | None
    """`none`, `zero1`, `zero2`, `zero3`, `fsdp`, `hsdp`, or in groups of ranks `hsdp:8`, `zero1:8`, `zero2:8`."""
    compression: str | None
    """`none`, `fp16`, `bf16`, `int8`, `powersgd:4`, `topk:0.01`."""
    sync_every: int | None

    bucket_size: int | str | None
    """Bytes, text with a unit, or `none`."""
    servers: int | None
    compute_speedup: float | None


class ClusterFields(TypedDict, total=False):
    """Fields of a cluster file (docs/reference/cluster-format.md) that override those of the given cluster."""

    name: str | None
    provenance: str | None
    efficiency: float | None
    stream_bandwidth: str | None
    node_contention: float | None
    message_overhead: str | None
    gpus_per_node: int | None
    nics_per_node: int | None
    intra_link: Literal["nvswitch", "nvlink", "pcie"] | None
    intra_bandwidth: str | None
    mesh: dict[str, Any] | None
    intra_latency: str | None
    host_bandwidth: str | None
    reduction_bandwidth: str | None
    racks: dict[str, Any] | None
    fabric: dict[str, Any] | None
    degraded: Sequence[dict[str, Any]] | str | None
    switch: dict[str, Any] | None
    stragglers: str | list[dict[str, Any]] | None
    """`13:1.2`, or a list of ranks and factors as in a cluster file."""
    jitter: dict[str, float] | None
    compression_costs: Sequence[dict[str, Any]] | None


class TraceChanges(TypedDict, total=False):
    """Changes to a trace before it is forecast."""

    device: str | None
    samples_per_s: float | None
    batch: int | None
    dtype: names.Dtype | names.Precision | None
    gpu: str | None
    seq: int | None
    checkpointing: names.Checkpointing | None
    attention: names.Attention | None
    kernels: names.Kernels | None
    tensor_parallel: int | None
    expert_parallel: int | None
    context_parallel: int | None
    pipeline_parallel: int | None
    microbatches: int | None
    virtual_stages: int | None


class CoordinatorOptions(TypedDict, total=False):
    """How ranks agree on what is exchanged."""

    coordinator: names.Coordinator | Literal["none"] | Sequence[str] | None
    coordinator_constants: str | Path | None


class SimulateOptions(ScenarioOptions, CoordinatorOptions, TraceChanges, ClusterFields, total=False):
    """Keywords of `paceline.simulate`."""

    sharding: str | None
    """`none`, `zero1`, `zero2`, `zero3`, `fsdp`, `hsdp`, or in groups of ranks `hsdp:8`, `zero1:8`, `zero2:8`."""
    compression: str | None
    """`none`, `fp16`, `bf16`, `int8`, `powersgd:4`, `topk:0.01`."""
    sync_every: int | None
    library: names.LibraryName | None
    """Whose habits and costs a forecast has."""
    channel: names.Channel | None
    servers: int | None
    compute_speedup: float | None
    bandwidth: str | None
    latency: str | None
    bucket_size: int | str | None
    """Bytes, text with a unit, or `none`."""


class SweepOptions(CoordinatorOptions, TraceChanges, ClusterFields, total=False):
    """Keywords of `paceline.sweep`: values to sweep, changes to the traces, and fields of the cluster."""

    library: names.LibraryName | Sequence[names.LibraryName] | None
    channel: names.Channel | None
    bandwidth: str | Sequence[str] | None
    latency: str | Sequence[str] | None
    sharding: str | Sequence[str] | None
    compression: str | Sequence[str] | None
    sync_every: int | Sequence[int] | None
    bucket_size: int | str | Sequence[int | str] | None
    servers: int | Sequence[int] | None
    compute_speedup: float | Sequence[float] | None
